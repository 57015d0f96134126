// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes with 65,536 supplementary groups, which every user with subordinate groups
//! (subgid(5)) can have: the daemon's time and memory do not grow with them.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use client::Client;
use prezero_tests::{Daemon, process};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::attack::Attack;
use crate::scene::{Got, Scene};
use crate::stage::Stage;
use crate::users::User;
use crate::victim::{Clock, Victim};

/// An agent that looks.
pub(crate) const SUPPLY: Victim = Victim { what: "GetSupply", user: User::Root, act: supply };

fn supply(daemon: &Daemon) -> Result<Duration, String> {
    let clock = Clock::start(daemon);
    let answer = Client::connect(daemon.agent_socket()).and_then(|mut agent| agent.supply());
    let took = clock.stop();
    answer.map(|_| took).map_err(|error| format!("connect and GetSupply: {error}"))
}

/// The growth of the daemon's memory allowed under an attack: it has 10 MiB, and at most 20.
const MAX_GROWTH_KIB: u64 = 10 << 10;

/// What an attack makes the daemon take: harm if it is more than others can spare.
#[derive(Debug)]
pub(crate) struct Growth {
    pid: u32,
    before_kib: u64,
}

impl Growth {
    pub(crate) fn new(daemon: &Daemon) -> Self {
        let pid = daemon.pid();
        Self { pid, before_kib: process::resident_kib(pid) }
    }

    pub(crate) fn judge(&self) -> Result<(), String> {
        self.within(MAX_GROWTH_KIB)
    }

    pub(crate) fn within(&self, most_kib: u64) -> Result<(), String> {
        let grown = process::resident_kib(self.pid).saturating_sub(self.before_kib);
        if grown > most_kib {
            return Err(format!("the daemon has taken {grown} KiB for it"));
        }
        Ok(())
    }
}

/// Connects again and again, with 64 connections open at a time.
fn knock(scene: &mut Scene<'_>) -> Got {
    let address = SocketAddrUnix::new(scene.daemon.socket()).expect("a short path");
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let mut open: [Option<OwnedFd>; 64] = std::array::from_fn(|_| None);
    scene.set_up();
    let mut knocked = 0;
    while !scene.over() {
        let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let stream = stream.expect("64 are open");
        match connect(&stream, &address) {
            Ok(()) => {
                open[knocked % open.len()] = Some(stream);
                knocked += 1;
            }
            Err(_) => std::thread::sleep(Duration::from_micros(200)),
        }
    }
    Ok("refused".to_owned())
}

pub(crate) fn connecting_strangers_of_many_groups_delay_no_user(stage: &mut Stage) {
    Attack::new("connections of 65,536 groups", User::StrangerOfManyGroups, knock)
        .also(SUPPLY)
        .run(stage);
}

/// Keeps as many connections as it may.
fn keep_connections(scene: &mut Scene<'_>) -> Got {
    let growth = Growth::new(scene.daemon);
    let mut client = scene.client();
    client.status().map_err(|error| format!("a member by its primary group: {error}"))?;
    let kept: Vec<_> =
        (0..600).filter_map(|_| UnixStream::connect(scene.daemon.socket()).ok()).collect();
    // The last is served after all others have been.
    let last = scene.client().status();
    scene.set_up();
    scene.wait();
    growth.judge()?;
    drop(kept);
    Ok(if last.is_ok() { "its connections" } else { "no more than its part" }.to_owned())
}

pub(crate) fn connections_of_many_groups_cost_no_more_memory(stage: &mut Stage) {
    let who = User::BorrowerOfManyGroups;
    Attack::new("600 connections of 65,536 groups", who, keep_connections).run(stage);
}
