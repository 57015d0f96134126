// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics' socket, open to every local process where it is an address of 127.0.0.1: halves,
//! floods, connections that come and go, requests by another site's name, and answers that wake a
//! crowd.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use prezero_tests::Daemon;
use prezero_tests::scrape::ASK;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with,
};

use crate::attack::{Attack, POOL, WORKERS};
use crate::scene::{Got, Scene};
use crate::socket::{copies, watchers};
use crate::stage::Stage;
use crate::users::User;
use crate::victim::{Clock, Victim};

/// How long an answer may take.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take beside a flood of connections.
const MAX_SCRAPE_PERIOD: Duration = Duration::from_secs(1);

/// Where metrics are served. One place of each kind for all: only one test at a time has a daemon.
#[derive(Debug, Clone, Copy)]
enum At {
    /// A path that every user may connect to.
    Path,
    /// An address of this machine's.
    Port,
}

fn place() -> PathBuf {
    std::env::temp_dir().join("prezero-test-metrics")
}

impl At {
    /// As the configuration has it.
    fn text(self) -> String {
        static PORT: OnceLock<u16> = OnceLock::new();
        match self {
            // A directory of root's: elsewhere the daemon refuses to serve.
            Self::Path => place().join("socket").display().to_string(),
            Self::Port => {
                let port = PORT.get_or_init(|| {
                    let probe = TcpListener::bind("127.0.0.1:0").expect("a port");
                    probe.local_addr().expect("an address").port()
                });
                format!("127.0.0.1:{port}")
            }
        }
    }

    /// One before its connection.
    fn socket(self) -> OwnedFd {
        let family = match self {
            Self::Path => AddressFamily::UNIX,
            Self::Port => AddressFamily::INET,
        };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("a socket");
        let timeout = Some(SCRAPE_TIMEOUT);
        set_socket_timeout(&socket, Timeout::Recv, timeout).expect("a good time");
        socket
    }

    fn connect(self, socket: &OwnedFd) -> rustix::io::Result<()> {
        match self {
            Self::Path => connect(socket, &SocketAddrUnix::new(self.text()).expect("a short path")),
            Self::Port => connect(socket, &self.text().parse::<SocketAddr>().expect("an address")),
        }
    }

    fn stream(self) -> std::io::Result<File> {
        let socket = self.socket();
        self.connect(&socket)?;
        Ok(File::from(socket))
    }
}

fn scrape(daemon: &Daemon, at: At) -> Result<Duration, String> {
    let clock = Clock::start(daemon);
    let scraped = || {
        let mut stream = at.stream()?;
        stream.write_all(ASK)?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    match scraped() {
        Ok(text) if text.contains("prezero_") => Ok(clock.stop()),
        Ok(text) => Err(format!("a scrape got {text:?}")),
        Err(error) => Err(format!("a scrape: {error}")),
    }
}

/// A scrape beside a flood of connections: whole, and within [`MAX_SCRAPE_PERIOD`]. Prometheus
/// waits 10 s by default. Its time is not compared with that of a quiet machine.
fn whole_scrape(daemon: &Daemon, at: At) -> Result<Duration, String> {
    let took = scrape(daemon, at)?;
    if took > MAX_SCRAPE_PERIOD {
        return Err(format!("a scrape took {took:?}"));
    }
    Ok(Duration::ZERO)
}

fn whole_scrape_by_path(daemon: &Daemon) -> Result<Duration, String> {
    whole_scrape(daemon, At::Path)
}

fn whole_scrape_by_port(daemon: &Daemon) -> Result<Duration, String> {
    whole_scrape(daemon, At::Port)
}

fn scrape_by_path(daemon: &Daemon) -> Result<Duration, String> {
    scrape(daemon, At::Path)
}

fn scrape_by_port(daemon: &Daemon) -> Result<Duration, String> {
    scrape(daemon, At::Port)
}

/// Thousands of connections a second that ask nothing, so that others are soon the oldest. `each`
/// prepares the next socket.
fn churn(
    scene: &mut Scene<'_>,
    at: At,
    mut each: impl FnMut(u32, &OwnedFd) -> rustix::io::Result<()>,
) -> Got {
    let mut held = VecDeque::new();
    scene.set_up();
    for number in 0.. {
        if scene.over() {
            break;
        }
        let socket = at.socket();
        rustix::io::ioctl_fionbio(&socket, true).expect("our own");
        // A queue that is full is a moment's rest.
        if each(number, &socket).and_then(|()| at.connect(&socket)) == Err(rustix::io::Errno::AGAIN)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        held.push_back(socket);
        if held.len() > 200 {
            held.drain(..100);
        }
    }
    Ok("hung up on".to_owned())
}

/// From one address after the other: a machine has 16 million.
fn come_from(number: u32, socket: &OwnedFd) -> rustix::io::Result<()> {
    let [.., high, low] = (number % 50_000).to_be_bytes();
    bind(socket, &SocketAddr::from((Ipv4Addr::new(127, 1, high, low.max(1)), 0)))
}

/// As one user after the other, as the root of a namespace with subordinate numbers can.
fn come_as(number: u32, _: &OwnedFd) -> rustix::io::Result<()> {
    let user = nix::unistd::Uid::from_raw(200_000 + number % 60_000);
    nix::unistd::seteuid(nix::unistd::Uid::from_raw(0)).expect("root");
    nix::unistd::seteuid(user).expect("root");
    Ok(())
}

/// Requests as a browser sends them for a page with a site name that leads to this machine.
fn ask_by_other_names(scene: &mut Scene<'_>, at: At) -> Got {
    scene.set_up();
    let mut got = String::new();
    while !scene.over() {
        for host in ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", ""] {
            let Ok(mut stream) = at.stream() else { continue };
            let ask = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let mut answer = String::new();
            let asked = stream.write_all(ask.as_bytes());
            if asked.and_then(|()| stream.read_to_string(&mut answer)).is_err() {
                continue;
            }
            if answer.contains("prezero_") {
                return Err(format!("READ the metrics by the name {host:?}"));
            }
            answer.lines().next().unwrap_or_default().clone_into(&mut got);
        }
    }
    Ok(got)
}

fn hold_scrapes(scene: &mut Scene<'_>, at: At) -> Got {
    let mut held = Vec::new();
    scene.set_up();
    while !scene.over() {
        if let Ok(mut stream) = at.stream() {
            let _ = stream.write_all(b"GET /metr");
            held.push(stream);
        }
        if held.len() > 200 {
            held.remove(0);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok("hung up on".to_owned())
}

/// As fast as eight threads can ask, which is faster than all are answered.
fn scrape_for_ever(scene: &mut Scene<'_>, at: At) -> Got {
    scene.set_up();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !scene.over() {
                    let _ = scrape(scene.daemon, at);
                }
            });
        }
    });
    Ok("answers, or hung up on".to_owned())
}

/// An answer wakes every process that waits for it: here sixty thousand for each of eight scrapes.
/// They began to wait before there was a connection, so that they could not be disconnected.
fn wake_many(scene: &mut Scene<'_>, at: At) -> Got {
    let crowds: Vec<_> = (0..8)
        .map(|_| {
            let socket = at.socket();
            let copies = copies(&socket);
            (watchers(&copies, 4), socket)
        })
        .collect();
    scene.set_up();
    for (sleepers, socket) in crowds {
        if at.connect(&socket).is_ok() {
            let mut stream = std::fs::File::from(socket);
            let _ = stream.write_all(ASK);
            let _ = stream.read(&mut [0; 1 << 16]);
        }
        drop(sleepers);
    }
    scene.wait();
    Ok("answers".to_owned())
}

/// Root's scraper, and one of another user's.
fn scrapers(act: crate::victim::Act) -> [Victim; 2] {
    let (root, other) = (User::Root, User::Victim);
    let who = [("scrape", root), ("a user's scrape", other)];
    who.map(|(what, user)| Victim { what, user, act })
}

/// The same beside thousands of connections a second, each accepted before the next: the test asks
/// whether they are served.
fn served(act: crate::victim::Act) -> [Victim; 2] {
    let (root, other) = (User::Root, User::Victim);
    let who = [("scrape within 1 s", root), ("a user's scrape within 1 s", other)];
    who.map(|(what, user)| Victim { what, user, act })
}

fn attacks(stage: &mut Stage, at: At, scrapers: &[Victim], served: &[Victim]) {
    let attack = |name: &str, act: fn(&mut Scene<'_>, At) -> Got| {
        Attack::new(format!("{name}, {at:?}"), User::Stranger, move |scene| act(scene, at))
    };
    let also = |attack, victims: &[Victim]| victims.iter().copied().fold(attack, Attack::also);
    also(attack("half scrapes", hold_scrapes), scrapers).run(stage);
    also(attack("scrapes without end", scrape_for_ever), scrapers).run(stage);
    let connections =
        attack("connections without end", |scene, at| churn(scene, at, |_, _| Ok(())));
    also(connections, served).run(stage);
    // It holds up scrapers, while borrowers are served.
    attack("epoll watchers of a scrape", wake_many).run(stage);
}

// Promise P242 (socket): Endless scrapes, and a scrape that wakes a hundred thousand epoll sets,
// delay no loan: metrics have a thread of their own, and making their text takes at most a tenth
// of the daemon's time.
#[test]
fn scrapers_by_path_delay_no_user() {
    let config = format!("{POOL}[metrics]\nlisten = \"{}\"\n{WORKERS}", At::Path.text());
    let Some(mut stage) = Stage::set(16, &config) else { return };
    // Every user may connect there, and who may connect may read.
    let served = served(whole_scrape_by_path);
    attacks(&mut stage, At::Path, &scrapers(scrape_by_path), &served);
    // As many users as there are places, and more: root keeps its own.
    Attack::new("connections of 60,000 users, Path", User::Root, |scene| {
        churn(scene, At::Path, come_as)
    })
    .also(served[0])
    .run(&mut stage);
    drop(stage);
    let _ = std::fs::remove_dir_all(place());
}

// Promise P242.
// Promise P260.
#[test]
fn scrapers_by_address_delay_no_user() {
    let config = format!("{POOL}[metrics]\nlisten = \"{}\"\n{WORKERS}", At::Port.text());
    let Some(mut stage) = Stage::set(16, &config) else { return };
    let served = served(whole_scrape_by_port);
    attacks(&mut stage, At::Port, &scrapers(scrape_by_port), &served);
    let addresses =
        Attack::new("connections from 50,000 addresses, Port", User::Stranger, |scene| {
            churn(scene, At::Port, come_from)
        });
    served.into_iter().fold(addresses, Attack::also).run(&mut stage);
    Attack::new("requests by another site's name, Port", User::Stranger, |scene| {
        ask_by_other_names(scene, At::Port)
    })
    .run(&mut stage);
}
