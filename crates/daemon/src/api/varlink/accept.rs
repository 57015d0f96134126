// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket: one task per connection, and a bound on everything that a connection can take.
//!
//! A [`connection`](super::connection) bounds what its peer can make the daemon remember. How many
//! there may be, and which user has its turn, is for [`crate::peers::users`] to say.
//!
//! A peer without any right gets the reason and is disconnected before anything else is done for
//! it.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net;
use std::rc::Rc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use units::Uid;

use super::acceptor::Acceptor;
use super::connection::PeerConnection;
use super::rejector::Rejector;
use super::{Api, Service, serving};
use crate::base::crowds::{Crowd, TRIM_INTERVAL};
use crate::base::error::Error;
use crate::ops::Shared;
use crate::peers::account::Accounts;
use crate::peers::rights::{Rights, SharedGroups};
use crate::peers::users::{Bounds, Full, Place, Users, charged};

/// How long a connection may outlive its silent peer.
const HANGUP_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Connections served, or refused, before others have their turn: at 20 us each a fifth of a
/// millisecond, five times a call.
const MAX_ACCEPTS_PER_TURN: u64 = 8;
/// The shortest time between two lines about the same kind of trouble.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Refusals between two lines of the log.
#[derive(Debug, Default)]
struct Troubles {
    strangers: Cell<u64>,
    too_many: Cell<u64>,
}

fn count(cell: &Cell<u64>) {
    cell.set(cell.get() + 1);
}

/// The most connections of agents: a machine has one or two, with a few calls at a time.
const MAX_AGENT_CONNECTIONS: usize = 64;
/// Of one user among them.
const MAX_CONNECTIONS_OF_AGENT: usize = MAX_AGENT_CONNECTIONS / 4;

impl Api {
    fn bounds(self) -> Bounds {
        let bounds = Bounds::new(descriptors());
        match self {
            Self::Borrowers => bounds,
            Self::Agents => {
                let (all, user) = (MAX_AGENT_CONNECTIONS, MAX_CONNECTIONS_OF_AGENT);
                Bounds { all: bounds.all.min(all), user: bounds.user.min(user) }
            }
        }
    }

    fn may_connect(self, rights: &Rights) -> Result<(), wire::Error> {
        match self {
            Self::Borrowers => rights.may_connect(),
            Self::Agents => rights.may_be_agent(),
        }
    }
}

/// Accepts connections for ever.
pub(crate) async fn accept(api: Api, listener: UnixListener, shell: Shared, groups: SharedGroups) {
    let bounds = api.bounds();
    let rejector = Rejector::new();
    let full = too_many(&format!("{} connections wait to be served", bounds.all));
    let away = rejector.clone();
    let failed = |source| Error::Runtime { what: "cannot listen", source };
    let listener = listener.into_std().map_err(failed);
    let reject = move |stream| away.reject(stream, full.clone());
    let acceptor = match listener.and_then(|listener| Acceptor::open(listener, bounds.all, reject))
    {
        Ok(acceptor) => acceptor,
        Err(error) => return tracing::error!(%error, "nobody can be served"),
    };
    let users = Users::new(bounds);
    let troubles = Troubles::default();
    tokio::select! {
        () = serve_all(api, &acceptor, &shell, &groups, &users, &troubles, &rejector) => {}
        () = tidy(&acceptor, &users, &troubles) => {}
    }
}

fn descriptors() -> u64 {
    use nix::sys::resource::{Resource, getrlimit};
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft)
}

async fn serve_all(
    api: Api,
    acceptor: &Acceptor,
    shell: &Shared,
    groups: &SharedGroups,
    users: &Rc<Users>,
    troubles: &Troubles,
    rejector: &Rejector,
) {
    let accounts = Accounts::new(shell.borrow().roots().clone());
    for served in 1_u64.. {
        // Accepts yield to open connections, under any load; and the last new connection waits for
        // at most one call, however many came before it.
        if served.is_multiple_of(MAX_ACCEPTS_PER_TURN) {
            yield_now().await;
        }
        let (stream, peer) = acceptor.next().await;
        let own = Uid(peer.uid);
        let rights = match Rights::from_peer(&stream, peer, Rc::clone(groups)) {
            Ok(rights) => rights,
            Err(error) => {
                tracing::debug!(%error, uid = own.0, "a peer without groups is refused");
                count(&troubles.strangers);
                continue;
            }
        };
        if let Err(error) = api.may_connect(&rights) {
            count(&troubles.strangers);
            let mut shell = shell.borrow_mut();
            shell.metrics.stranger();
            shell.incidents.stranger(own, rights.peer().pid);
            drop(shell);
            rejector.reject(stream, error);
            continue;
        }
        let rights = match accounts.of(&stream, rights.peer()) {
            Ok(account) => rights.on_account(account),
            Err(error) => {
                tracing::debug!(%error, uid = own.0, "whose a peer is cannot be known");
                let what = format!("whose quota your loans count against cannot be known: {error}");
                rejector.reject(stream, wire::Error::Failed { what });
                continue;
            }
        };
        let place = match users.enter(rights.account().0, rights.is_master()) {
            Ok(place) => Rc::new(place),
            Err(full) => {
                count(&troubles.too_many);
                rejector.reject(stream, no_place(&rights, full));
                continue;
            }
        };
        let stream = match UnixStream::from_std(net::UnixStream::from(stream)) {
            Ok(stream) => Rc::new(stream),
            Err(error) => {
                tracing::debug!(%error, "a connection cannot be waited for");
                continue;
            }
        };
        let rights = rights.with_connection(&stream);
        let (shell, held) = (Rc::clone(shell), Rc::clone(&place));
        tokio::task::spawn_local(async move {
            let peer = Rc::downgrade(&stream);
            let service = Service { shell, rights, place: held, api, peer };
            let served = serve(stream, service, Rc::clone(&place));
            if let Err(error) = charged(&place, served).await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
}

fn no_place(rights: &Rights, full: Full) -> wire::Error {
    let uid = rights.account().0;
    too_many(&match full {
        Full::User(most) => format!("user {uid} has {most} connections open, the most it may"),
        Full::All(most) => {
            format!(
                "{most} connections are open, the most there may be, and user {uid} has its part"
            )
        }
    })
}

fn too_many(what: &str) -> wire::Error {
    wire::Error::Failed { what: format!("{what}: close some") }
}

async fn serve(stream: Rc<UnixStream>, service: Service, place: Rc<Place>) -> io::Result<()> {
    let connection = PeerConnection::new(Rc::clone(&stream), Rc::clone(&place));
    let result = tokio::select! {
        result = serving::serve(connection, service) => result,
        () = gone(&stream) => Ok(()),
        () = place.wanted() => Ok(()),
    };
    // The end of the last descriptor wakes the watchers of the other end, as well.
    let last = place.wakes_many().then(|| stream.as_fd().try_clone_to_owned());
    drop(stream);
    if let Some(Ok(last)) = last {
        drop(place.aside(move || drop(last)));
    }
    result
}

/// Waits until the peer is gone.
///
/// A read tells that, but a watch only writes: a silent watch would outlive its client for ever. A
/// look each [`HANGUP_POLL_INTERVAL`] is enough for that.
async fn gone(socket: &UnixStream) {
    loop {
        sleep(HANGUP_POLL_INTERVAL).await;
        let mut fds = [PollFd::new(socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled = poll(&mut fds, Some(&now));
        if polled.is_ok() && fds[0].revents().contains(PollFlags::HUP) {
            return;
        }
    }
}

/// Gives memory back when a crowd is gone, and tells of refusals: a line each [`LOG_INTERVAL`].
async fn tidy(acceptor: &Acceptor, users: &Users, troubles: &Troubles) {
    let (mut not_accepted, mut made_room) = (0, 0);
    let mut crowd = Crowd::default();
    let mut reported: Option<Instant> = None;
    loop {
        sleep(TRIM_INTERVAL).await;
        users.forget_rested();
        crowd.end(users.take_ended());
        let (without_rights, too_many) = (&troubles.strangers, &troubles.too_many);
        not_accepted += acceptor.take_failed();
        made_room += users.take_made_room();
        let refused = without_rights.get() + too_many.get() + not_accepted > 0 || made_room > 0;
        if refused && reported.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            let (without_rights, too_many) = (without_rights.take(), too_many.take());
            tracing::warn!(
                without_rights,
                too_many,
                not_accepted,
                made_room,
                "refused connections, or ended them for others"
            );
            (not_accepted, made_room) = (0, 0);
            reported = Some(Instant::now());
        }
    }
}
