// SPDX-License-Identifier: Apache-2.0 OR MIT
//! As a service: readiness, reloads, the watchdog, sockets and descriptors that outlive a daemon.
//! The tests are the service manager.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use client::Client;
use nix::sys::signal::Signal;
use prezero_tests::MapAlone as _;
use prezero_tests::daemon::WAIT_TIMEOUT;
use prezero_tests::memory::assert_zero;
use prezero_tests::{Daemon, Page};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use testkit::hugepages;
use units::Pages;
use wire::{Health, Status};

/// The socket that a daemon tells things through, as systemd has one.
struct Ear {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Ear {
    fn new(daemon: &Daemon) -> Self {
        let path = daemon.scratch().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(WAIT_TIMEOUT)).expect("a timeout");
        Self { socket, path }
    }

    /// Waits for a message with that line; descriptors of it and of those before it.
    fn wait_for(&self, line: &str) -> (String, Vec<(String, OwnedFd)>) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        let mut kept = Vec::new();
        while Instant::now() < deadline {
            let (text, fds) = self.hear();
            let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
            kept.extend(fds.into_iter().map(|fd| (name.unwrap_or_default().to_owned(), fd)));
            if text.lines().any(|one| one.starts_with(line)) {
                return (text, kept);
            }
        }
        panic!("never told {line}");
    }

    fn hear(&self) -> (String, Vec<OwnedFd>) {
        let mut text = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut text)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(&self.socket, &mut parts, &mut control, flags).expect("a message");
        let fds = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        (String::from_utf8_lossy(&text[..got.bytes]).into_owned(), fds)
    }
}

/// `command` with descriptors from 3 on, under these names, as systemd passes them.
fn with_descriptors(command: &Command, fds: Vec<(&str, OwnedFd)>, log: &Path) -> Command {
    let names: Vec<_> = fds.iter().map(|(name, _)| *name).collect();
    let mut shell = Command::new("sh");
    // A shell knows its process id, which exec keeps; descriptors reach it as its standard ones.
    let moves = ["exec 3<&0 0</dev/null;", "exec 3<&0 4<&1 0</dev/null 1>/dev/null;"];
    let line = format!("{} export LISTEN_PID=$$; exec \"$@\"", moves[fds.len() - 1]);
    shell
        .args(["-c", &line, "sh"])
        .arg(command.get_program())
        .args(command.get_args())
        .env("LISTEN_FDS", fds.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"));
    let mut fds = fds.into_iter().map(|(_, fd)| Stdio::from(fd));
    shell.stdin(fds.next().expect("one at least"));
    shell.stdout(fds.next().unwrap_or_else(Stdio::null));
    shell.stderr(std::fs::File::options().append(true).create(true).open(log).expect("a log"));
    shell
}

/// A daemon before its start.
fn unstarted(page: Page, pages: u64, config: &str) -> Option<Daemon> {
    let mut daemon = Daemon::start(page, pages, config)?;
    daemon.terminate();
    Some(daemon)
}

// Promise P61 (years): The service manager hears that the daemon is ready, reloads and ends, and a
// watchdog is fed by the event loop itself.
#[test]
fn service_manager_gets_readiness_reloads_stop_and_watchdog() {
    let page = Page::Mib2;
    let Some(mut daemon) = unstarted(page, 2, &page.pool("")) else { return };
    let ear = Ear::new(&daemon);
    daemon.spawn_as(|mut command| {
        command.env("NOTIFY_SOCKET", &ear.path).env("WATCHDOG_USEC", "2000000");
        command
    });
    ear.wait_for("READY=1");
    let (status, _) = ear.wait_for("STATUS=");
    assert!(status.contains("2M pages: 0 ready"), "{status}");
    for _ in 0..3 {
        ear.wait_for("WATCHDOG=1");
    }
    for config in [page.pool("leave_free = 1"), "pol = 1".to_owned()] {
        daemon.write_config(&config);
        daemon.signal(Signal::SIGHUP);
        let (reloading, _) = ear.wait_for("RELOADING=1");
        assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
        ear.wait_for("READY=1");
        assert_eq!(daemon.pool().leave_free, Pages(1));
    }
    daemon.zero("max");
    // Pages of leave_free are not zeroed in blocks, and the kernel zeroes them in its pool.
    let ready = if daemon.has_blocks() { "2M" } else { "4M" };
    ear.wait_for(&format!("STATUS=2M pages: {ready} ready"));
    daemon.signal(Signal::SIGTERM);
    ear.wait_for("STOPPING=1");
    daemon.terminate();
}

// Promise P60 (years): A reload changes what the file says and loses no page, loan or watch; a
// file that breaks a rule, names what this machine does not have, or an address that is taken,
// changes nothing and is logged.
#[test]
fn a_reload_changes_what_the_file_says_and_loses_nothing() {
    let page = Page::Mib2;
    let both = |fields: &str| page.pool(fields) + &page.pool("pages_per_block = 2");
    let Some(daemon) = Daemon::start(page, 8, &both("")) else { return };
    daemon.zero("max");
    // The refusal itself is part of its health.
    let status = |daemon: &Daemon| -> Status {
        Status { health: Health::default(), ailments: Vec::new(), ..daemon.status() }
    };
    let ready: u64 = status(&daemon).pools.iter().map(|pool| pool.ready_pages.0).sum();
    assert_eq!(ready, 8);
    let loan = daemon.lend(page, 1);
    let mut watch = daemon
        .client()
        .watch(None, None, None, Duration::from_millis(50))
        .expect("a watch that outlives reloads");
    watch.next().expect("the levels now").expect("a good report");

    // A file that breaks a rule changes nothing, whatever else it says.
    for (bad, why) in [
        (both("ready_low = 2\nready_high = 1"), "ready_low 4M"),
        (format!("lend_group = \"nobody-has-this\"\n{}", both("")), "nobody-has-this"),
        (format!("[metrics]\nlisten = \"192.0.2.1:1\"\n{}", both("")), "192.0.2.1:1"),
        ("[[pool]]\npage_size = \"4M\"\n".to_owned(), "no 4M pages"),
    ] {
        let before = status(&daemon);
        daemon.write_config(&bad);
        daemon.signal(Signal::SIGHUP);
        daemon.wait_for_log(why);
        assert_eq!(status(&daemon), before, "{why}");
    }

    // A good one holds; the removed pool gives its unlent blocks back.
    daemon.write_config(&page.pool("leave_free = 1\nmax = 7"));
    daemon.signal(Signal::SIGHUP);
    let pool = daemon.wait_for("changed", |pool| pool.leave_free == Pages(1));
    assert_eq!((pool.max_pages, pool.lent_pages), (Some(Pages(7)), Pages(1)));
    assert_eq!(status(&daemon).pools.len(), 1);
    let (left, free) = (pool.ready_pages, daemon.kernel_free(page));
    let held = if daemon.has_blocks() { left } else { Pages(0) };
    assert_eq!(held + Pages(free), Pages(7), "{left} ready and {free} free: no page is lost");
    assert_zero(&loan.map_alone().expect("the loan goes on"));
    drop(loan);
    watch.next().expect("the watch goes on").expect("a good report");
}

// Promise P60.
#[test]
fn workers_of_a_changed_configuration_are_started_and_stopped() {
    let page = Page::Mib2;
    let off = format!("[workers]\nmax = 0\n{}", page.pool("ready_high = 4"));
    let Some(daemon) = Daemon::start(page, 8, &off) else { return };
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(daemon.pool().ready_pages, Pages(0));
    daemon.write_config(&page.pool("ready_high = 4"));
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(4));
    daemon.wait_for_log("a pool is full");
}

// Promise P62 (years): Clients that connect while the daemon restarts wait in the socket unit's
// socket, and are answered with every ready page still there.
#[test]
fn clients_wait_in_the_inherited_socket_during_a_restart() {
    let page = Page::Mib2;
    let Some(mut daemon) = unstarted(page, 2, &page.pool("")) else { return };
    let listener = UnixListener::bind(daemon.socket()).expect("a socket");
    let log = daemon.scratch().join("log");
    let pass = |command: Command| {
        let fd = listener.as_fd().try_clone_to_owned().expect("a descriptor");
        with_descriptors(&command, vec![("varlink", fd)], &log)
    };
    daemon.spawn_as(pass);
    daemon.wait_until_up();
    daemon.zero("max");
    for end in [Daemon::kill, Daemon::terminate] {
        end(&mut daemon);
        let socket = daemon.socket();
        let early = std::thread::spawn(move || {
            Client::connect(socket).and_then(|mut client| client.status())
        });
        while !early.is_finished() && !has_waiting(&listener) {
            std::thread::yield_now();
        }
        daemon.spawn_as(pass);
        let status = early.join().expect("no panic").expect("answered by the next daemon");
        assert_eq!(status.pools[0].ready_pages, Pages(2), "and with every ready page");
    }
    daemon.kill();
    assert!(daemon.socket().exists());
}

// Promise P151.
#[test]
fn agents_wait_in_a_socket_of_their_own_that_is_handed_over() {
    let page = Page::Mib2;
    let Some(mut daemon) = unstarted(page, 2, &page.pool("")) else { return };
    let path = daemon.agent_socket();
    let [listener, agents] =
        [daemon.socket(), path.clone()].map(|path| UnixListener::bind(path).expect("a socket"));
    let log = daemon.scratch().join("log");
    let pass = |command: Command| {
        let of = |socket: &UnixListener| socket.as_fd().try_clone_to_owned().expect("a descriptor");
        with_descriptors(&command, vec![("varlink", of(&listener)), ("agent", of(&agents))], &log)
    };
    daemon.spawn_as(pass);
    daemon.wait_until_up();
    let mode = std::os::unix::fs::PermissionsExt::mode;
    assert_eq!(mode(&path.metadata().expect("a socket").permissions()) & 0o777, 0o600);
    let ask = client::LendRequest::by_name("pod".parse().expect("a name"), page.times(1));
    let lent = client::Client::connect(&path).and_then(|mut agent| agent.lend(&ask));
    let lent = lent.expect("it lends");
    for end in [Daemon::kill, Daemon::terminate] {
        end(&mut daemon);
        let at = path.clone();
        let early = std::thread::spawn(move || {
            client::Client::connect(at).and_then(|mut agent| agent.loans(""))
        });
        while !early.is_finished() && !has_waiting(&agents) {
            std::thread::yield_now();
        }
        daemon.spawn_as(pass);
        let loans = early.join().expect("no panic").expect("answered by the next daemon");
        assert_eq!(loans.iter().map(|loan| Some(&*loan.path)).collect::<Vec<_>>(), [lent.path()]);
        daemon.wait_until_up();
    }
    let returned = client::Client::connect(&path)
        .and_then(|mut agent| agent.return_loan("pod".parse().expect("a name"), false));
    returned.expect("it is lent");
    daemon.wait_for("free", |p| p.lent_pages + p.draining_pages == Pages(0));
}

/// Whether a connection waits to be accepted.
fn has_waiting(listener: &UnixListener) -> bool {
    let mut fds = [rustix::event::PollFd::new(listener, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).expect("a poll") > 0
}

// Promise P63 (years): Ready pages and loans survive a restart in a mount namespace of the
// service's own.
#[test]
fn ready_pages_survive_in_a_mount_namespace_by_a_descriptor() {
    let page = Page::Mib2;
    if !rustix::process::geteuid().is_root() {
        testkit::skip("a mount namespace needs root");
        return;
    }
    let Some(mut daemon) = unstarted(page, 4, &page.pool("recycle = \"fresh\"")) else { return };
    // Mounts in the test's own namespace would be found there.
    let mounts = linux::mount::find(&linux::Roots::default(), page.size()).expect("mounts");
    for mount in mounts.into_iter().filter(|mount| mount.dir.starts_with(daemon.scratch())) {
        mount.detach().expect("our own mount");
    }
    let ear = Ear::new(&daemon);
    let mut kept: Vec<(String, OwnedFd)> = Vec::new();
    let loan = {
        start_apart(&mut daemon, &ear, &kept);
        kept = ear.wait_for("READY=1").1;
        daemon.wait_until_up();
        daemon.zero("max");
        let loan = daemon.lend(page, 1);
        daemon.kill();
        loan
    };
    let names: Vec<_> = kept.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["pages-2048kB"]);
    start_apart(&mut daemon, &ear, &kept);
    daemon.wait_until_up();
    let pool = daemon.pool();
    assert_eq!((pool.ready_pages, pool.lent_pages), (Pages(3), Pages(1)));
    assert_zero(&loan.map_alone().expect("the loan goes on"));
    drop(loan);
    daemon.wait_for("returned", |pool| {
        pool.lent_pages == Pages(0) && pool.draining_pages == Pages(0)
    });
    assert_eq!(daemon.kernel_free(page), 1, "a returned block's page is the kernel's again");
    daemon.zero("max");
    assert_eq!(daemon.pool().ready_pages, Pages(4));
    assert_zero(&daemon.lend(page, 1).map_alone().expect("a mapping"));
    daemon.command(&["release", "all"]).output().expect("prezero runs");
    daemon.kill();
}

/// Starts the daemon in a new mount namespace, from which nothing spreads.
fn start_apart(daemon: &mut Daemon, ear: &Ear, kept: &[(String, OwnedFd)]) {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    let fds: Vec<_> = kept
        .iter()
        .map(|(name, fd)| (name.as_str(), fd.try_clone().expect("a descriptor")))
        .collect();
    std::thread::scope(|scope| {
        let start = || {
            unshare(CloneFlags::CLONE_NEWNS).expect("root");
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("root");
            daemon.spawn_as(|mut command| {
                if !fds.is_empty() {
                    command = with_descriptors(&command, fds, &ear.path.with_file_name("log"));
                }
                command.env("NOTIFY_SOCKET", &ear.path);
                command
            });
        };
        scope.spawn(start).join().expect("no panic");
    });
}

#[test]
fn configuration_check_names_errors_and_starts_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("prezero.toml");
    let check = || {
        let mut command = Command::new(prezero_tests::daemon::binary());
        command.args(["serve", "--check", "--config"]).arg(&file);
        command.output().expect("prezero runs")
    };
    std::fs::write(&file, Page::Mib2.pool("ready_high = 4")).expect("our own file");
    assert!(check().status.success());
    std::fs::write(&file, Page::Mib2.pool("ready_hihg = 4")).expect("our own file");
    let output = check();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("ready_hihg"), "{text}");
}

// Promise P65 (years): The log names pools, fillings, refusals and losses, and a thousand refusals
// in a second are one line.
#[test]
fn log_names_pools_fillings_refusals_and_missing_parts() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 2, &page.pool("ready_high = 2")) else { return };
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(2));
    for line in ["a pool pool=node 0 2M x 1", "fills a pool", "a pool is full"] {
        daemon.wait_for_log(line);
    }
    for _ in 0..50 {
        daemon.command(&["lend", "6M", "--", "true"]).output().expect("prezero runs");
    }
    daemon.wait_for_log("refused loans");
    assert!(daemon.log().matches("refused loans").count() <= 2, "{}", daemon.log());
    daemon.command(&["set", "ready_high=0"]).output().expect("prezero runs");
    daemon.command(&["release", "all"]).output().expect("prezero runs");
    if daemon.has_blocks() {
        daemon.wait_for_log("gave pages back");
    }
    drop(daemon);
    let daemon = Daemon::start_with(None, "", &[]);
    daemon.wait_for_log("there is nothing to lend");
}

// Promise P67 (years): `prezero reserve` makes the kernel's pool larger, never smaller, and what
// it reserved stays when it is stopped.
#[test]
fn reserve_grows_the_kernels_pool_and_never_makes_it_smaller() {
    let page = Page::Mib2;
    let node = units::Node(0);
    let Some(_guard) = hugepages::reserve_all(&[(page.size(), Some(node), 2)]) else { return };
    let total = || {
        let counters = linux::hugetlb::counters(&linux::Roots::default(), page.size(), Some(node));
        counters.expect("a pool").total
    };
    let before = total();
    let reserve = |pages: u64| {
        let mut command = Command::new(prezero_tests::daemon::binary());
        let output = command.args(["reserve", &format!("0:2M={pages}")]).output();
        let output = output.expect("prezero runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    reserve(before + 3);
    assert_eq!(total(), before + 3);
    reserve(before);
    assert_eq!(total(), before + 3);
}
