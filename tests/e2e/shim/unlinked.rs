// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that a program makes in a directory of huge pages and unlinks before it maps them.

use std::process::Command;

use prezero_tests::Daemon;
use units::Pages;

use super::{PAGE, assert_same, logged, reserve, served, shimmed, text};

/// What it prints, untouched and served, is the same.
const SCRIPT: &str = "
import ctypes, os, sys
mmap = ctypes.CDLL(None).mmap
mmap.restype = ctypes.c_void_p
PAGE, SHARED, PRIVATE = 2 << 20, 1, 2
libc = ctypes.CDLL(None)
def file(pages):
    path = ctypes.create_string_buffer((sys.argv[1] + '/fileXXXXXX').encode())
    fd = libc.mkstemp(path)
    os.unlink(path.value)
    libc.fstatfs(fd, ctypes.create_string_buffer(256))
    os.ftruncate(fd, pages * PAGE)
    return fd
def map(fd, pages, kind):
    at = mmap(None, ctypes.c_size_t(pages * PAGE), 3, kind, fd, ctypes.c_long(0))
    return (ctypes.c_ubyte * (pages * PAGE)).from_address(at)
def child(body):
    pid = os.fork()
    if pid == 0:
        body()
        os._exit(0)
    os.waitpid(pid, 0)
fd = file(2)
first, second = map(fd, 2, SHARED), map(fd, 2, SHARED)
first[PAGE] = 7
child(lambda: first.__setitem__(0, 3))
os.ftruncate(fd, 3 * PAGE)
print('shared', bytes(first[1:PAGE]) == bytes(PAGE - 1), second[PAGE], second[0], os.fstat(fd).st_size)
fd = file(2)
first = map(fd, 2, PRIVATE)
first[PAGE] = 7
print('private', first[0], first[PAGE], map(fd, 2, SHARED)[PAGE], os.fstat(fd).st_size)
fd = file(2)
def writes():
    map(fd, 2, SHARED)[PAGE] = 5
child(writes)
print('in two processes', map(fd, 2, SHARED)[PAGE])
fd = file(1)
again = os.dup(fd)
map(fd, 1, SHARED)[9] = 4
print('two descriptors', map(again, 1, SHARED)[9])
";

// Promise P180 (programs): A file that a program makes in a directory of huge pages and unlinks is
// lent memory from its first mapping on, shared or private, while no other process has it; the
// program finds what it finds without.
#[test]
fn unlinked_file_is_served_while_no_other_process_has_it() {
    let Some(pages) = reserve(PAGE, 24) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let mounted = linux::mount::mount(dir.path(), PAGE.size()).expect("root mounts");
    let directory = dir.path().display().to_string();
    let words = ["python3", "-c", SCRIPT, &directory];
    let expected = text(&Command::new(words[0]).args(&words[1..]).output().expect("it runs"));
    let pool = PAGE.pool("pages_per_block = 2\nready_high = 8\nleave_free = 12");
    let daemon = Daemon::start_with(Some(pages), &pool, &[]);
    daemon.wait_for("ready", |pool| pool.ready_pages == Pages(8));
    let logs = tempfile::tempdir().expect("a directory");
    let log = logs.path().join("log");
    let found = shimmed(&daemon.socket(), &log, &["--private"], &words);
    assert_same("unlinked", &text(&found), &expected);
    assert_eq!(served(&log), 2, "{:?}", std::fs::read_to_string(&log));
    // By a child, and by the process with two descriptors.
    assert!(logged(&log, "others may have it") >= 2, "{:?}", std::fs::read_to_string(&log));
    daemon.wait_for("all is returned", |p| p.lent_pages + p.draining_pages == Pages(0));
    mounted.detach().expect("our own mount");
}
