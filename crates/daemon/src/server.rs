// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket: one task per connection, and a bound on everything that a connection can take.
//!
//! zlink's server serves many connections from one loop that awaits each reply's delivery, so that
//! one client that does not read would stall all. Here each connection has a server of its own,
//! over a [`socket`] that bounds what its peer can make the daemon remember. How many there may be,
//! and whose turn it is, is for [`users`] to say.
//!
//! Who has no right at all is told so and hung up on before anything else is done for it.

mod socket;
mod users;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use linux::{Peer, heap};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use units::Uid;
use zlink::{ReadyListener, Server};

use crate::account::Accounts;
use crate::rights::{Rights, SharedGroups};
use crate::service::{Service, Shared};
use socket::Socket;
pub(crate) use users::Place;
use users::{Bounds, Full, Users};

/// How long a connection may outlive its silent peer.
const HANGUP_POLL: Duration = Duration::from_secs(5);
/// How long the socket of a refused connection stays open, so that a peer which has not sent its
/// call yet does not find it broken before it reads why.
const FAREWELL: Duration = Duration::from_millis(100);
/// So many of them at a time; the rest is closed at once.
const FAREWELLS: usize = 64;
/// Connections accepted, or refused, before others have their turn: at 20 us each about a
/// millisecond.
const ACCEPTS: u64 = 64;
/// How often is looked whether memory can be given back and whether there is something to tell.
const TIDY: Duration = Duration::from_secs(1);
/// The shortest time between two lines about the same kind of trouble.
const QUIET: Duration = Duration::from_secs(10);
/// Memory is given back when so many connections are gone since the last time.
const WORTH_TRIMMING: usize = 64;

/// What is refused, between two lines of the log.
#[derive(Debug, Default)]
struct Troubles {
    strangers: Cell<u64>,
    too_many: Cell<u64>,
    accepts: Cell<u64>,
}

fn count(cell: &Cell<u64>) {
    cell.set(cell.get() + 1);
}

/// Accepts connections for ever.
pub(crate) async fn accept(listener: UnixListener, shell: Shared, groups: SharedGroups) {
    let users = Users::new(Bounds::of(descriptors()));
    let troubles = Troubles::default();
    tokio::select! {
        () = accept_all(&listener, &shell, &groups, &users, &troubles) => {}
        () = tidy(&users, &troubles) => {}
    }
}

fn descriptors() -> u64 {
    use nix::sys::resource::{Resource, getrlimit};
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft)
}

async fn accept_all(
    listener: &UnixListener,
    shell: &Shared,
    groups: &SharedGroups,
    users: &Rc<Users>,
    troubles: &Troubles,
) {
    let accounts = Accounts::new(shell.borrow().roots().clone());
    let farewells = Arc::new(Semaphore::new(FAREWELLS));
    for accepted in 1_u64.. {
        // However many knock, whoever is connected gets its turn; and whoever knocks last does not
        // wait for a call of somebody else's for each that knocked before.
        if accepted.is_multiple_of(ACCEPTS) {
            yield_now().await;
        }
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: wait for some to come back.
                tracing::debug!(%error, "cannot accept");
                count(&troubles.accepts);
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let peer = match Peer::of(&stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::debug!(%error, "a peer without credentials is refused");
                count(&troubles.strangers);
                continue;
            }
        };
        let own = Uid(peer.uid);
        let rights = Rights::new(peer, own, Rc::clone(groups));
        if let Err(error) = rights.may_connect() {
            count(&troubles.strangers);
            refuse(stream, &error, &farewells);
            continue;
        }
        let rights = match accounts.of(&stream, rights.peer()) {
            Ok(account) => rights.on_account(account),
            Err(error) => {
                tracing::debug!(%error, uid = own.0, "whose a peer is cannot be known any more");
                continue;
            }
        };
        let place = match users.enter(rights.account().0, rights.is_master()) {
            Ok(place) => Rc::new(place),
            Err(full) => {
                count(&troubles.too_many);
                refuse(stream, &too_many(&rights, full), &farewells);
                continue;
            }
        };
        let service = Service::new(Rc::clone(shell), rights, Rc::clone(&place));
        tokio::task::spawn_local(async move {
            if let Err(error) = serve(stream, service, place).await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
}

fn too_many(rights: &Rights, full: Full) -> wire::Error {
    let uid = rights.account().0;
    let what = match full {
        Full::User(most) => format!("user {uid} has {most} connections open, the most it may"),
        Full::All(most) => format!("{most} connections are open, the most there may be"),
    };
    wire::Error::Failed { what: format!("{what}: close some") }
}

/// Says why, without reading anything and without waiting, and hangs up.
fn refuse(stream: UnixStream, error: &wire::Error, farewells: &Arc<Semaphore>) {
    let Ok(mut message) = serde_json::to_vec(error) else { return };
    message.push(0);
    if socket::send(&stream, &message, &[]).is_err() {
        return;
    }
    if let Ok(place) = Arc::clone(farewells).try_acquire_owned() {
        tokio::task::spawn_local(async move {
            sleep(FAREWELL).await;
            drop((stream, place));
        });
    }
}

async fn serve(stream: UnixStream, service: Service, place: Rc<Place>) -> zlink::Result<()> {
    let (stream, broken) = (Rc::new(stream), Rc::new(Notify::new()));
    let socket = Socket::new(Rc::clone(&stream), place, Rc::clone(&broken));
    let server = Server::new(ReadyListener::new(socket), service);
    tokio::select! {
        result = server.run() => result,
        () = gone(&stream) => Ok(()),
        () = broken.notified() => Ok(()),
    }
}

/// Waits until the peer is gone.
///
/// The server sees that itself, except while it streams a watch, when it only writes: a silent
/// watch would outlive its client for ever. A look each [`HANGUP_POLL`] is enough for that.
async fn gone(socket: &UnixStream) {
    loop {
        sleep(HANGUP_POLL).await;
        let mut fds = [PollFd::new(socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled = poll(&mut fds, Some(&now));
        if polled.is_ok() && fds[0].revents().contains(PollFlags::HUP) {
            return;
        }
    }
}

/// Gives memory back when a crowd is gone, and tells of refusals: a line each [`QUIET`].
async fn tidy(users: &Users, troubles: &Troubles) {
    let mut most = 0;
    let mut told: Option<Instant> = None;
    loop {
        sleep(TIDY).await;
        let now = users.connections();
        most = most.max(now);
        if most - now >= WORTH_TRIMMING {
            heap::give_back();
            most = now;
        }
        let refused = (&troubles.strangers, &troubles.too_many, &troubles.accepts);
        let refused = (refused.0.get(), refused.1.get(), refused.2.get());
        if refused != (0, 0, 0) && told.is_none_or(|at| at.elapsed() >= QUIET) {
            let (without_rights, too_many, not_accepted) = refused;
            tracing::warn!(without_rights, too_many, not_accepted, "refused connections");
            for cell in [&troubles.strangers, &troubles.too_many, &troubles.accepts] {
                cell.set(0);
            }
            told = Some(Instant::now());
        }
    }
}
