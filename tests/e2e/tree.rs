// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control tree: what it shows, who may do what, and what becomes of it when the daemon or a
//! writer ends.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use units::Pages;

use client::Client;
use linux::{Roots, fuse};
use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prezero_tests::daemon::WAIT_TIMEOUT;
use prezero_tests::user::{NO_USER, as_other_user};
use prezero_tests::{Daemon, Page};
use testkit::child::alone;
use testkit::skip;

/// 512 MiB: long enough to be stopped in the middle of.
const MANY: u64 = 256;

/// A daemon with a tree, or `None` where the kernel lacks FUSE.
pub(crate) fn daemon(pages: u64, config: &str) -> Option<Daemon> {
    if fuse::open_device().is_err() {
        skip("no FUSE here");
        return None;
    }
    let page = Page::Mib2;
    Daemon::start(page, pages, &format!("{config}\n{}", page.pool("")))
}

/// The directory of the pool's domain.
pub(crate) fn domain(daemon: &Daemon) -> PathBuf {
    daemon.tree().join("node0/hugepages/hugepages-2048kB")
}

pub(crate) fn read(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.strip_suffix('\n').expect("a newline").parse().expect("a number")
}

/// A shell that writes there, as a user's would. It obeys Ctrl-C even where these tests are a
/// background job, which begins with SIGINT ignored: a handler is the child's own.
fn writer(file: &Path, text: &str) -> Child {
    let always = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register_conditional_shutdown(Signal::SIGINT as i32, 130, always)
        .expect("a signal that can be handled");
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo \"$0\" > \"$1\"", text]).arg(file).stderr(Stdio::null());
    shell.spawn().expect("a shell")
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "never {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ended(child: &mut Child) -> bool {
    child.try_wait().expect("our own child").is_some()
}

/// A delegated worker in the middle of its work, held there by SIGSTOP.
struct Held(Pid);

impl Held {
    /// Stopped once it has done something, as near to its beginning as a millisecond allows: it
    /// zeroes 30 pages in one.
    fn begun(daemon: &Daemon) -> Self {
        // Before its exec it shares the daemon's memory, and the daemon waits for it.
        let is_itself = |pid: &u32| {
            let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline"));
            arguments.is_ok_and(|arguments| arguments.contains("--until-eof"))
        };
        wait_until("started", || delegated_workers(daemon).iter().any(is_itself));
        let held = Self(Pid::from_raw(delegated_workers(daemon)[0].cast_signed()));
        wait_until("begun", || {
            held.release();
            std::thread::sleep(Duration::from_millis(1));
            kill(held.0, Signal::SIGSTOP).expect("it is alive");
            read(&domain(daemon).join("zeroed_hugepages")) > 0
        });
        held
    }

    fn release(&self) {
        kill(self.0, Signal::SIGCONT).expect("it is alive");
    }

    /// Waits until the daemon has closed its end of what the delegated worker watches: it will find
    /// that when it is released.
    fn wait_until_notified(&self, daemon: &Daemon) {
        let pipe = fs::read_link(format!("/proc/{}/fd/0", self.0)).expect("a pipe");
        wait_until("told to stop", || {
            let fds = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("it runs");
            fds.flatten().all(|fd| fs::read_link(fd.path()).is_ok_and(|file| file != pipe))
        });
    }
}

/// A writer with some pages zeroed, and more to come.
fn busy_writer(daemon: &Daemon) -> (Child, Held) {
    let writer = writer(&domain(daemon).join("zeroable_hugepages"), "max");
    let delegated = Held::begun(daemon);
    assert!(daemon.pool().zeroable_pages > Pages(0), "it has more to do");
    (writer, delegated)
}

fn mounts(daemon: &Daemon) -> usize {
    fuse::find(&Roots::default(), &daemon.tree(), "prezero").expect("mountinfo").len()
}

// Promise P41 (tree): What the tree calls zeroable and zeroed is what status does; a write returns
// when the pages are zero.
#[test]
fn the_tree_shows_what_status_says() {
    let Some(daemon) = daemon(8, "") else { return };
    let dir = domain(&daemon);
    let check = || {
        let pool = daemon.pool();
        assert_eq!(read(&dir.join("zeroable_hugepages")), pool.zeroable_pages.0);
        assert_eq!(read(&dir.join("zeroed_hugepages")), pool.ready_pages.0);
    };
    check();
    fs::write(dir.join("zeroable_hugepages"), "3\n").expect("three pages");
    assert_eq!(daemon.pool().ready_pages, Pages(3), "they are zero when the write returns");
    check();
    let loan = daemon.lend(Page::Mib2, 1);
    check();
    drop(loan);
    daemon.wait_for("returned", |pool| pool.zeroable_pages == Pages(6));
    check();
}

// Promise P43 (tree): An interrupted or killed writer ends within its current page, or about a
// second; finished pages stay zeroed and no page is lost.
#[test]
fn interrupted_or_killed_writer_ends_at_once_and_keeps_its_work() {
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let Some(daemon) = daemon(MANY, "") else { return };
        let dir = domain(&daemon);
        let (mut writer, delegated) = busy_writer(&daemon);
        kill(Pid::from_raw(writer.id().cast_signed()), signal).expect("our own child");
        delegated.wait_until_notified(&daemon);
        delegated.release();
        writer.wait().expect("our own child");
        let pool = daemon.pool();
        assert_eq!(
            pool.zeroing_pages,
            Pages(0),
            "{signal}: its delegated worker has ended before it"
        );
        let (zeroed, zeroable) = (pool.ready_pages, pool.zeroable_pages.0);
        assert!(zeroed > Pages(0) && zeroable > Pages(0).0, "{signal}: {pool:?}");
        assert_eq!(zeroed + Pages(zeroable), Pages(MANY), "{signal}: no page is lost");
        // The rest is there for the next one.
        fs::write(dir.join("zeroable_hugepages"), "max").expect("the rest");
        assert_eq!(daemon.pool().ready_pages, Pages(MANY));
    }
}

// Promise P43.
#[test]
fn a_second_writer_can_be_killed_while_the_first_is_at_work() {
    let Some(daemon) = daemon(MANY, "") else { return };
    let (mut first, delegated) = busy_writer(&daemon);
    let mut second = writer(&domain(&daemon).join("zeroable_hugepages"), "max");
    wait_until("both at work", || delegated_workers(&daemon).len() == 2);
    second.kill().expect("our own child");
    second.wait().expect("our own child");
    assert!(!ended(&mut first), "it is another's");
    first.kill().expect("our own child");
    delegated.wait_until_notified(&daemon);
    delegated.release();
    first.wait().expect("our own child");
    let pool = daemon.pool();
    assert_eq!(
        (pool.zeroing_pages, pool.ready_pages + pool.zeroable_pages),
        (Pages(0), Pages(MANY))
    );
}

/// The daemon's child processes.
pub(crate) fn delegated_workers(daemon: &Daemon) -> Vec<u32> {
    let pid = daemon.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

// Promise P43.
#[test]
fn killed_writer_ends_even_if_its_worker_does_not_stop() {
    let Some(daemon) = daemon(MANY, "") else { return };
    let (mut writer, delegated) = busy_writer(&daemon);
    writer.kill().expect("our own child");
    let begun = Instant::now();
    wait_until("gone", || {
        // A poll, since `wait` would hang with the writer.
        let stat = fs::read_to_string(format!("/proc/{}/stat", writer.id())).unwrap_or_default();
        stat.contains(") Z ")
    });
    assert!(ended(&mut writer));
    // Its delegated worker has a second for the page at hand.
    assert!(begun.elapsed() < Duration::from_secs(5), "it was gone after {:?}", begun.elapsed());
    delegated.release();
    wait_until("ended", || delegated_workers(&daemon).is_empty());
    let pool = daemon.pool();
    assert_eq!(
        (pool.zeroing_pages, pool.ready_pages + pool.zeroable_pages),
        (Pages(0), Pages(MANY))
    );
}

/// Writes "1" in a thread of nice value 7.
struct LivingWriter {
    thread: Pthread,
    written: mpsc::Receiver<nix::Result<usize>>,
    /// The thread lives until this is dropped: a delegated worker does not start for one that has
    /// ended.
    _life: mpsc::Sender<()>,
}

impl LivingWriter {
    fn new(path: &Path) -> Self {
        let file = OpenOptions::new().write(true).open(path).expect("it is there");
        let ((notify, reported), (result, written)) = (mpsc::channel(), mpsc::channel());
        let (life, end) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            linux::sched::set_nice(7).expect("a higher value");
            notify.send(pthread_self()).expect("it is waited for");
            result.send(nix::unistd::write(&file, b"1\n")).expect("it is waited for");
            end.recv().expect_err("nothing is sent");
        });
        Self { thread: reported.recv().expect("it has begun"), written, _life: life }
    }

    /// Its delegated worker, stopped as soon as it is as its writer; `None` if the writer was done
    /// before.
    fn stopped_worker(&self, daemon: &Daemon) -> Option<Pid> {
        let nice = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().and_then(|s| s.split(' ').nth(16)) == Some("7")
        };
        loop {
            if let Some(pid) = delegated_workers(daemon).into_iter().find(nice) {
                let pid = Pid::from_raw(pid.cast_signed());
                return kill(pid, Signal::SIGSTOP).is_ok().then_some(pid);
            }
            match self.written.try_recv() {
                Ok(_) => return None,
                Err(_) => std::hint::spin_loop(),
            }
        }
    }
}

// Promise P43.
#[test]
fn delegated_worker_not_begun_at_its_writers_end_zeroes_nothing() {
    let Some(daemon) = daemon(MANY, "") else { return };
    let path = domain(&daemon).join("zeroable_hugepages");
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(Signal::SIGUSR2 as i32, flag).expect("a handler");
    // Stopped between becoming as its writer is and asking for work, or the next one is.
    let caught = (0..50).find_map(|_| {
        let writer = LivingWriter::new(&path);
        let delegated = writer.stopped_worker(&daemon)?;
        let pool = daemon.pool();
        if pool.zeroing_pages == Pages(0) && writer.written.try_recv().is_err() {
            return Some((writer, delegated, pool.ready_pages));
        }
        kill(delegated, Signal::SIGCONT).ok()?;
        writer.written.recv().expect("it ends").expect("it is not interrupted");
        None
    });
    let (writer, delegated, before) = caught.expect("a delegated worker that has not begun");
    pthread_kill(writer.thread, Signal::SIGUSR2).expect("it is alive");
    let written = writer
        .written
        .recv_timeout(WAIT_TIMEOUT)
        .expect("it does not wait for its delegated worker");
    assert_eq!(written, Err(nix::errno::Errno::EINTR));
    kill(delegated, Signal::SIGCONT).expect("it is stopped");
    wait_until("ended", || delegated_workers(&daemon).is_empty());
    let pool = daemon.pool();
    assert_eq!((pool.zeroing_pages, pool.ready_pages), (Pages(0), before), "in nobody's count");
    fs::write(&path, "1\n").expect("a page");
    assert_eq!(daemon.pool().ready_pages, before + Pages(1), "other delegated workers do work");
}

fn denied(result: io::Result<impl Sized>) -> bool {
    result.is_err_and(|error| error.raw_os_error() == Some(nix::errno::Errno::EACCES as i32))
}

/// A tree where other users can reach it: the run directory is the daemon's own.
fn public_tree() -> (tempfile::TempDir, PathBuf) {
    let dir =
        tempfile::Builder::new().prefix(testkit::MOUNTS_PREFIX).tempdir().expect("a directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir.path(), open).expect("our own directory");
    let tree = dir.path().join("tree");
    (dir, tree)
}

// Promise P45 (tree): Group and mode of its files are the configuration's; others get EACCES, for
// the ioctls EPERM.
#[test]
fn access_is_set_by_group_and_mode() {
    let _alone = alone();
    let file = "node0/hugepages/hugepages-2048kB/zeroable_hugepages";
    let write = |path: &Path| fs::write(path, "1\n");
    for (config, may_read, may_write) in [
        ("", true, false),
        ("group = \"65534\"", true, true),
        ("mode = 0o600", false, false),
        ("group = \"65534\"\nmode = 0o640", true, false),
    ] {
        let (_dir, tree) = public_tree();
        let config = format!("[tree]\npath = {tree:?}\n{config}");
        let Some(daemon) = daemon(2, &config) else { return };
        let path = tree.join(file);
        as_other_user(|| {
            let (read, written) = (fs::read_to_string(&path), write(&path));
            let as_expected = |may: bool, refused: bool| may != refused;
            as_expected(may_read, denied(read)) && as_expected(may_write, denied(written))
        });
        assert_eq!(daemon.pool().ready_pages, Pages(u64::from(may_write)), "{config}");
        // Files that make no sense to write refuse every user, as in sysfs.
        let zeroed = path.with_file_name("zeroed_hugepages");
        assert!(denied(OpenOptions::new().write(true).open(zeroed)));
        assert!(denied(File::create(path.with_file_name("new"))));
    }
}

// Promise P46.
#[test]
fn files_of_a_dead_daemon_fail_and_the_next_one_replaces_them() {
    let Some(mut daemon) = daemon(4, "") else { return };
    let path = domain(&daemon).join("zeroed_hugepages");
    let mut open = File::open(&path).expect("a file");
    daemon.kill();
    let mut text = String::new();
    let error = open.read_to_string(&mut text).expect_err("nobody answers");
    assert_eq!(error.raw_os_error(), Some(nix::errno::Errno::ENOTCONN as i32));
    assert_eq!(mounts(&daemon), 1, "the kernel leaves it mounted");
    daemon.launch();
    assert_eq!(mounts(&daemon), 1);
    assert_eq!(read(&path), 0);
    let error = open.rewind().and_then(|()| open.read_to_string(&mut text)).expect_err("as before");
    assert_eq!(error.raw_os_error(), Some(nix::errno::Errno::ENOTCONN as i32));
}

// Promise P46 (tree): A stopped daemon unmounts the tree; files of a killed one answer ENOTCONN,
// and the next daemon mounts it anew without help.
#[test]
fn stopping_daemon_ends_writers_keeps_their_work_and_unmounts() {
    let Some(mut daemon) = daemon(MANY, "") else { return };
    let (mut writer, delegated) = busy_writer(&daemon);
    kill(Pid::from_raw(daemon.pid().cast_signed()), Signal::SIGTERM).expect("our own child");
    wait_until("unmounted", || mounts(&daemon) == 0);
    delegated.wait_until_notified(&daemon);
    delegated.release();
    daemon.terminate();
    assert!(!writer.wait().expect("our own child").success(), "it was not done");
    assert_eq!(mounts(&daemon), 0);
    assert!(!daemon.tree().join("hugepagectl").exists());
    daemon.launch();
    let ready = daemon.pool().ready_pages;
    assert!(ready > Pages(0) && ready < Pages(MANY), "{ready}");
}

// Promise P47 (tree): Where the tree cannot be mounted the daemon says so in one line and runs
// without, unless the tree was asked for; an embedded daemon mounts none unless asked.
#[test]
fn daemon_without_fuse_reports_it_in_one_line_unless_required() {
    let _alone = alone();
    let (dir, tree) = public_tree();
    std::os::unix::fs::chown(dir.path(), Some(NO_USER), None).expect("our own directory");
    let serve = |tree: &[&str]| {
        let log = dir.path().join("log");
        let mut command = Command::new(prezero_tests::daemon::binary());
        command.args(["serve", "--plain", "--pool", "page_size=2M", "--set", "workers.max=0"]);
        command.arg("--socket").arg(dir.path().join("socket"));
        command.arg("--run-dir").arg(dir.path().join("run")).args(tree);
        // Only root may mount, and on some machines only root may open /dev/fuse.
        std::os::unix::process::CommandExt::uid(&mut command, NO_USER);
        command.stderr(File::create(&log).expect("a log"));
        (command.spawn().expect("the daemon starts"), log)
    };
    let tree = tree.to_str().expect("text");
    let (mut daemon, log) = serve(&[]);
    let lines = || {
        let text = fs::read_to_string(&log).expect("our own log");
        text.lines()
            .filter(|line| line.contains("control tree"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let socket = dir.path().join("socket");
    wait_until("up", || Client::connect(&socket).and_then(|mut c| c.status()).is_ok());
    let said = lines();
    assert!(said.len() == 1 && said[0].contains("there is no control tree"), "{said:?}");
    kill(Pid::from_raw(daemon.id().cast_signed()), Signal::SIGTERM).expect("our own child");
    assert!(daemon.wait().expect("our own child").success());
    let path = format!("tree.path={tree}");
    let (mut daemon, log) = serve(&["--set", &path, "--set", "tree.enabled=true"]);
    assert!(!daemon.wait().expect("our own child").success());
    let log = fs::read_to_string(log).expect("our own log");
    let refused = ["open(\"/dev/fuse\"", "\"fuse.prezero\""];
    assert!(refused.iter().any(|call| log.contains(call)), "{log}");
    assert_eq!(log.lines().filter(|line| line.contains("fuse")).count(), 1, "{log}");
}
