// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which processes have a file open or map it, and which might pin pages.
//!
//! A search reads `/proc/PID/maps` and the links in `/proc/PID/fd` of every process: 0.3 ms for one
//! of 100 mappings, 25 ms for one of 20,000. The former waits for a process that changes its
//! mappings right then, so the search belongs on a thread of its own. Needs CAP_SYS_PTRACE for
//! processes of other users.
//!
//! A process is more than its first thread: the first may have ended, and then its files in `/proc`
//! are empty. Any thread may have a descriptor table of its own (`CLONE_FILES`, unshare(2)). So the
//! search looks at all threads, after the first ones of all processes. Mappings, which threads
//! share, come from the first thread that has some. It reads each table once: kcmp(2) tells tables
//! apart.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Instant;

use crate::raw;
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
/// Processes that end meanwhile, and unreadable ones, have no entries.
#[must_use]
pub fn search(roots: &Roots, files: &[Identity], end: Instant) -> Search {
    let by_inode: BTreeMap<u64, usize> =
        files.iter().enumerate().map(|(at, file)| (file.inode, at)).collect();
    let mut found = Search { complete: true, ..Search::default() };
    let own = std::process::id();
    let pids: Vec<u32> = numbers(&roots.proc).filter(|pid| *pid != own).collect();
    let mut seen = Seen::default();
    // The other threads come last: however many one process has, the first ones were looked at.
    for is_first in [true, false] {
        for pid in &pids {
            let dir = roots.proc.join(pid.to_string());
            let mut look = Look { dir: &dir, files, by_inode: &by_inode, end, pid: *pid };
            let looked = if is_first { look.first(&mut seen) } else { look.others(&mut seen) };
            if !looked {
                found.complete = false;
                break;
            }
        }
    }
    let Seen { maps, opens, pinners, .. } = seen;
    for (held, maps) in [(maps, true), (opens, false)] {
        found.holdings.extend(held.into_iter().map(|(pid, file)| Holding { pid, file, maps }));
    }
    found.pinners = pinners.into_iter().collect();
    found
}

/// What a search has seen so far.
#[derive(Debug, Default)]
struct Seen {
    /// Processes and the files that they map, and have open.
    maps: BTreeSet<(u32, usize)>,
    opens: BTreeSet<(u32, usize)>,
    pinners: BTreeSet<u32>,
    /// Processes with a first thread that shows no mappings.
    mapless: BTreeSet<u32>,
}

/// A look at one process.
struct Look<'a> {
    dir: &'a Path,
    files: &'a [Identity],
    by_inode: &'a BTreeMap<u64, usize>,
    end: Instant,
    pid: u32,
}

impl Look<'_> {
    /// At its first thread; whether there was time for it.
    fn first(&mut self, seen: &mut Seen) -> bool {
        if Instant::now() >= self.end {
            return false;
        }
        if !self.mappings(self.dir, seen) {
            seen.mapless.insert(self.pid);
        }
        self.descriptors(self.dir, seen);
        true
    }

    /// At its other threads.
    fn others(&mut self, seen: &mut Seen) -> bool {
        let threads = self.dir.join("task");
        // One thread of each table, in the order in which kcmp(2) has them.
        let mut tables = vec![self.pid];
        for thread in numbers(&threads).filter(|thread| *thread != self.pid) {
            if Instant::now() >= self.end {
                return false;
            }
            let dir = threads.join(thread.to_string());
            if seen.mapless.contains(&self.pid) && self.mappings(&dir, seen) {
                seen.mapless.remove(&self.pid);
            }
            // If the kernel hides it, it is looked at.
            let known = tables.binary_search_by(|table| {
                raw::compare_descriptors(*table, thread).unwrap_or(Ordering::Less)
            });
            if let Err(at) = known {
                tables.insert(at, thread);
                self.descriptors(&dir, seen);
            }
        }
        true
    }

    /// The mappings in one thread's directory; whether there are any.
    fn mappings(&self, dir: &Path, seen: &mut Seen) -> bool {
        let Some(mapped) = mapped(dir, self.files, self.by_inode) else { return false };
        seen.maps.extend(mapped.into_iter().map(|file| (self.pid, file)));
        true
    }

    fn descriptors(&self, dir: &Path, seen: &mut Seen) {
        let (opens, may_pin) = open(dir, self.files, self.by_inode);
        seen.opens.extend(opens.into_iter().map(|file| (self.pid, file)));
        if may_pin {
            seen.pinners.insert(self.pid);
        }
    }
}

/// The names in a directory that are numbers.
fn numbers(dir: &Path) -> impl Iterator<Item = u32> {
    let names = fs::read_dir(dir).into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
}

/// The files that a thread maps: `start-end rights offset major:minor inode path` each. `None` if
/// its list is empty.
fn mapped(
    dir: &Path,
    files: &[Identity],
    by_inode: &BTreeMap<u64, usize>,
) -> Option<BTreeSet<usize>> {
    let maps = fs::File::open(dir.join("maps")).ok()?;
    let file_of = |line: String| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let (major, minor) = fields.next()?.split_once(':')?;
        let number = |hex| u32::from_str_radix(hex, 16).ok();
        let device = (number(major)?, number(minor)?);
        let at = *by_inode.get(&fields.next()?.parse().ok()?)?;
        (files[at].device == device).then_some(at)
    };
    // Other bytes than UTF-8 are the path of another program's file.
    let mut lines = BufReader::new(maps).split(b'\n').map_while(Result::ok).peekable();
    lines.peek()?;
    Some(lines.filter_map(|line| file_of(String::from_utf8_lossy(&line).into_owned())).collect())
}

/// The open files of a thread, and whether one of them pins pages. Opens and stats no file: another
/// user's file system may never answer.
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
    use crate::error::Errno;
    use std::time::Duration;

    const FILES: [(u64, &str); 2] = [(41, "/b1/pages"), (42, "/b2/pages")];
    /// A number above all that kernels give to threads: kcmp(2) fails.
    const THREAD: &str = "4194399";

    fn line(device: &str, inode: u64) -> String {
        format!("7f0000000000-7f0000200000 rw-s 00000000 {device} {inode}   /a b/lent/b1/pages\n")
    }

    /// Processes, or threads of theirs, with what they map and have open.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn has(&self, of: &str, maps: &str, links: &[(&str, u64)]) {
            let of = self.0.path().join(of);
            fs::create_dir_all(of.join("fd")).unwrap();
            fs::create_dir_all(of.join("fdinfo")).unwrap();
            fs::write(of.join("maps"), maps).unwrap();
            for (nth, (link, inode)) in links.iter().enumerate() {
                std::os::unix::fs::symlink(link, of.join("fd").join(nth.to_string())).unwrap();
                let info = format!("pos:\t0\nflags:\t02\nmnt_id:\t9\nino:\t{inode}\n");
                fs::write(of.join("fdinfo").join(nth.to_string()), info).unwrap();
            }
        }

        fn search(&self, time: Duration) -> Search {
            let roots = Roots { proc: self.0.path().to_owned(), ..Roots::default() };
            let identity = |(inode, tail): (u64, &str)| Identity {
                device: (0, 0x2c),
                inode,
                tail: tail.to_owned(),
            };
            let mut found = search(&roots, &FILES.map(identity), Instant::now() + time);
            found.holdings.sort_unstable();
            found
        }
    }

    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    // Promise P122.
    #[test]
    fn mappings_and_descriptors_of_other_files_are_excluded() {
        let tree = Tree::new();
        tree.has("7", &(line("00:2c", 41) + &line("00:2c", 41) + &line("00:2d", 42)), &[]);
        let open = [("/x/lent/b2/pages (deleted)", 42), ("/y/pages", 42), ("/z/b2/pages", 9)];
        tree.has("8", "", &open);
        tree.has("9", "", &[("anon_inode:[io_uring]", 3)]);
        fs::create_dir(tree.0.path().join("self")).unwrap();
        let found = tree.search(TEST_TIMEOUT);
        let held =
            [Holding { pid: 7, file: 0, maps: true }, Holding { pid: 8, file: 1, maps: false }];
        assert_eq!(found.holdings, held);
        assert_eq!((found.pinners, found.complete), (vec![9], true));
        assert!(!tree.search(Duration::ZERO).complete);
    }

    // Promise P263.
    #[test]
    fn a_thread_shows_what_the_first_one_of_its_process_does_not() {
        let tree = Tree::new();
        // The first one has ended.
        tree.has("7", "", &[]);
        tree.has("7/task/7", "", &[]);
        tree.has(&format!("7/task/{THREAD}"), &line("00:2c", 41), &[("/x/b2/pages", 42)]);
        // This one has descriptors of its own, and the mappings of all.
        tree.has("8", &line("00:2d", 9), &[]);
        tree.has(&format!("8/task/{THREAD}"), &line("00:2c", 41), &[("/x/b1/pages", 41)]);
        let found = tree.search(TEST_TIMEOUT);
        let held = [
            Holding { pid: 7, file: 0, maps: true },
            Holding { pid: 7, file: 1, maps: false },
            Holding { pid: 8, file: 0, maps: false },
        ];
        assert_eq!((found.holdings, found.complete), (held.to_vec(), true));
    }

    // Promise P263.
    #[test]
    fn a_table_is_read_once_however_many_threads_share_it() {
        let pid = std::process::id();
        let thread = std::thread::spawn(move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            raw::compare_descriptors(pid, own)
        });
        match thread.join().unwrap() {
            Ok(order) => assert_eq!(order, Ordering::Equal),
            Err(errno) => assert!([Errno::NOSYS, Errno::PERM].contains(&errno), "{errno}"),
        }
        assert!(raw::compare_descriptors(pid, 4_194_399).is_err());
    }
}
