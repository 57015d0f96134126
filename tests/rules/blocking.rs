// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every call of the daemon that names a file, a user or a program, or sleeps, can wait for another
//! process. One thread serves all callers, so each of these calls is reviewed once, in
//! [`REVIEWED`]: another thread makes it, or it comes before the first caller, or there is a
//! reason.
//!
//! A new call fails here, with its file and line, until its row is added. Prefer another thread
//! (`user_queues`, `spawn_blocking`), or a file that was opened before
//! (`linux::meminfo::NodeMeter`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{files, read};

const DAEMON: &str = "crates/daemon/src";
const LINUX: &str = "crates/linux/src";

/// Who makes a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    /// The daemon's one thread, before it serves or after it has.
    Start,
    /// Another thread.
    Thread,
    /// The daemon's one thread, while others wait.
    Serving,
}

use By::{Serving, Start, Thread};

/// File, call, how often it is there, who makes it, and why it may.
const REVIEWED: &[(&str, &str, usize, By, &str)] = &[
    ("peers/account.rs", "::from_name", 1, Thread, "`subordinates`, and at the start"),
    ("peers/account.rs", "fs::metadata", 1, Serving, "once a second, of a file that is root's"),
    ("peers/account.rs", "fs::read_to_string", 1, Thread, "`subordinates`, and at the start"),
    (
        "peers/account.rs",
        "user_ns::maker",
        1,
        Serving,
        "who has a right; procfs of its own process",
    ),
    (
        "service/control.rs",
        "process::resident",
        1,
        Serving,
        "the daemon's own process, at a scrape",
    ),
    (
        "service/control.rs",
        "process::cpu_time",
        1,
        Serving,
        "the daemon's own workers, a tenth of the time",
    ),
    ("tasks/delegated.rs", "Command::new", 1, Serving, "a program that is root's"),
    ("api/tree/mod.rs", "fs::statfs", 1, Thread, "whether an old mount is served"),
    ("api/tree/mod.rs", "fuse::find", 1, Start, "before the tree is mounted"),
    ("api/tree/mod.rs", "fuse::mount", 1, Start, "mounts the tree"),
    (
        "api/tree/permits.rs",
        "PeerGroups::from_request",
        1,
        Thread,
        "a user queue of the caller's account",
    ),
    (
        "api/varlink/acceptor.rs",
        "thread::sleep",
        1,
        Thread,
        "`acceptor`, which has no descriptor left",
    ),
    (
        "base/files.rs",
        "File::options",
        2,
        Serving,
        "`drained`, sizes of pools; the lock at the start",
    ),
    ("base/files.rs", "fs::rename", 1, Serving, "`drained`, and sizes of pools when they change"),
    ("storage/kernel/mod.rs", "Device::open", 1, Start, "the kernel's device"),
    ("storage/leases.rs", "LeaseDir::open_in", 1, Start, "and for a page size that a reload adds"),
    ("storage/proof.rs", "fs::read_to_string", 2, Start, "what the last daemon has measured"),
    ("storage/provider.rs", "CpuMeter::open", 1, Serving, "once a node"),
    ("storage/provider.rs", "MemoryMeter::open", 1, Serving, "once"),
    ("storage/provider.rs", "Meter::open", 1, Serving, "once a domain"),
    (
        "storage/provider.rs",
        "NodeMeter::open",
        1,
        Start,
        "when the tree is mounted; a node that came back, once",
    ),
    (
        "storage/provider.rs",
        "hugetlb::page_sizes",
        1,
        Serving,
        "the start, and a reload, which is root's",
    ),
    (
        "storage/provider.rs",
        "numa::nodes",
        2,
        Serving,
        "the start, a reload, and a new pool: root's",
    ),
    ("storage/loan_paths.rs", ".exists", 1, Serving, "the daemon's own directory of a loan"),
    ("storage/loan_paths.rs", "Command::new", 1, Thread, "a user queue, for a time"),
    ("storage/loan_paths.rs", "DirBuilder::new", 1, Serving, "the daemon's own directories"),
    ("storage/loan_paths.rs", "File::create", 1, Serving, "the daemon's own directory of a loan"),
    ("storage/loan_paths.rs", "FileNumber::of", 1, Serving, "takes no lock of the file's"),
    ("storage/loan_paths.rs", "bind::bind", 1, Serving, "at a file of the daemon's own"),
    ("storage/loan_paths.rs", "bind::let_enter", 1, Serving, "the daemon's own directory"),
    ("storage/loan_paths.rs", "fs::read_dir", 1, Start, "what an earlier daemon left"),
    ("storage/loan_paths.rs", "fs::read_to_string", 1, Serving, "the daemon's own record"),
    ("storage/loan_paths.rs", "fs::remove_dir_all", 1, Thread, "a user queue"),
    ("storage/loan_paths.rs", "fs::remove_file", 2, Serving, "after a failed bind"),
    ("storage/loan_paths.rs", "mount::detach", 1, Thread, "a user queue"),
    ("storage/loan_paths.rs", "mount::is_mounted", 1, Thread, "a user queue"),
    ("storage/loan_paths.rs", "thread::sleep", 1, Thread, "a user queue, for a time"),
    ("storage/provider.rs", "offer::probe", 1, Start, "which provider it is"),
    ("storage/resize_job.rs", "hugetlb::configured", 1, Thread, "`resizing`"),
    ("storage/resize_job.rs", "hugetlb::counters", 3, Thread, "`resizing`"),
    ("storage/resize_job.rs", "hugetlb::set_total", 1, Thread, "`resizing`"),
    ("storage/resize_job.rs", "meminfo::available_on", 1, Thread, "`resizing`"),
    ("storage/resize_job.rs", "meminfo::node_memory", 1, Thread, "`resizing`"),
    ("storage/resize_job.rs", "psi::memory", 1, Thread, "`resizing`"),
    ("peers/rights.rs", "::from_gid", 1, Serving, "the start, and a reload, which is root's"),
    ("peers/rights.rs", "::from_name", 1, Serving, "the start, and a reload, which is root's"),
    ("service/run.rs", ".exists", 1, Start, "`prezero drain`, without a daemon"),
    ("service/run.rs", "hugetlb::page_sizes", 1, Start, "`prezero drain`, without a daemon"),
    ("service/run.rs", "hugetlb::configured", 1, Start, "`--check`, without a daemon"),
    ("service/run.rs", "meminfo::node_memory", 1, Start, "`--check`, without a daemon"),
    ("service/run.rs", "numa::nodes", 2, Start, "a start, and `prezero drain` without a daemon"),
    ("service/run.rs", "thread::sleep", 1, Start, "`prezero drain`, without a daemon"),
    ("ops/drain.rs", ".exists", 1, Start, "whether it is drained"),
    ("ops/learning.rs", ".exists", 1, Start, "what an earlier daemon had learnt"),
    ("ops/drain.rs", "fs::remove_file", 1, Serving, "`Drain`, which is the zeroing group's"),
    ("ops/resize.rs", "boot::id", 1, Start, "whose sizes are written down"),
    ("ops/resize.rs", "fs::read", 1, Start, "what the last daemon has added"),
    ("ops/learning.rs", "fs::read", 1, Start, "what the last daemon has learnt"),
    ("ops/named.rs", ".symlink_metadata", 1, Serving, "takes no lock of the file's"),
    ("storage/store.rs", ".exists", 1, Start, "and for a page size that a reload adds"),
    ("storage/store.rs", "BlockDir::open", 1, Start, "and for a page size that a reload adds"),
    ("storage/store.rs", "BlockDir::open_root", 1, Start, "and for a page size that a reload adds"),
    ("storage/store.rs", "mount::is_hugetlbfs", 1, Start, "and for a page size that a reload adds"),
    ("storage/store.rs", "mount::mount", 1, Start, "and for a page size that a reload adds"),
    ("storage/store.rs", "thread::sleep", 1, Start, "`prezero drain`, without a daemon"),
    ("ops/watchers/kernel.rs", "CountFile::open", 1, Serving, "once a domain"),
    ("ops/watchers/kernel.rs", "Device::open", 1, Serving, "once a domain"),
    ("ops/holders.rs", "process::describe", 2, Thread, "`spawn_blocking`"),
    ("ops/holders.rs", "search", 1, Thread, "`spawn_blocking`"),
    ("tasks/workers.rs", "Command::new", 1, Serving, "a program that is root's"),
    ("tasks/workers/pressure.rs", "psi::cpu", 1, Thread, "`spawn_blocking`"),
    ("base/files.rs", "OwnDir::make", 1, Start, "directories of the daemon's"),
    ("base/files.rs", "fs::chmod", 1, Serving, "sockets: the start, and a reload, which is root's"),
    (
        "base/files.rs",
        "fs::chownat",
        1,
        Serving,
        "sockets: the start, and a reload, which is root's",
    ),
    (
        "base/files.rs",
        "fs::fchmod",
        1,
        Serving,
        "sockets: the start, and a reload, which is root's",
    ),
    ("base/files.rs", "fs::fstat", 1, Serving, "sockets: the start, and a reload, which is root's"),
    (
        "base/files.rs",
        "fs::openat",
        1,
        Serving,
        "sockets: the start, and a reload, which is root's",
    ),
    (
        "base/files.rs",
        "fs::remove_file",
        1,
        Serving,
        "`drained`, and sizes of pools when they change",
    ),
    ("base/files.rs", "fs::unlinkat", 1, Serving, "sockets: the start, a reload, and the end"),
    (
        "base/user_queues.rs",
        "thread::sleep",
        3,
        Thread,
        "a user queue's rest; and the end of the daemon",
    ),
    ("ops/returning.rs", "MemoryMeter::open", 1, Start, "reads memory errors from then on"),
];

/// Calls of other crates that name something, or sleep.
const OF_OTHERS: &[&str] = &[
    ".canonicalize",
    ".exists",
    ".is_dir",
    ".is_file",
    ".metadata",
    ".read_dir",
    ".read_link",
    ".symlink_metadata",
    ".try_exists",
    "::bind",
    "::from_gid",
    "::from_name",
    "::from_uid",
    "Command::new",
    "DirBuilder::new",
    "File::create",
    "File::create_new",
    "File::open",
    "File::options",
    "OpenOptions::new",
    "UnixStream::connect",
    "thread::sleep",
];

/// A source without its comments, its imports and the tests at its end, by lines.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = text.lines().enumerate();
    let lines = lines.map(|(at, line)| (at + 1, line.split("//").next().unwrap_or_default()));
    lines.filter(|(_, line)| !line.trim_start().trim_start_matches("pub ").starts_with("use "))
}

/// The functions of `linux` that take a path, or the roots of the kernel's: as a call names them,
/// by their type or module, and those that are called by their name alone.
fn of_linux() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in files().iter().filter(|path| path.starts_with(LINUX)) {
        if path.extension().is_none_or(|e| e != "rs")
            || path.starts_with("crates/linux/src/testkit")
        {
            continue;
        }
        let module = match path.file_stem().and_then(|stem| stem.to_str()) {
            Some("mod") => path.parent().and_then(Path::file_name).and_then(|name| name.to_str()),
            stem => stem,
        };
        let module = module.expect("a plain name").to_owned();
        let text = read(path);
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let mut owner = module.clone();
        let mut rest = text;
        while let Some((line, after)) = rest.split_once('\n') {
            if let Some(of) = line.strip_prefix("impl").filter(|of| of.starts_with([' ', '<'])) {
                let of = of.rsplit(" for ").next().unwrap_or(of);
                let of = of.trim_start_matches(|c: char| !c.is_alphabetic());
                owner = of.chars().take_while(|c| c.is_alphanumeric()).collect();
            } else if line == "}" {
                owner.clone_from(&module);
            } else if let Some(signature) = line.trim_start().strip_prefix("pub fn ") {
                let name: String =
                    signature.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let whole = &rest[..rest.find('{').unwrap_or(rest.len())];
                if whole.contains("Roots") || whole.contains("Path") {
                    found.insert(format!("{owner}::{name}"));
                }
            }
            rest = after;
        }
    }
    found
}

/// The calls in a line of code.
fn calls(line: &str, of_linux: &BTreeSet<String>, imported: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices('(') {
        let before = &line[..at];
        let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let begin = before.rfind(|c| !is_name(c)).map_or(0, |last| last + 1);
        let (path, is_method) = (&before[begin..], before[..begin].ends_with('.'));
        let mut parts = path.rsplit("::");
        let (name, owner) = (parts.next().unwrap_or_default(), parts.next());
        let known = match owner {
            _ if is_method => format!(".{name}"),
            Some("fs") => format!("fs::{name}"),
            Some(owner) if of_linux.contains(&format!("{owner}::{name}")) => {
                format!("{owner}::{name}")
            }
            Some(owner) => match OF_OTHERS.contains(&format!("{owner}::{name}").as_str()) {
                true => format!("{owner}::{name}"),
                false => format!("::{name}"),
            },
            None if imported.contains(name) => name.to_owned(),
            None => continue,
        };
        let is_watched = known.starts_with("fs::")
            || of_linux.contains(&known)
            || imported.contains(&known)
            || OF_OTHERS.contains(&known.as_str());
        if is_watched {
            found.push(known);
        }
    }
    // Functions handed over to be called, as in `.map(std::fs::remove_file)`.
    let (_, handed) = line.split_once("(std::fs::").unwrap_or_default();
    let name: String = handed.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    if !name.is_empty() {
        found.push(format!("fs::{name}"));
    }
    found
}

/// Functions of `linux`'s modules that a source imports by name.
fn imports(text: &str, of_linux: &BTreeSet<String>) -> BTreeSet<String> {
    let uses = text.lines().filter_map(|line| line.strip_prefix("use linux::")?.split_once("::"));
    let names = |(module, names): (&str, &str)| {
        let names = names.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let of = names.filter(|name| of_linux.contains(&format!("{module}::{name}")));
        of.map(str::to_owned).collect::<Vec<_>>()
    };
    uses.flat_map(names).collect()
}

// Promise P249 (tree): Each call of the daemon that names a file, a user or a program, or sleeps,
// is reviewed: another thread makes it, or the review says why the thread that serves may.
#[test]
fn every_call_that_can_wait_is_reviewed() {
    let of_linux = of_linux();
    assert!(of_linux.contains("meminfo::node_memory") && of_linux.contains("BlockDir::open"));
    let mut found: BTreeMap<(String, String), Vec<usize>> = BTreeMap::new();
    for path in files() {
        let Ok(inside) = path.strip_prefix(DAEMON) else { continue };
        let inside = inside.to_str().expect("a plain name");
        let is_test = |part: &str| matches!(part, "tests" | "tests.rs" | "testkit.rs");
        if !inside.ends_with(".rs") || inside.split('/').any(is_test) {
            continue;
        }
        let text = read(&path);
        let imported = imports(&text, &of_linux);
        for (number, line) in code(&text) {
            for call in calls(line, &of_linux, &imported) {
                found.entry((inside.to_owned(), call)).or_default().push(number);
            }
        }
    }
    let mut wrong = Vec::new();
    let mut reviewed = BTreeMap::new();
    for (file, call, count, by, why) in REVIEWED {
        assert!(!why.is_empty(), "{file}: {call} by {by:?}, and why?");
        let row = ((*file).to_owned(), (*call).to_owned());
        assert!(reviewed.insert(row, *count).is_none(), "{file}: {call} is there twice");
    }
    for ((file, call), lines) in &found {
        let count = reviewed.remove(&(file.clone(), call.clone())).unwrap_or(0);
        if count != lines.len() {
            let lines: Vec<_> =
                lines.iter().map(|line| format!("{DAEMON}/{file}:{line}")).collect();
            wrong.push(format!(
                "{} calls `{call}`, which can wait for somebody: {count} of {} are reviewed",
                lines.join(", "),
                lines.len()
            ));
        }
    }
    let gone = reviewed.keys().map(|(file, call)| format!("{file}: {call} is there no more"));
    wrong.extend(gone);
    assert!(wrong.is_empty(), "see REVIEWED of {}:\n{}", file!(), wrong.join("\n"));
}

// Promise P249.
#[test]
fn calls_that_can_wait_are_seen_in_each_of_their_forms() {
    let linux: BTreeSet<_> =
        ["meminfo::node_memory", "Meter::open", "holders::search"].map(str::to_owned).into();
    let text = "use linux::holders::{Search, search};\n// std::fs::read(\nfs::read(a)";
    let imported = imports(text, &linux);
    let seen = |line: &str| calls(line, &linux, &imported).join(" ");
    assert_eq!(seen("let a = linux::meminfo::node_memory(&roots)"), "meminfo::node_memory");
    assert_eq!(seen("Meter::open(x).or_else(|_| std::fs::read(path))"), "Meter::open fs::read");
    assert_eq!(seen("path.exists() && nix::unistd::Group::from_name(x)"), ".exists ::from_name");
    assert_eq!(seen("search(&roots); research(&roots); store.search(x)"), "search");
    assert_eq!(seen("path.map(std::fs::remove_file)"), "fs::remove_file");
    assert_eq!(seen("UnixListener::bind(a); Command::new(b)"), "::bind Command::new");
    assert_eq!(code(text).map(|(at, _)| at).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(code(text).map(|(_, line)| seen(line)).collect::<Vec<_>>(), ["", "fs::read"]);
}
