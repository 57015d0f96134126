// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own selftests for memfds and huge pages: under the shim they end as without it.
//!
//! Built from the unchanged source of Debian's package. Where one differs by design it is listed
//! here, and docs/reference/shim-differences.md says why; nothing else may.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use prezero_tests::{Daemon, Page};
use testkit::{hugepages, skip};
use units::{Node, Pages};

use super::{ALL, run, served, skip_always};

const SOURCE: &str = "/usr/src/linux-source-6.12.tar.xz";
/// What of it the selftests and their headers need.
const PARTS: [&str; 7] = ["Makefile", "Kbuild", "scripts", "include", "arch/x86", "tools", "mm"];

/// `memfd/memfd_test.c`, a part at a time: the program itself ends at its first failure, and Linux
/// 6.18 fails two of them. A second word shares the file table with an idle task.
const MEMFD: [&str; 18] = [
    "create",
    "basic",
    "exec_seal",
    "exec_no_seal",
    "noexec_seal",
    "seal_write",
    "seal_future_write",
    "seal_shrink",
    "seal_grow",
    "seal_resize",
    "share_dup",
    "share_mmap",
    "share_open",
    "share_fork",
    "share_dup x",
    "share_mmap x",
    "share_open x",
    "share_fork x",
];

/// Programs of `mm`.
const MM: [&str; 10] = [
    "hugepage-mmap",
    "hugepage-mremap",
    "hugepage-shm",
    "hugepage-vmemmap",
    "hugetlb-madvise",
    "hugetlb_dio",
    "madv_populate",
    "map_hugetlb",
    "mremap_dontunmap",
    "thuge-gen",
];

/// They compare counts of free huge pages right before and after a call. Lent pages are the
/// daemon's, so the kernel's counts stay.
const COUNTING: [&str; 3] = ["hugetlb-madvise", "hugetlb_dio", "thuge-gen"];

/// The needed part of the kernel's tree, with its headers.
fn unpack(dir: &Path) -> PathBuf {
    let tree = dir.join("linux");
    std::fs::create_dir(&tree).expect("a new directory");
    let parts = PARTS.map(|part| format!("linux-source-6.12/{part}"));
    let mut tar = Command::new("tar");
    tar.args(["-xJf", SOURCE, "--strip-components=1", "-C"]).arg(&tree).args(parts);
    assert!(tar.status().expect("tar runs").success());
    let mut make = Command::new("make");
    make.args(["-s", "ARCH=x86", "headers", "-C"]).arg(&tree).stdout(Stdio::null());
    assert!(make.status().expect("make runs").success());
    tree
}

/// Compiles sources of one of the kernel's directories.
fn compile(tree: &Path, directory: &str, sources: &[&str], flags: &[&str], out: &Path) {
    let selftests = tree.join("tools/testing/selftests");
    let mut gcc = Command::new("gcc");
    gcc.current_dir(selftests.join(directory)).args(["-w", "-O2", "-D_GNU_SOURCE=", "-isystem"]);
    gcc.arg(tree.join("usr/include")).args(["-I.", "-I.."]).args(sources).args(flags);
    let output = gcc.arg("-o").arg(out).output().expect("gcc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn build_memfd(tree: &Path, dir: &Path) -> PathBuf {
    let (object, program) = (dir.join("common.o"), dir.join("memfd_parts"));
    // The bare system call passes the shim by: the C library's takes its place.
    let flags = ["-c", "-Dsys_memfd_create=by_number"];
    compile(tree, "memfd", &["common.c"], &flags, &object);
    let parts = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/memfd_parts.c");
    let sources = [parts.to_str().expect("a plain path"), object.to_str().expect("a plain path")];
    compile(tree, "memfd", &sources, &["-D_FILE_OFFSET_BITS=64"], &program);
    program
}

/// How it ends, and what it says of its single tests.
fn ends(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter(|line| line.starts_with("ok ") || line.starts_with("not ok "));
    let lines: Vec<_> = lines.collect();
    format!("{}\n{}", lines.join("\n"), output.status)
}

#[test]
fn the_kernels_selftests_end_as_without_the_shim() {
    if std::env::var(ALL).as_deref() != Ok("1") {
        return skip_always(&format!("{ALL}=1 runs the consumers that take long"));
    }
    if !Path::new(SOURCE).exists() {
        return skip("no kernel source: apt-get install linux-source-6.12");
    }
    let page = Page::Mib2;
    let dir = tempfile::tempdir().expect("a directory");
    let tree = unpack(dir.path());
    // What configure finds: no liburing.
    std::fs::write(tree.join("tools/testing/selftests/mm/local_config.h"), "").expect("written");
    let memfd = build_memfd(&tree, dir.path());
    let mut programs: Vec<(String, PathBuf, Vec<&str>)> = Vec::new();
    for part in MEMFD {
        programs.push((part.to_owned(), memfd.clone(), part.split(' ').collect()));
    }
    for name in MM {
        let (source, out) = (format!("{name}.c"), dir.path().join(name));
        let sources = [source.as_str(), "vm_util.c", "thp_settings.c"];
        compile(&tree, "mm", &sources, &["-lrt", "-lpthread"], &out);
        programs.push((name.to_owned(), out, Vec::new()));
    }

    let Some(pages) = hugepages::reserve_all(&[(page.size(), Some(Node(0)), 420)]) else { return };
    let native: Vec<_> = programs
        .iter()
        .map(|(_, program, words)| ends(Command::new(program).args(words)))
        .collect();
    let pool = page.pool("ready_low = 190\nready_high = 200\nleave_free = 200");
    let daemon = Daemon::start_with(Some(pages), &pool, &[]);
    let (mut differ, mut said, mut calls) = (BTreeSet::new(), Vec::new(), 0);
    for ((name, program, words), native) in programs.iter().zip(native) {
        daemon.wait_for("ready", |pool| pool.ready_pages >= Pages(190));
        let log = dir.path().join("log");
        let found = ends(run(&daemon, &log, &["--shm"]).arg(program).args(words));
        if found != native {
            said.push(format!("{name}: natively {native}, under the shim {found}"));
            differ.insert(name.as_str());
        }
        calls = served(&log).len();
    }
    assert!(differ.is_subset(&BTreeSet::from(COUNTING)), "{}", said.join("\n"));
    assert!(calls > 15, "only {calls} calls were served");
    super::assert_returned(&daemon);
}
