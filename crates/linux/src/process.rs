// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What processes have used: `/proc/PID/stat` and `/proc/stat`.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use units::{Bytes, PageSize, Pages};

use crate::meminfo::base_page;
use crate::roots::Roots;

/// CPU time that all threads of a process have used so far, in user and kernel mode, to the
/// kernel's tick (10 ms on most). `None` once it was waited for.
#[must_use]
pub fn cpu_time(roots: &Roots, pid: u32) -> Option<Duration> {
    let [user, kernel, ..] = times(roots, &pid.to_string())?;
    Some(ticks(user.saturating_add(kernel)))
}

/// CPU time that this process has used so far with all children, and theirs, that were waited for.
#[must_use]
pub fn cpu_time_with_children(roots: &Roots) -> Option<Duration> {
    let all = times(roots, "self")?;
    Some(ticks(all.iter().fold(0, |sum, part| part.saturating_add(sum))))
}

/// CPU time of all CPUs in user and kernel mode and on interrupts, since the machine started; the
/// time that a virtual machine's host kept is included.
#[must_use]
pub fn machine_cpu_time(roots: &Roots) -> Option<Duration> {
    let stat = std::fs::read_to_string(roots.proc.join("stat")).ok()?;
    let numbers = stat.lines().next()?.strip_prefix("cpu ")?;
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user and nice already.
    let numbers: Vec<u64> =
        numbers.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let busy = numbers.iter().take(8).enumerate().filter(|(at, _)| !matches!(at, 3 | 4));
    Some(ticks(busy.fold(0, |sum, (_, part)| part.saturating_add(sum))))
}

/// Memory of this process that is resident.
#[must_use]
pub fn resident(roots: &Roots) -> Option<Bytes> {
    let statm = std::fs::read_to_string(roots.proc.join("self/statm")).ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(Pages(pages).bytes(base_page()))
}

/// A process, as an operator knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its effective user.
    pub uid: u32,
    /// Its command: 15 characters of it.
    pub command: String,
    /// Its control group: of version 2, else that of systemd or the first that there is.
    pub cgroup: Option<String>,
    /// When it began, since the machine's start, to the kernel's tick.
    pub began: Duration,
}

/// Describes a process. `None` if that number is unused.
#[must_use]
pub fn describe(roots: &Roots, pid: u32) -> Option<Process> {
    let dir = roots.proc.join(pid.to_string());
    let stat = std::fs::read(dir.join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (head, rest) = stat.rsplit_once(") ")?;
    let (_, command) = head.split_once('(')?;
    let began = ticks(rest.split(' ').nth(19)?.parse().ok()?);
    let status = std::fs::read(dir.join("status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    // Real, effective, saved and of file systems.
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let uid = uids.split_whitespace().nth(1)?.parse().ok()?;
    // Any program that may make control groups chooses their names.
    let cgroups = std::fs::read(dir.join("cgroup")).unwrap_or_default();
    let cgroups = String::from_utf8_lossy(&cgroups);
    let cgroup = ["0::", "1:name=systemd:", ""].iter().find_map(|begin| {
        let line = cgroups.lines().find(|line| line.starts_with(begin))?;
        Some(line.splitn(3, ':').nth(2)?.to_owned())
    });
    Some(Process { uid, command: command.to_owned(), cgroup, began })
}

/// Whether any process maps huge pages of that size, touched or not. `None` where that cannot be
/// known: a process may not be looked at, or it is `end` before all were. Walks all page tables of
/// each process: 10 ms for one of 4 GiB in small pages.
#[must_use]
pub fn maps_pages_of(roots: &Roots, size: PageSize, end: Instant) -> Option<bool> {
    let wanted = format!("{} kB", size.bytes() >> 10);
    let names = std::fs::read_dir(&roots.proc).ok()?.flatten();
    for entry in names.filter(|name| name.file_name().to_str().is_some_and(is_number)) {
        if Instant::now() >= end {
            return None;
        }
        let smaps = match std::fs::read(entry.path().join("smaps")) {
            Ok(smaps) => smaps,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return None,
            // It has ended.
            Err(_) => continue,
        };
        let sizes = smaps.split(|byte| *byte == b'\n');
        let mut sizes = sizes.filter_map(|line| line.strip_prefix(b"KernelPageSize:"));
        if sizes.any(|found| found.trim_ascii() == wanted.as_bytes()) {
            return Some(true);
        }
    }
    Some(false)
}

fn is_number(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_digit())
}

/// User and kernel time, and the same of children that were waited for.
fn times(roots: &Roots, pid: &str) -> Option<[u64; 4]> {
    let stat = std::fs::read_to_string(roots.proc.join(pid).join("stat")).ok()?;
    // The name in parentheses may have spaces and parentheses; the state follows the last one.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let mut next = || fields.next()?.parse().ok();
    Some([next()?, next()?, next()?, next()?])
}

fn ticks(number: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_micros(number.saturating_mul(1_000_000) / per_second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    // Promise P225.
    #[test]
    fn a_name_with_parentheses_hides_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("7")).unwrap();
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 6 7 39 19 1 0 1 2 3\n";
        fs::write(dir.path().join("7/stat"), stat).unwrap();
        let roots = Roots { proc: dir.path().to_owned(), ..Roots::default() };
        let ticks = u32::try_from(rustix::param::clock_ticks_per_second()).unwrap();
        assert_eq!(cpu_time(&roots, 7), Some(Duration::from_secs(200) / ticks));
        assert_eq!(cpu_time(&roots, 8), None);
        fs::write(dir.path().join("7/status"), "Name:\ta) b\nUid:\t1\t2\t3\t4\n").unwrap();
        fs::write(dir.path().join("7/cgroup"), "1:name=systemd:/a\n0::/b.slice/c:d\n").unwrap();
        let process = describe(&roots, 7).unwrap();
        assert_eq!((process.uid, process.command.as_str()), (2, "a) b"));
        assert_eq!(process.cgroup.as_deref(), Some("/b.slice/c:d"));
        assert_eq!(process.began, Duration::from_secs(1) / ticks);
        fs::write(dir.path().join("7/cgroup"), b"0::/b.slice/\xff.scope\n").unwrap();
        let cgroup = describe(&roots, 7).unwrap().cgroup;
        assert_eq!(cgroup.as_deref(), Some("/b.slice/\u{fffd}.scope"), "no name hides it");
        fs::rename(dir.path().join("7"), dir.path().join("self")).unwrap();
        assert_eq!(cpu_time_with_children(&roots), Some(Duration::from_secs(213) / ticks));
    }

    #[test]
    fn waiting_time_of_a_machine_is_not_work() {
        let dir = tempfile::tempdir().unwrap();
        let stat = "cpu  100 20 30 5000 600 7 8 9 40 50\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        fs::write(dir.path().join("stat"), stat).unwrap();
        let roots = Roots { proc: dir.path().to_owned(), ..Roots::default() };
        let ticks = u32::try_from(rustix::param::clock_ticks_per_second()).unwrap();
        assert_eq!(machine_cpu_time(&roots), Some(Duration::from_secs(174) / ticks));
    }

    // Promise P265.
    #[test]
    fn a_mapping_of_huge_pages_is_seen_before_it_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { proc: dir.path().to_owned(), ..Roots::default() };
        let maps = |size| maps_pages_of(&roots, size, Instant::now() + Duration::from_secs(60));
        let of = dir.path().join("7");
        fs::create_dir(&of).unwrap();
        assert_eq!(maps(PageSize::MIB_2), Some(false), "it has ended");
        let vma =
            |size: &str| format!("0-1 rw-s 0 00:10 7 /x\nRss: 0 kB\nKernelPageSize: {size} kB\n");
        fs::write(of.join("smaps"), vma("       4") + &vma("    2048")).unwrap();
        assert_eq!((maps(PageSize::MIB_2), maps(PageSize::GIB_1)), (Some(true), Some(false)));
        let now = Instant::now();
        assert_eq!(maps_pages_of(&roots, PageSize::GIB_1, now), None, "there was no time");
    }
}
