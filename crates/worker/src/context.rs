// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a worker runs, and which cgroup pays for it: applied by the worker to itself, before its
//! first job.

use std::path::{Component, Path, PathBuf};

use linux::{CpuSet, Result, Roots, cgroup, cpu, numa, sched};
use units::Node;

/// The CPUs, nice value, policy and group of a worker; an absent one stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Context {
    /// CPUs in the kernel's list notation, `"0-3,8"`.
    pub cpus: Option<String>,
    /// Without `cpus`: those of this node, if it has any that the process may use.
    pub near: Option<Node>,
    /// The nice value, -20 to 19.
    pub nice: Option<i32>,
    /// Whether to run under `SCHED_IDLE`.
    pub sched_idle: bool,
    /// Where and as this process or thread runs: its groups, CPUs, policy and nice value. It must
    /// stay alive meanwhile. What else is set here comes on top.
    ///
    /// It stays out of the v1 hugetlb group: the pages belong to the pool, and outlive the worker.
    pub like: Option<u32>,
    /// A cgroup: a directory below the cgroup mount, a path inside the hierarchy, or, without a
    /// slash at its beginning, one below the process's own. It is made if it is missing, in every
    /// mounted hierarchy that concerns prezero.
    pub cgroup: Option<PathBuf>,
}

impl Context {
    /// Whether [`apply`](Self::apply) could put a process there, by all checks that leave the
    /// process in place: CPUs that are online, and a control group that is there or can be made.
    ///
    /// # Errors
    /// [`linux::Error`] naming the value.
    pub fn check(&self, roots: &Roots) -> Result<()> {
        if let Some(path) = &self.cgroup {
            for group in groups(roots, path)? {
                group.check()?;
            }
        }
        match &self.cpus {
            Some(cpus) => cpu::check_online(roots, &cpus.parse()?),
            None => Ok(()),
        }
    }

    /// Puts the calling thread there, and the process into the group; threads started afterwards
    /// inherit all of it, so call this before starting any.
    ///
    /// The group comes first: it may be the one that has the rights and CPUs for the rest.
    ///
    /// # Errors
    /// [`linux::Error`] naming the call: a forbidden group, offline CPUs, a nice value below the
    /// present one without `CAP_SYS_NICE`.
    pub fn apply(&self, roots: &Roots) -> Result<()> {
        if let Some(like) = self.like {
            for group in cgroup::of_process(roots, like)? {
                if group.kind() != cgroup::Kind::V1Hugetlb {
                    group.join()?;
                }
            }
            sched::copy_scheduling(like)?;
        }
        if let Some(path) = &self.cgroup {
            for group in groups(roots, path)? {
                group.create()?;
                group.join()?;
            }
        }
        if let Some(cpus) = &self.cpus {
            sched::set_affinity(&cpus.parse::<CpuSet>()?)?;
        } else if let Some(node) = self.near {
            let near = numa::cpus_of(roots, node)?.intersection(&sched::affinity()?);
            if !near.is_empty() {
                sched::set_affinity(&near)?;
            }
        }
        if let Some(nice) = self.nice {
            sched::set_nice(nice)?;
        }
        if self.sched_idle {
            sched::set_idle()?;
        }
        Ok(())
    }
}

/// How many CPUs the calling thread may run on, at least 1.
#[must_use]
pub fn allowed_cpus() -> usize {
    sched::affinity().map_or(1, |cpus| cpus.len().max(1))
}

/// The group of that name in every hierarchy.
fn groups(roots: &Roots, path: &Path) -> Result<Vec<cgroup::Group>> {
    if path.is_absolute() {
        return cgroup::everywhere(roots, &inside(roots, path));
    }
    // Where a service manager made the process's group, the process may make groups below it
    // (Delegate=), and only there.
    let below = |own: cgroup::Group| {
        let path = format!("{}{}", own.path().trim_end_matches('/'), inside(roots, path));
        cgroup::Group::at(roots, own.kind(), &path)
    };
    let groups = cgroup::own(roots)?.into_iter().map(below);
    Ok(groups.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// The path inside a hierarchy of a directory below the cgroup mount.
///
/// `/sys/fs/cgroup/prezero`, `/sys/fs/cgroup/unified/prezero` and `/prezero` are one group: on a
/// hybrid host the first component below the mount names a hierarchy.
fn inside(roots: &Roots, path: &Path) -> String {
    let below = path.strip_prefix(&roots.cgroup).unwrap_or(path);
    let mut names: Vec<_> = below
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            Component::ParentDir => Some("..".to_owned()),
            _ => None,
        })
        .collect();
    let is_hierarchy = |name: &str| {
        let dir = roots.cgroup.join(name);
        name == "unified" && dir.join("cgroup.controllers").exists()
            || dir.join("cgroup.sane_behavior").exists()
            || dir.join("release_agent").exists()
    };
    if below != path && names.first().is_some_and(|name| is_hierarchy(name)) {
        names.remove(0);
    }
    format!("/{}", names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn every_way_to_name_a_group_means_the_same_one() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["unified/cgroup.controllers", "cpu/release_agent", "cpu/cgroup.procs"] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let roots = Roots { cgroup: dir.path().to_owned(), ..Roots::default() };
        for path in ["unified/a/b", "cpu/a/b", "a/b"] {
            assert_eq!(inside(&roots, &dir.path().join(path)), "/a/b", "{path}");
        }
        assert_eq!(inside(&roots, Path::new("/a/b")), "/a/b");
        assert_eq!(inside(&roots, dir.path()), "/");
    }

    // Promise P193.
    #[test]
    fn group_without_slash_is_below_the_own_in_each_hierarchy() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["cgroup/unified/cgroup.controllers", "cgroup/cpu/cgroup.procs", "proc/self/x"]
        {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        fs::write(dir.path().join("proc/self/cgroup"), "4:cpu:/a\n0::/b/c.service\n").unwrap();
        let (cgroup, proc) = (dir.path().join("cgroup"), dir.path().join("proc"));
        let roots = Roots { cgroup: cgroup.clone(), proc, ..Roots::default() };
        let found = groups(&roots, Path::new("workers")).unwrap();
        let dirs: Vec<_> = found.iter().map(cgroup::Group::dir).collect();
        assert_eq!(
            dirs,
            [cgroup.join("unified/b/c.service/workers"), cgroup.join("cpu/a/workers")]
        );
        assert!(groups(&roots, Path::new("../x")).is_err());
    }

    #[test]
    fn a_group_outside_the_hierarchy_is_refused() {
        let roots = Roots::default();
        let context = Context { cgroup: Some("/a/../../b".into()), ..Context::default() };
        assert!(context.apply(&roots).unwrap_err().to_string().contains("without .."));
    }
}
