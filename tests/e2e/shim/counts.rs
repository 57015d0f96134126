// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many huge pages are free, to programs that look before they ask.

use std::process::Command;

use prezero_tests::Daemon;
use testkit::child::alone;

use super::{PAGE, logged, reserve, shimmed, text};

const READY: u64 = 8;

/// Each way to open a file, by a program that has no other.
const SCRIPT: &str = "
import ctypes, os
def count(text):
    lines = [line for line in text.splitlines() if 'HugePages_Free' in line]
    return int(lines[0].split()[-1]) if lines else int(text)
def fopen(path):
    c = ctypes.CDLL(None)
    c.fopen.restype = c.fgets.restype = ctypes.c_void_p
    file, line = ctypes.c_void_p(c.fopen(path.encode(), b'r')), ctypes.create_string_buffer(99)
    text = b''
    while c.fgets(line, 99, file):
        text += line.value
    c.fclose(file)
    return text.decode()
def fortified(path):
    c = ctypes.CDLL(None)
    fd = c.__open_2(path.encode(), os.O_RDONLY)
    assert c.__openat64_2(os.open('/', os.O_PATH), path.encode(), os.O_RDONLY) == fd + 2
    return os.read(fd, 65536).decode()
def openat(path):
    fd = os.open(path, os.O_RDONLY, dir_fd=os.open('/', os.O_PATH))
    return os.read(fd, 65536).decode()
size = 'hugepages/hugepages-2048kB/free_hugepages'
node = '/sys/devices/system/node/node0/'
for path in ['/proc/meminfo', '/sys/kernel/mm/' + size, node + size, node + 'meminfo']:
    for way in [lambda path: open(path).read(), openat, fortified, fopen]:
        print(path, count(way(path)))
for path in ['/proc/meminfo', node + 'meminfo']:
    print([line for line in open(path) if 'HugePages_' in line and '_Free' not in line])
print([open('/sys/kernel/mm/' + size.replace('free', 'nr')).read()])
try:
    os.write(os.open('/sys/kernel/mm/' + size, os.O_RDONLY), b'1')
except OSError as error:
    print(error)
";

/// The lines of what it says that have a count of free pages, and the others.
fn said(output: &str) -> (Vec<u64>, Vec<&str>) {
    let is_count = |line: &&str| line.starts_with('/');
    let (counts, others): (Vec<_>, Vec<_>) = output.lines().partition(is_count);
    let number = |line: &str| line.rsplit(' ').next().and_then(|word| word.parse().ok());
    (counts.into_iter().filter_map(number).collect(), others)
}

#[test]
fn who_looks_how_many_pages_are_free_finds_the_ready_ones_among_them() {
    let _alone = alone();
    let Some(pages) = reserve(PAGE, READY + 2) else { return };
    let config = format!("quota_of = {{ 0 = \"6M\" }}\n{}", PAGE.pool("leave_free = 2"));
    let daemon = Daemon::start_with(Some(pages), &config, &[]);
    daemon.zero("max");
    assert_eq!(daemon.pool().ready_pages, READY);
    let logs = tempfile::tempdir().expect("a directory");
    let log = logs.path().join("log");
    let words = ["python3", "-c", SCRIPT];
    let look = || text(&Command::new(words[0]).args(&words[1..]).output().expect("it runs"));
    let expected = look();
    let found = text(&shimmed(&daemon.socket(), &log, &[], &words));
    let ((kernels, rest), (counts, same)) = (said(&expected), said(&found));
    assert_eq!((kernels.len(), counts.len()), (16, 16), "{expected}\n{found}");
    let more: Vec<_> = kernels.iter().map(|count| count + READY).collect();
    assert_eq!(counts, more, "{found}\n{:?}", std::fs::read_to_string(&log));
    assert_eq!(same, rest, "everything else is the kernel's");
    assert!(logged(&log, "8 ready pages as free") >= 16, "{:?}", std::fs::read_to_string(&log));
    // No more than its user may still borrow, once the daemon has told of its quota.
    let loan = daemon.lend(PAGE, 1);
    let within = said(&text(&shimmed(&daemon.socket(), &log, &[], &words))).0;
    assert_eq!(within, kernels.iter().map(|count| count + 2).collect::<Vec<_>>());
    drop(loan);
    daemon.wait_for("all is returned", |pool| pool.lent_pages + pool.lingering_pages == 0);
    // Where nothing is ready, and where nobody answers, the files are the kernel's.
    daemon.client().give_back(None, None, None).expect("all of them");
    let given_back = text(&shimmed(&daemon.socket(), &log, &[], &words));
    assert_eq!(said(&given_back).0, more, "the kernel has them now");
    let nobody = logs.path().join("nobody");
    assert_eq!(text(&shimmed(&nobody, &log, &[], &words)), given_back);
}
