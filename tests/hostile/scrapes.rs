// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics' socket, to which everybody may connect where it is an address of 127.0.0.1: halves,
//! floods, and those who have a crowd woken by each answer.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use prezero_tests::Daemon;
use prezero_tests::scrape::ASK;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::attack::{Attack, POOL, WORKERS};
use crate::scene::{Got, Scene};
use crate::socket::{copies, watchers};
use crate::stage::Stage;
use crate::users::User;
use crate::victim::{Clock, Victim};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where metrics are served. One place of each kind for all: only one test at a time has a daemon.
#[derive(Debug, Clone, Copy)]
enum At {
    /// A path to which everybody may connect.
    Path,
    /// An address of this machine's.
    Port,
}

impl At {
    /// As the configuration has it.
    fn text(self) -> String {
        static PORT: OnceLock<u16> = OnceLock::new();
        match self {
            Self::Path => {
                std::env::temp_dir().join("prezero-test-metrics.socket").display().to_string()
            }
            Self::Port => {
                let port = PORT.get_or_init(|| {
                    let probe = TcpListener::bind("127.0.0.1:0").expect("a port");
                    probe.local_addr().expect("an address").port()
                });
                format!("127.0.0.1:{port}")
            }
        }
    }

    /// One that is not connected yet.
    fn socket(self) -> OwnedFd {
        let family = match self {
            Self::Path => AddressFamily::UNIX,
            Self::Port => AddressFamily::INET,
        };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("a socket");
        let patience = Some(PATIENCE);
        set_socket_timeout(&socket, Timeout::Recv, patience).expect("a good time");
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

fn scrape_by_path(daemon: &Daemon) -> Result<Duration, String> {
    scrape(daemon, At::Path)
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

/// Whoever answers wakes all who wait for it: here sixty thousand for each of eight scrapes, which
/// began to before there was a connection, so that nobody could hang up on them.
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

fn attacks(stage: &mut Stage, at: At, also: Option<Victim>) {
    let attack = |name: &str, act: fn(&mut Scene<'_>, At) -> Got| {
        Attack::new(format!("{name}, {at:?}"), User::Stranger, move |scene| act(scene, at))
    };
    for (name, act) in [
        ("half scrapes", hold_scrapes as fn(&mut Scene<'_>, At) -> Got),
        ("scrapes without end", scrape_for_ever),
    ] {
        also.into_iter().fold(attack(name, act), Attack::also).run(stage);
    }
    // That one holds up whoever scrapes, and nobody who borrows.
    attack("epoll watchers of a scrape", wake_many).run(stage);
}

#[test]
fn those_who_scrape_by_a_path_hold_up_nobody() {
    let config = format!("{POOL}[metrics]\nlisten = \"{}\"\n{WORKERS}", At::Path.text());
    let Some(mut stage) = Stage::set(16, &config) else { return };
    // Root is another user than a stranger, and has its turn. Whoever may connect may read: here
    // everybody.
    let victim = Victim { what: "scrape", user: User::Root, act: scrape_by_path };
    attacks(&mut stage, At::Path, Some(victim));
    drop(stage);
    let _ = std::fs::remove_file(At::Path.text());
}

#[test]
fn those_who_scrape_by_an_address_hold_up_no_loan() {
    let config = format!("{POOL}[metrics]\nlisten = \"{}\"\n{WORKERS}", At::Port.text());
    let Some(mut stage) = Stage::set(16, &config) else { return };
    // All users of one machine are one there, as are their turns.
    attacks(&mut stage, At::Port, None);
}
