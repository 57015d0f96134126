// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The users of the open connections to the metrics, and the one to end to admit another.
//!
//! A connection counts for a user instead of an address or a number: users of this machine have
//! millions of addresses (127.0.0.0/8) and 65,536 subordinate numbers each. For a local connection
//! the kernel names the user of the other end, by TCP as well.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::rc::Rc;

use linux::{Peer, Roots, TcpOwners};
use tokio::task::AbortHandle;

use crate::peers::account::Accounts;

/// Connections at a time. A scraper is done within milliseconds of its text, and a connection that
/// waits is a descriptor and 1 KiB.
pub(super) const MAX_SCRAPES: usize = 128;
/// Connections of root's and the daemon's own user beside these: no other user can take them.
pub(super) const MAX_OWN_SCRAPES: usize = 16;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scraper {
    /// Root, or the user that the daemon runs as.
    Own,
    /// Another user of this machine, with all subordinate numbers.
    User(u32),
    /// All that are on this machine, and that the kernel does not know any more.
    Local,
    /// Another machine, or the network of IPv6 in which it has as many addresses as it likes.
    Remote(IpAddr),
}

/// Finds out who asks.
#[derive(Debug)]
pub(super) struct Scrapers {
    accounts: Accounts,
    owners: Option<TcpOwners>,
    own: u32,
}

impl Scrapers {
    pub(super) fn new(roots: Roots) -> Self {
        let owners = TcpOwners::open().inspect_err(
            |error| tracing::warn!(%error, "all local scrapers by TCP count as one user"),
        );
        let own = rustix::process::geteuid().as_raw();
        Self { accounts: Accounts::new(roots), owners: owners.ok(), own }
    }

    /// The user of a connection by TCP.
    pub(super) fn of_address(&self, local: SocketAddr, peer: SocketAddr) -> Scraper {
        match self.owners.as_ref().map(|owners| owners.of(local, peer)) {
            Some(Ok(Some(uid))) => return self.user(uid, self.accounts.of_number(uid)),
            Some(Err(error)) => tracing::debug!(%error, "who scrapes is not known"),
            Some(Ok(None)) | None => {}
        }
        match peer.ip().to_canonical() {
            ip if ip.is_loopback() => Scraper::Local,
            IpAddr::V6(ip) => {
                let network = u128::from(ip) & !u128::from(u64::MAX);
                Scraper::Remote(Ipv6Addr::from(network).into())
            }
            ip @ IpAddr::V4(_) => Scraper::Remote(ip),
        }
    }

    /// The user of a connection to a unix socket.
    pub(super) fn of_socket(&self, socket: impl AsFd, peer: &Peer) -> Scraper {
        match self.accounts.of(socket, peer) {
            Ok(account) => self.user(peer.uid, account.0),
            // A peer that connects and ends at once is unknown.
            Err(_) => Scraper::Local,
        }
    }

    fn user(&self, uid: u32, account: u32) -> Scraper {
        // A subordinate of the daemon's user is a user among others.
        match uid == 0 || (uid == self.own && account == self.own) {
            true => Scraper::Own,
            false => Scraper::User(account),
        }
    }
}

/// One connection.
#[derive(Debug)]
struct Connection {
    who: Scraper,
    /// Whether it has asked for the metrics.
    has_asked: Rc<Cell<bool>>,
    task: AbortHandle,
}

/// The connections that are open, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Places(VecDeque<Connection>);

impl Places {
    /// One more. Where there are too many, one of the user with most ends: the oldest that has not
    /// asked, since a scraper asks at once, or the newest that has.
    pub(super) fn add(&mut self, who: Scraper, has_asked: Rc<Cell<bool>>, task: AbortHandle) {
        self.0.retain(|connection| !connection.task.is_finished());
        let is_own = |who: &Scraper| *who == Scraper::Own;
        let most = if is_own(&who) { MAX_OWN_SCRAPES } else { MAX_SCRAPES };
        let beside = self.0.iter().filter(|other| is_own(&other.who) == is_own(&who));
        if beside.clone().count() >= most {
            let count = |who| self.0.iter().filter(|other| other.who == who).count();
            // Of equals the last: so backwards, for that one's oldest has waited longest.
            let busiest = beside.rev().map(|other| other.who).max_by_key(|who| count(*who));
            self.end_one_of(busiest.unwrap_or(who));
        }
        self.0.push_back(Connection { who, has_asked, task });
    }

    fn end_one_of(&mut self, who: Scraper) {
        let silent = self.0.iter().position(|one| one.who == who && !one.has_asked.get());
        let at = silent.or_else(|| self.0.iter().rposition(|one| one.who == who));
        if let Some(ended) = at.and_then(|at| self.0.remove(at)) {
            ended.task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    use tokio::task::{LocalSet, spawn_local};

    fn in_a_loop(test: impl AsyncFnOnce()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, test());
    }

    fn come(places: &mut Places, who: Scraper, asks: bool) {
        let task = spawn_local(pending::<()>()).abort_handle();
        places.add(who, Rc::new(Cell::new(asks)), task);
    }

    fn count(places: &Places, who: Scraper) -> usize {
        places.0.iter().filter(|one| one.who == who).count()
    }

    const FOE: Scraper = Scraper::User(1);
    const SCRAPER: Scraper = Scraper::User(2);

    // Promise P98 (socket): Connections to the metrics count for a user, by path or address, with
    // all its subordinate numbers: one more ends one of the user with most. Root and the daemon's
    // own user keep places that no other user takes.
    #[test]
    fn a_user_with_all_places_makes_room_for_others() {
        in_a_loop(async || {
            let mut places = Places::default();
            (0..1000).for_each(|_| come(&mut places, FOE, true));
            come(&mut places, SCRAPER, false);
            for asks in [true, false].repeat(500) {
                come(&mut places, FOE, asks);
                assert_eq!(count(&places, FOE), MAX_SCRAPES - 1);
                assert_eq!(count(&places, SCRAPER), 1, "it costs only its own");
            }
        });
    }

    // Promise P98.
    #[test]
    fn no_number_of_users_takes_roots_places() {
        in_a_loop(async || {
            let mut places = Places::default();
            come(&mut places, Scraper::Own, false);
            (0..1000).for_each(|user| come(&mut places, Scraper::User(user), true));
            assert_eq!(count(&places, Scraper::Own), 1);
            assert_eq!(places.0.len(), MAX_SCRAPES + 1);
            (0..100).for_each(|_| come(&mut places, Scraper::Own, false));
            assert_eq!(count(&places, Scraper::Own), MAX_OWN_SCRAPES);
            assert_eq!(places.0.len(), MAX_SCRAPES + MAX_OWN_SCRAPES);
        });
    }

    #[test]
    fn user_keeps_its_connections_that_have_asked() {
        in_a_loop(async || {
            let mut places = Places::default();
            come(&mut places, Scraper::Local, true);
            (0..1000).for_each(|_| come(&mut places, Scraper::Local, false));
            assert!(places.0[0].has_asked.get(), "the others are silent");
        });
    }

    // Promise P98.
    #[test]
    fn local_connection_counts_by_user_and_remote_by_network() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let ours = std::net::TcpStream::connect(local).unwrap();
        let scrapers = Scrapers::new(Roots::default());
        let of = |peer| scrapers.of_address(local, peer);
        assert_eq!(of(ours.local_addr().unwrap()), Scraper::Own);
        assert_eq!(of("127.3.2.1:9".parse().unwrap()), Scraper::Local, "gone already");
        assert_eq!(
            of("[2001:db8::1:2]:9".parse().unwrap()),
            of("[2001:db8::3:4]:7".parse().unwrap())
        );
        assert_ne!(of("192.0.2.1:9".parse().unwrap()), of("192.0.2.2:9".parse().unwrap()));
    }
}
