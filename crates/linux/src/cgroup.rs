// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Control groups, v2 and v1, where they are mounted: a process's group, joining one, its CPU time.
//!
//! Mounts are found by the conventional places below [`Roots::cgroup`]: v2 at the root itself or,
//! on hybrid hosts, in `unified`; each v1 controller in the directory of its name (`cpu` and
//! `cpuacct` may be links to one `cpu,cpuacct`). Only v1 controllers that concern prezero are
//! looked for.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Advise, Errno, Error, ErrorContext, Result};
use crate::files;
use crate::roots::Roots;

/// A hierarchy that a group lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The one hierarchy of v2.
    V2,
    /// v1, CPU shares and quota.
    V1Cpu,
    /// v1, CPU time used.
    V1Cpuacct,
    /// v1, huge pages charged.
    V1Hugetlb,
}

impl Kind {
    const ALL: [Self; 4] = [Self::V2, Self::V1Cpu, Self::V1Cpuacct, Self::V1Hugetlb];

    /// The name in `/proc/self/cgroup` and of the mount point; empty for v2.
    fn controller(self) -> &'static str {
        match self {
            Self::V2 => "",
            Self::V1Cpu => "cpu",
            Self::V1Cpuacct => "cpuacct",
            Self::V1Hugetlb => "hugetlb",
        }
    }

    /// Where it is mounted, if it is.
    fn mount_point(self, roots: &Roots) -> Option<PathBuf> {
        match self {
            Self::V2 => [roots.cgroup.clone(), roots.cgroup.join("unified")]
                .into_iter()
                .find(|dir| dir.join("cgroup.controllers").exists()),
            v1 => Some(roots.cgroup.join(v1.controller()))
                .filter(|dir| dir.join("cgroup.procs").exists()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V2 => f.write_str("v2"),
            v1 => write!(f, "v1 {}", v1.controller()),
        }
    }
}

/// One group in one hierarchy; it may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    kind: Kind,
    path: String,
    dir: PathBuf,
}

/// The hierarchies that are mounted, v2 first.
pub fn mounted(roots: &Roots) -> Vec<Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.mount_point(roots).is_some()).collect()
}

/// The calling process's group in every mounted hierarchy, v2 first.
pub fn own(roots: &Roots) -> Result<Vec<Group>> {
    listed(roots, &roots.proc.join("self/cgroup"))
}

/// The same of any process or thread, by its number.
///
/// # Errors
/// [`Error::is_not_found`] if that number is unused.
pub fn of_process(roots: &Roots, process: u32) -> Result<Vec<Group>> {
    listed(roots, &roots.proc.join(format!("{process}/cgroup")))
}

fn listed(roots: &Roots, file: &Path) -> Result<Vec<Group>> {
    let text = files::read(file)?;
    let mut groups = Vec::new();
    for line in text.lines() {
        // 0::/user.slice or 4:cpu,cpuacct:/user.slice
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            return Err(Error::malformed(file, "ID:CONTROLLERS:PATH", line));
        };
        let names = controllers.split(',');
        for kind in names.filter_map(|name| Kind::ALL.into_iter().find(|k| k.controller() == name))
        {
            groups.extend(Group::at(roots, kind, path)?);
        }
    }
    groups.sort_by_key(|group| group.kind);
    Ok(groups)
}

/// The group of one path in every mounted hierarchy, v2 first: what a worker is put into.
///
/// # Errors
/// [`Error::Invalid`] unless `path` starts with a slash and has no `..`.
pub fn everywhere(roots: &Roots, path: &str) -> Result<Vec<Group>> {
    let groups = Kind::ALL.into_iter().map(|kind| Group::at(roots, kind, path));
    Ok(groups.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

impl Group {
    /// The group `path` of one hierarchy; `None` if the hierarchy is unmounted.
    pub fn at(roots: &Roots, kind: Kind, path: &str) -> Result<Option<Self>> {
        let inside =
            path.strip_prefix('/').filter(|rest| !rest.split('/').any(|part| part == ".."));
        let Some(inside) = inside else {
            return Err(Error::invalid(
                "cgroup",
                format!("{path:?}"),
                "is not an absolute path without ..",
            ));
        };
        Ok(kind.mount_point(roots).map(|mount| Self {
            kind,
            path: path.to_owned(),
            dir: if inside.is_empty() { mount } else { mount.join(inside) },
        }))
    }

    /// Its hierarchy.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its path inside the hierarchy, `/` for the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it is there, or its nearest parent that is there is a group below which it can be
    /// made.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the path.
    pub fn check(&self) -> Result<()> {
        let there = self.dir.ancestors().find(|dir| dir.exists());
        if there.is_some_and(|dir| dir.join("cgroup.procs").is_file()) {
            return Ok(());
        }
        let rule = "is no control group, and none that can be made";
        Err(Error::invalid("cgroup", format!("{:?}", self.dir), rule))
    }

    /// Makes the group and its parents; one that exists is left as it is.
    pub fn create(&self) -> Result<()> {
        std::fs::create_dir_all(&self.dir)
            .or_call(|| format!("mkdir({:?})", self.dir))
            .advise(Errno::ACCESS, "needs root, or a delegated subtree")
            .advise(Errno::PERM, "needs root, or a delegated subtree")
    }

    /// Removes the group.
    ///
    /// # Errors
    /// EBUSY while it has processes or children.
    pub fn remove(&self) -> Result<()> {
        std::fs::remove_dir(&self.dir).or_call(|| format!("rmdir({:?})", self.dir))
    }

    /// Moves the calling process with all its threads into the group.
    pub fn join(&self) -> Result<()> {
        self.add(0)
    }

    /// Moves a process with all its threads into the group; 0 is the caller.
    pub fn add(&self, pid: u32) -> Result<()> {
        files::write(&self.dir.join("cgroup.procs"), &pid.to_string())
            .advise(Errno::NOENT, "the group does not exist")
            .advise(
                Errno::ACCESS,
                "needs write access to cgroup.procs here and in the common parent",
            )
            .advise(Errno::BUSY, "the group has children with controllers: use a leaf")
            .advise(Errno::OPNOTSUPP, "the group is threaded: use a domain group")
    }

    /// Gives the group `quota` of CPU time in each `period`, for all its threads together:
    /// `cpu.max`, or `cpu.cfs_quota_us` with v1. `false` for hierarchies that do not limit CPU
    /// time, and for v2 groups without the controller in their parent.
    ///
    /// # Errors
    /// EINVAL for a period outside 1 ms to 1 s, or a quota below 1 ms.
    pub fn limit_cpu(&self, quota: Duration, period: Duration) -> Result<bool> {
        let (quota, period) = (quota.as_micros(), period.as_micros());
        match self.kind {
            Kind::V2 if self.dir.join("cpu.max").exists() => {
                files::write(&self.dir.join("cpu.max"), &format!("{quota} {period}"))?;
            }
            Kind::V1Cpu => {
                files::write(&self.dir.join("cpu.cfs_period_us"), &period.to_string())?;
                files::write(&self.dir.join("cpu.cfs_quota_us"), &quota.to_string())?;
            }
            Kind::V2 | Kind::V1Cpuacct | Kind::V1Hugetlb => return Ok(false),
        }
        Ok(true)
    }

    /// Moves the calling thread alone into the group, which becomes a threaded one with v2.
    ///
    /// # Errors
    /// EOPNOTSUPP with v2 where the thread's process is outside the group's parent.
    pub fn join_thread(&self) -> Result<()> {
        if self.kind != Kind::V2 {
            return files::write(&self.dir.join("tasks"), "0");
        }
        let kind = self.dir.join("cgroup.type");
        if files::read(&kind)?.trim() != "threaded" {
            files::write(&kind, "threaded")?;
        }
        files::write(&self.dir.join("cgroup.threads"), "0").advise(
            Errno::OPNOTSUPP,
            "a thread leaves its process only for a threaded child of the process's own group",
        )
    }

    /// The processes in it.
    pub fn pids(&self) -> Result<Vec<u32>> {
        let file = self.dir.join("cgroup.procs");
        files::read(&file)?.lines().map(|line| files::parse(&file, "a process id", line)).collect()
    }

    /// CPU time that its processes used, children and ended ones included; `None` for hierarchies
    /// that do not count it.
    pub fn cpu_time(&self) -> Result<Option<Duration>> {
        match self.kind {
            Kind::V2 => {
                let file = self.dir.join("cpu.stat");
                let text = files::read(&file)?;
                let used = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
                let used =
                    used.ok_or_else(|| Error::malformed(&file, "a line \"usage_usec\"", &text))?;
                Ok(Some(Duration::from_micros(files::parse(&file, "microseconds", used)?)))
            }
            Kind::V1Cpuacct => files::read_number(&self.dir.join("cpuacct.usage"))
                .map(Duration::from_nanos)
                .map(Some),
            Kind::V1Cpu | Kind::V1Hugetlb => Ok(None),
        }
    }
}
