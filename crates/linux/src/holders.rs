// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which processes have a file open or map it, and which might pin pages.
//!
//! A search reads `/proc/PID/maps` and the links in `/proc/PID/fd` of every process: 0.3 ms for
//! one of 100 mappings, 25 ms for one of 20,000. The former waits for whoever changes the mappings
//! of the process right then, so that it belongs on a thread of its own. Needs CAP_SYS_PTRACE for
//! processes of other users.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Instant;

use crate::roots::Roots;

/// What links of descriptors begin with by which pages get pinned: `io_uring`, VFIO, RDMA.
const PINNERS: [&str; 3] = ["anon_inode:[io_uring]", "/dev/vfio/", "/dev/infiniband/"];

/// What shows in `/proc` that a file is a certain one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Its device's major and minor number.
    pub(crate) device: (u32, u32),
    /// Its number there.
    pub(crate) inode: u64,
    /// What paths to it end in, as links of descriptors have them.
    pub(crate) tail: String,
}

/// One process that has one of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holding {
    /// The process.
    pub pid: u32,
    /// The file's place among those looked for.
    pub file: usize,
    /// Whether it maps it; else it has it open.
    pub maps: bool,
}

/// What a search came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// Each process and file once, and once more if it both maps it and has it open.
    pub holdings: Vec<Holding>,
    /// Processes that have what pins pages, whosever.
    pub pinners: Vec<u32>,
    /// Whether every process that may be looked at was.
    pub complete: bool,
}

/// Looks for `files` in all processes but this one, until all were looked at or it is `end`.
///
/// Processes that end meanwhile, and those that may not be looked at, have nothing.
#[must_use]
pub fn search(roots: &Roots, files: &[Identity], end: Instant) -> Search {
    let by_inode: BTreeMap<u64, usize> =
        files.iter().enumerate().map(|(at, file)| (file.inode, at)).collect();
    let mut found = Search { complete: true, ..Search::default() };
    let own = std::process::id();
    let names = fs::read_dir(&roots.proc).into_iter().flatten().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids.filter(|pid| *pid != own) {
        if Instant::now() >= end {
            found.complete = false;
            break;
        }
        let dir = roots.proc.join(pid.to_string());
        let mut maps = mapped(&dir, files, &by_inode);
        let (mut opens, may_pin) = open(&dir, files, &by_inode);
        for (files, maps) in [(&mut maps, true), (&mut opens, false)] {
            files.sort_unstable();
            files.dedup();
            found.holdings.extend(files.iter().map(|file| Holding { pid, file: *file, maps }));
        }
        if may_pin {
            found.pinners.push(pid);
        }
    }
    found
}

/// The files that a process maps: `start-end rights offset major:minor inode path` each.
fn mapped(dir: &Path, files: &[Identity], by_inode: &BTreeMap<u64, usize>) -> Vec<usize> {
    let Ok(maps) = fs::File::open(dir.join("maps")) else { return Vec::new() };
    let file_of = |line: String| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let (major, minor) = fields.next()?.split_once(':')?;
        let number = |hex| u32::from_str_radix(hex, 16).ok();
        let device = (number(major)?, number(minor)?);
        let at = *by_inode.get(&fields.next()?.parse().ok()?)?;
        (files[at].device == device).then_some(at)
    };
    // What is no text is the path of somebody else's file.
    let lines = BufReader::new(maps).split(b'\n').map_while(Result::ok);
    lines.filter_map(|line| file_of(String::from_utf8_lossy(&line).into_owned())).collect()
}

/// The files that a process has open, and whether it has what pins pages. Opens and stats nothing:
/// a file system of somebody's own may never answer.
fn open(dir: &Path, files: &[Identity], by_inode: &BTreeMap<u64, usize>) -> (Vec<usize>, bool) {
    let (mut found, mut may_pin) = (Vec::new(), false);
    for entry in fs::read_dir(dir.join("fd")).into_iter().flatten().flatten() {
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        let Some(link) = link.to_str() else { continue };
        may_pin |= PINNERS.iter().any(|begin| link.starts_with(begin));
        let link = link.strip_suffix(" (deleted)").unwrap_or(link);
        if !files.iter().any(|file| link.ends_with(&file.tail)) {
            continue;
        }
        let info = fs::read_to_string(dir.join("fdinfo").join(entry.file_name()));
        let inode = info.ok().and_then(|info| {
            info.lines().find_map(|line| line.strip_prefix("ino:")?.trim().parse::<u64>().ok())
        });
        let at = inode.and_then(|inode| by_inode.get(&inode));
        found.extend(at.filter(|at| link.ends_with(&files[**at].tail)));
    }
    (found, may_pin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn identity(inode: u64, tail: &str) -> Identity {
        Identity { device: (0, 0x2c), inode, tail: tail.to_owned() }
    }

    #[test]
    fn mappings_and_descriptors_are_told_from_those_of_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let process = |pid: &str, maps: &str, links: &[(&str, u64)]| {
            let of = dir.path().join(pid);
            fs::create_dir_all(of.join("fd")).unwrap();
            fs::create_dir_all(of.join("fdinfo")).unwrap();
            fs::write(of.join("maps"), maps).unwrap();
            for (nth, (link, inode)) in links.iter().enumerate() {
                std::os::unix::fs::symlink(link, of.join("fd").join(nth.to_string())).unwrap();
                let info = format!("pos:\t0\nflags:\t02\nmnt_id:\t9\nino:\t{inode}\n");
                fs::write(of.join("fdinfo").join(nth.to_string()), info).unwrap();
            }
        };
        let line = |device: &str, inode: u64| {
            format!(
                "7f0000000000-7f0000200000 rw-s 00000000 {device} {inode}   /a b/lent/b1/pages\n"
            )
        };
        process("7", &(line("00:2c", 41) + &line("00:2c", 41) + &line("00:2d", 42)), &[]);
        process(
            "8",
            "",
            &[("/x/lent/b2/pages (deleted)", 42), ("/y/pages", 42), ("/z/b2/pages", 9)],
        );
        process("9", "", &[("anon_inode:[io_uring]", 3)]);
        fs::create_dir(dir.path().join("self")).unwrap();
        let roots = Roots { proc: dir.path().to_owned(), ..Roots::default() };
        let files = [identity(41, "/b1/pages"), identity(42, "/b2/pages")];
        let end = Instant::now() + Duration::from_secs(60);
        let mut found = search(&roots, &files, end);
        found.holdings.sort_unstable();
        let held =
            [Holding { pid: 7, file: 0, maps: true }, Holding { pid: 8, file: 1, maps: false }];
        assert_eq!(found.holdings, held);
        assert_eq!((found.pinners, found.complete), (vec![9], true));
        assert!(!search(&roots, &files, Instant::now()).complete);
    }
}
