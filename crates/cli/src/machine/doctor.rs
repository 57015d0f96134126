// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks of this machine for prezero, each with the command that changes it.
//!
//! Every check is one function that reads and reports without changes. Two checks use a file on a
//! mount of their own, which is gone before the check returns: whether write leases work on
//! hugetlbfs, and whether pins are visible; the latter takes a page meanwhile.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linux::process::maps_pages_of;
use linux::{
    BlockDir, Exclusivity, HugetlbMount, Result, Roots, cgroup, cpu, exclusive, hugetlb,
    kernel::{Offer, offer},
    meminfo, mount, numa, psi,
};
use pins::PinProbe;
use serde::Serialize;
use units::{Bytes, Node, PageSize, Pages};

use super::is_root;

/// For how long processes are looked through for mappings of huge pages.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(5);

/// Version 1 writes no limit as the largest multiple of a page below 2^63.
const UNLIMITED: u64 = 1 << 62;

/// How a finding is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// As it should be.
    Ok,
    /// Works, but not all of it or not at its best.
    Warn,
    /// prezero cannot do its work until this is changed.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// How it is meant.
    pub(crate) level: Severity,
    /// The subject of the check: one word or two.
    pub(crate) subject: String,
    /// The finding, with numbers.
    pub(crate) found: String,
    /// What to change, where something should be.
    pub(crate) change: Option<String>,
    /// The command for that.
    pub(crate) command: Option<String>,
}

impl Finding {
    /// A finding that asks for nothing.
    pub(crate) fn new(level: Severity, subject: &str, found: impl Into<String>) -> Self {
        Self { level, subject: subject.into(), found: found.into(), change: None, command: None }
    }

    /// The same with what to change.
    #[must_use]
    pub(crate) fn change(mut self, change: impl Into<String>) -> Self {
        self.change = Some(change.into());
        self
    }

    /// The same with the command for it.
    #[must_use]
    pub(crate) fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }
}

/// Looks at everything. A check that fails is a finding, too: a strange machine is what this is
/// for. `scratch` is an empty directory that a hugetlbfs may be mounted on for a moment.
#[must_use]
pub(crate) fn examine(roots: &Roots, scratch: &Path) -> Vec<Finding> {
    type Check<'a> = (&'a str, &'a dyn Fn() -> Result<Vec<Finding>>);
    let checks: [Check<'_>; 11] = [
        ("kernel", &|| kernel(roots)),
        ("numa", &|| nodes(roots)),
        ("huge pages", &|| pools(roots)),
        ("struct pages", &|| struct_pages(roots)),
        ("fragmentation", &|| fragmentation(roots)),
        ("mounts", &|| mounts(roots)),
        ("leases", &|| leases(roots, scratch)),
        ("pins", &|| pins(roots, scratch)),
        ("cgroups", &|| groups(roots)),
        ("pressure", &|| pressure(roots)),
        ("thp", &|| Ok(vec![transparent(roots)])),
    ];
    let run = |(subject, check): &Check<'_>| {
        check()
            .unwrap_or_else(|error| vec![Finding::new(Severity::Warn, subject, error.to_string())])
    };
    let rights = if is_root() {
        Finding::new(Severity::Ok, "rights", "root")
    } else {
        Finding::new(
            Severity::Warn,
            "rights",
            "not root: huge pages can neither be reserved nor owned",
        )
        .change("run the daemon as root; borrowing needs no rights of its own")
        .command("sudo prezero serve")
    };
    std::iter::once(rights).chain(checks.iter().flat_map(run)).collect()
}

fn kernel(roots: &Roots) -> Result<Vec<Finding>> {
    let release = cpu::describe(roots)?.kernel_release;
    Ok(vec![
        if version(&release) < (5, 14) {
            Finding::new(Severity::Bad, "kernel", release)
                .change("Linux 5.14 or newer is needed (MADV_POPULATE_WRITE)")
        } else {
            Finding::new(Severity::Ok, "kernel", release)
        },
        provider(&offer::probe(roots)?),
    ])
}

/// Which provider `serve` picks, and what of the series was found.
fn provider(offer: &Offer) -> Finding {
    let subject = "provider";
    let query = offer.query_bytes.map(|bytes| format!(", query of {bytes} bytes"));
    let origin = offer.origin.as_ref().map(|origin| format!(" ({origin})")).unwrap_or_default();
    let kernel = format!("this kernel: {}{}{origin}", offer.kernel, query.unwrap_or_default());
    if let Some(missing) = offer.missing {
        return Finding::new(Severity::Warn, subject, format!("stock; {kernel}"))
            .change(format!("{missing}: look at the device's node and its rights"))
            .command("ls -l /dev/hugepagectl; cat /sys/class/misc/hugepagectl/dev");
    }
    match offer.effective() {
        offer::Support::Stock => Finding::new(Severity::Ok, subject, format!("stock; {kernel}")),
        used if offer.kernel > used => Finding::new(
            Severity::Ok,
            subject,
            format!("kernel; {kernel}, newer than this prezero knows: {used} is used"),
        ),
        _ if !offer.files => Finding::new(
            Severity::Warn,
            subject,
            format!("kernel; {kernel}, but no files in sysfs"),
        )
        .change("watches and thresholds look once a second instead of being woken"),
        _ => Finding::new(
            Severity::Ok,
            subject,
            format!("kernel; {kernel}, files that can be polled"),
        ),
    }
}

/// `6.1.0-28-amd64` is (6, 1); a text without numbers is (0, 0).
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn nodes(roots: &Roots) -> Result<Vec<Finding>> {
    let nodes = numa::nodes(roots)?;
    let each =
        nodes.iter().map(|&node| Ok(format!("node {node}: cpus {}", numa::cpus_of(roots, node)?)));
    let each = each.collect::<Result<Vec<_>>>()?.join("; ");
    Ok(vec![Finding::new(Severity::Ok, "numa", format!("{} with memory ({each})", nodes.len()))])
}

fn pools(roots: &Roots) -> Result<Vec<Finding>> {
    let sizes = hugetlb::page_sizes(roots)?;
    if sizes.is_empty() {
        return Ok(vec![
            Finding::new(Severity::Bad, "huge pages", "this kernel has none")
                .change("a kernel with CONFIG_HUGETLBFS is needed; without it only --plain works"),
        ]);
    }
    let mut findings = Vec::new();
    let mut total = 0;
    for node in numa::nodes(roots)? {
        for &size in &sizes {
            let pool = hugetlb::counters(roots, size, Some(node))?;
            total += pool.total;
            let surplus = if pool.surplus > 0 {
                format!(", {} surplus", pool.surplus)
            } else {
                String::new()
            };
            // Promises are counted on all nodes together.
            let all = hugetlb::counters(roots, size, None);
            let free = all.map_or(pool.free, |all| all.unreserved_free().min(pool.free));
            let promised = pool.free - free;
            let is_mapped = || maps_pages_of(roots, size, Instant::now() + MEASURE_TIMEOUT);
            let is_lost = promised > 0 && is_mapped() == Some(false);
            let of_others = match promised {
                0 => String::new(),
                _ if is_lost => format!(", {promised} promised, and no process maps any"),
                _ => format!(", {promised} promised to programs that have mapped them"),
            };
            let found = format!(
                "node {node}, {size}: {} reserved, {free} free{of_others}{surplus}",
                pool.total
            );
            findings.push(if is_lost {
                Finding::new(Severity::Warn, "huge pages", found)
                    .change("a file on a hugetlbfs, a memfd or a segment of System V may have the promise; if none does, the kernel has lost count until the next boot")
                    .command("ipcs -m; grep hugetlbfs /proc/mounts")
            } else if free == 0 && promised > 0 {
                Finding::new(Severity::Warn, "huge pages", found)
                    .change("nobody else can have what is promised: end those programs, or reserve more")
                    .command(reserve_command(roots, node, size, pool.total + promised))
            } else {
                Finding::new(Severity::Ok, "huge pages", found)
            });
        }
    }
    if total == 0 {
        let (node, size) = (numa::nodes(roots)?.first().copied().unwrap_or(Node(0)), sizes[0]);
        findings.push(
            Finding::new(Severity::Bad, "huge pages", "none is reserved: there is nothing to lend")
                .change("reserve some, here 1 GiB of them; at boot 1 GiB pages are surest: hugepagesz=1G hugepages=N")
                .command(reserve_command(roots, node, size, ((1 << 30) / size.bytes()).max(1))),
        );
    }
    Ok(findings)
}

fn reserve_command(roots: &Roots, node: Node, size: PageSize, pages: u64) -> String {
    let per_node = roots.sys.join("devices/system/node").exists();
    let parent =
        if per_node { format!("devices/system/node/node{node}") } else { "kernel/mm".into() };
    format!(
        "echo {pages} | sudo tee {}/{parent}/hugepages/hugepages-{}kB/nr_hugepages",
        roots.sys.display(),
        size.kib()
    )
}

/// Linux 6.12.117 loses each page that leaves the pool where struct pages are given back: its tail
/// pages come back as copies of the head (`kernel/README.md`). The series mends it.
fn struct_pages(roots: &Roots) -> Result<Vec<Finding>> {
    let subject = "struct pages";
    let path = roots.proc.join("sys/vm/hugetlb_optimize_vmemmap");
    let on = std::fs::read_to_string(path).is_ok_and(|text| text.trim() != "0");
    let release = cpu::describe(roots)?.kernel_release;
    let stock = matches!(offer::probe(roots)?.kernel, offer::Support::Stock);
    Ok(vec![match (on, version(&release) == (6, 12) && stock) {
        (false, _) => Finding::new(Severity::Ok, subject, "huge pages keep all of theirs"),
        (true, false) => Finding::new(Severity::Ok, subject, "those of huge pages are given back (HVO)"),
        (true, true) => Finding::new(
            Severity::Warn,
            subject,
            "those of huge pages are given back (HVO): Linux 6.12.117 loses each page that leaves \
             the pool then, other 6.12 were not looked at",
        )
        .change(
            "boot without hugetlb_free_vmemmap=on, or never make a pool smaller, as resizable pools do",
        )
        .command("grep -o 'hugetlb_free_vmemmap=[a-z]*' /proc/cmdline"),
    }])
}

fn fragmentation(roots: &Roots) -> Result<Vec<Finding>> {
    let base = meminfo::base_page();
    let mut findings = Vec::new();
    for blocks in meminfo::free_blocks(roots)? {
        let free = blocks.free_bytes(base);
        for size in hugetlb::page_sizes(roots)? {
            let pages = blocks.obtainable(size, base);
            let in_pages = pages * size.bytes();
            let found = format!(
                "node {}: {} of {} free could be {size} pages now, {pages} of them{}",
                blocks.node,
                mib(in_pages),
                mib(free),
                if size.bytes() > 64 << 20 { " at most" } else { "" },
            );
            // Below half, reserving has to migrate pages and may fail.
            findings.push(if in_pages >= free / 2 || free < size.bytes() {
                Finding::new(Severity::Ok, "fragmentation", found)
            } else {
                Finding::new(Severity::Warn, "fragmentation", found)
                    .change("compact memory before reserving, or reserve at boot")
                    .command("echo 1 | sudo tee /proc/sys/vm/compact_memory")
            });
        }
    }
    Ok(findings)
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn mounts(roots: &Roots) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    for size in hugetlb::page_sizes(roots)? {
        let dirs = mount::find(roots, size)?;
        found.extend(dirs.iter().map(|mount| format!("{size} at {}", mount.dir.display())));
    }
    let found = if found.is_empty() { "no hugetlbfs".into() } else { found.join(", ") };
    Ok(vec![Finding::new(Severity::Ok, "mounts", format!("{found}; the daemon mounts its own"))])
}

fn leases(roots: &Roots, scratch: &Path) -> Result<Vec<Finding>> {
    let Some(&size) = hugetlb::page_sizes(roots)?.first() else { return Ok(Vec::new()) };
    if !is_root() {
        let found = "not tried: mounting a hugetlbfs needs root";
        return Ok(vec![Finding::new(Severity::Ok, "leases", found)]);
    }
    let mount = mount::mount(scratch, size)?;
    let answer = lease_on(&mount);
    mount.unmount()?;
    Ok(vec![match answer? {
        Exclusivity::Sole => Finding::new(
            Severity::Ok,
            "leases",
            "write leases work on hugetlbfs: exclusivity can be proven",
        ),
        Exclusivity::Shared => {
            Finding::new(Severity::Warn, "leases", "somebody opened the file that was tried: run this again")
        }
        Exclusivity::Unsupported => Finding::new(
            Severity::Warn,
            "leases",
            "no write leases on hugetlbfs: only recycle = \"fresh\", and returned memory waits for the free counts",
        )
        .change("allow file leases")
        .command("sudo sysctl fs.leases-enable=1"),
    }])
}

/// Whether it is seen who pins pages of a file, tried on a page of each size that has a free one.
fn pins(roots: &Roots, scratch: &Path) -> Result<Vec<Finding>> {
    let subject = "pins";
    if !is_root() {
        let found = "not tried: loading a program into the kernel needs root";
        return Ok(vec![Finding::new(Severity::Ok, subject, found)]);
    }
    let unseen = |why: &dyn std::fmt::Display| {
        Finding::new(Severity::Warn, subject, why.to_string())
            .change("recycle = \"auto\" is fresh here, at more CPU time: Linux 5.17 with BTF shows pins")
            .command("ls /sys/kernel/btf/vmlinux; cat /sys/kernel/security/lockdown")
    };
    let probe = match PinProbe::load() {
        Ok(probe) => probe,
        Err(why) => return Ok(vec![unseen(&why)]),
    };
    let mut findings = Vec::new();
    for size in hugetlb::page_sizes(roots)? {
        let free = hugetlb::counters(roots, size, None)?.unreserved_free();
        if free == 0 {
            let found = format!("{size}: not tried, no page is free");
            findings.push(Finding::new(Severity::Ok, subject, found));
            continue;
        }
        let mount = mount::mount(scratch, size)?;
        let rest = rest_on(&mount, &probe, size);
        mount.unmount()?;
        findings.push(match rest {
            Ok(Ok(_)) => Finding::new(
                Severity::Ok,
                subject,
                format!("{size}: pinned pages are seen, recycle = \"auto\" is in place"),
            ),
            Ok(Err(why)) => unseen(&format!("{size}: {why}")),
            Err(error) if error.is_no_space() => none_for_this(roots, size, free)?,
            Err(error) => return Err(error),
        });
    }
    Ok(findings)
}

/// Pages are free, and this process cannot have one: that says nothing about the kernel.
fn none_for_this(roots: &Roots, size: PageSize, free: u64) -> Result<Finding> {
    let status = std::fs::read_to_string(roots.proc.join("self/status")).unwrap_or_default();
    let nodes = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    let nodes = nodes.map_or("unknown nodes".to_owned(), |list| format!("nodes {}", list.trim()));
    let limit = match hugetlb_limit(roots, &cgroup::own(roots)?, size) {
        Some((limit, file)) => format!(", its limit is {limit} in {}", file.display()),
        None => String::new(),
    };
    let free = Pages(free).bytes(size);
    let found = format!(
        "{size}: not tried: {free} are free, none for this process (its cpuset allows {nodes}{limit})"
    );
    Ok(Finding::new(Severity::Ok, "pins", found))
}

type Measured = std::result::Result<pins::Rest, pins::Unavailable>;

fn rest_on(mount: &HugetlbMount, probe: &PinProbe, size: PageSize) -> Result<Measured> {
    let dir = BlockDir::open(&mount.dir, &["try"], 0o700)?;
    let file = dir.create("try", "rest")?;
    // The measure takes the second page, too.
    let page = size.bytes();
    let taken = file.set_len(2 * page).and_then(|()| file.allocate(page, page));
    let rest = taken.map(|()| probe.measure(&file, size));
    drop(file);
    dir.unlink("try", "rest")?;
    rest
}

fn lease_on(mount: &HugetlbMount) -> Result<Exclusivity> {
    let dir = BlockDir::open(&mount.dir, &["try"], 0o700)?;
    let file = dir.create("try", "lease")?;
    let answer = exclusive::prove(&file);
    dir.unlink("try", "lease")?;
    answer
}

fn groups(roots: &Roots) -> Result<Vec<Finding>> {
    let mounted = cgroup::mounted(roots);
    if mounted.is_empty() {
        return Ok(vec![
            Finding::new(Severity::Warn, "cgroups", "none mounted: workers cannot be put into one")
                .change("mount cgroup v2, or leave workers.cgroup unset"),
        ]);
    }
    let kinds: Vec<_> = mounted.iter().map(ToString::to_string).collect();
    let groups = cgroup::own(roots)?;
    let own = groups.iter().map(|group| format!("{} in {}", group.path(), group.kind()));
    let own: Vec<_> = own.collect();
    let hugetlb =
        mounted.contains(&cgroup::Kind::V1Hugetlb) || groups.iter().any(|of| charges(roots, of));
    let mut charge = if hugetlb {
        "huge pages are charged".to_owned()
    } else {
        "huge pages are not charged (no hugetlb controller)".to_owned()
    };
    for size in hugetlb::page_sizes(roots)? {
        if let Some((limit, file)) = hugetlb_limit(roots, &groups, size) {
            charge += &format!(", {size} pages up to {limit} ({})", file.display());
        }
    }
    Ok(vec![Finding::new(
        Severity::Ok,
        "cgroups",
        format!("{}; this process is {}; {charge}", kinds.join(", "), own.join(", ")),
    )])
}

/// A group's directory and those above it, up to its hierarchy's.
fn with_parents<'a>(roots: &'a Roots, group: &'a cgroup::Group) -> impl Iterator<Item = &'a Path> {
    group.dir().ancestors().take_while(|dir| dir.starts_with(&roots.cgroup))
}

/// Whether version 2 charges huge pages to a group or one above it, wherever it is mounted.
fn charges(roots: &Roots, group: &cgroup::Group) -> bool {
    let has = |dir: &Path| {
        let text = std::fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
        text.split_whitespace().any(|controller| controller == "hugetlb")
    };
    group.kind() == cgroup::Kind::V2 && with_parents(roots, group).any(has)
}

/// The lowest limit on huge pages of a size for a process in these groups, and the file with it.
pub(crate) fn hugetlb_limit(
    roots: &Roots,
    groups: &[cgroup::Group],
    size: PageSize,
) -> Option<(Bytes, PathBuf)> {
    let unit = match size.bytes() {
        bytes if bytes >= 1 << 30 => format!("{}GB", bytes >> 30),
        bytes if bytes >= 1 << 20 => format!("{}MB", bytes >> 20),
        bytes => format!("{}KB", bytes >> 10),
    };
    let names = ["max", "rsvd.max", "limit_in_bytes", "rsvd.limit_in_bytes"];
    let limit = |path: PathBuf| {
        let limit = std::fs::read_to_string(&path).ok()?.trim().parse().ok()?;
        (limit < UNLIMITED).then_some((Bytes(limit), path))
    };
    let dirs = groups.iter().flat_map(|group| with_parents(roots, group));
    dirs.flat_map(|dir| names.map(|name| dir.join(format!("hugetlb.{unit}.{name}"))))
        .filter_map(limit)
        .min()
}

fn pressure(roots: &Roots) -> Result<Vec<Finding>> {
    Ok(vec![match psi::cpu(roots)? {
        Some(now) => Finding::new(
            Severity::Ok,
            "pressure",
            format!(
                "cpu some avg10 is {:.1} %: pause_above_pressure can be used",
                now.some.avg10_percent
            ),
        ),
        None => {
            Finding::new(Severity::Warn, "pressure", "no PSI: pause_above_pressure has no effect")
                .change("boot with psi=1 (and a kernel with CONFIG_PSI)")
        }
    }])
}

fn transparent(roots: &Roots) -> Finding {
    let path = roots.sys.join("kernel/mm/transparent_hugepage/enabled");
    let found = match std::fs::read_to_string(path) {
        Ok(text) => {
            let mode = text.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
            format!("transparent huge pages: {mode} (prezero does not use them)")
        }
        Err(_) => "no transparent huge pages (prezero does not use them)".into(),
    };
    Finding::new(Severity::Ok, "thp", found)
}

#[cfg(test)]
mod tests;
