// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Serves one connection: reads a call, has the interface answer it, sends the reply.
//!
//! A call that the interface does not have is refused by an error of `org.varlink.service`, and the
//! connection goes on. A message that is not a call ends it.

use std::io;
use std::os::fd::OwnedFd;

use serde::Serialize;
use units::LeaseId;
use wire::{
    BadValue, Call, GetInfo, GetInterfaceDescription, Info, InterfaceDescription, Lent, Parameters,
    Refused, SERVICE, ServiceError,
};

use super::connection::PeerConnection;
use super::watch::Reports;
use crate::base::user_queues::ClosedInQueue;
use crate::ops::Shared;

/// What a socket serves beside `org.varlink.service`.
pub(super) trait Interface {
    /// Its name.
    const NAME: &'static str;
    /// Its definition, as clients get it.
    const DESCRIPTION: &'static str;
    /// How it refuses.
    type Error: Serialize + From<BadValue>;

    /// Carries out a call of one of its methods.
    async fn call(&mut self, call: Call) -> Result<Answer, Refused<Self::Error>>;
}

/// What a call is answered by.
pub(super) enum Answer {
    /// One message.
    Once(Message),
    /// Messages until the peer or the daemon is gone.
    Reports(Reports),
}

/// One message, with its descriptors.
pub(super) struct Message {
    text: serde_json::Result<Vec<u8>>,
    fds: Vec<OwnedFd>,
    /// The loan that it hands over, and its descriptors.
    loan: Option<(LeaseId, ClosedInQueue)>,
}

impl Answer {
    /// A reply.
    pub(super) fn new<T: Serialize>(reply: &T) -> Self {
        Self::with_fds(reply, Vec::new())
    }

    /// A reply with descriptors beside it.
    pub(super) fn with_fds<T: Serialize>(reply: &T, fds: Vec<OwnedFd>) -> Self {
        Self::Once(Message { text: wire::reply(reply, false), fds, loan: None })
    }

    /// A reply that hands over a loan. The loan ends if the reply cannot be sent.
    pub(super) fn with_loan(lent: &Lent, fds: Vec<OwnedFd>, shell: &Shared) -> Self {
        let loan = Some((lent.lease, shell.borrow().to_send(lent.lease, fds)));
        Self::Once(Message { text: wire::reply(lent, false), fds: Vec::new(), loan })
    }
}

/// Calls a method, and writes its reply.
pub(super) async fn reply<P: Parameters, E: From<BadValue>>(
    call: Call,
    method: impl AsyncFnOnce(P) -> Result<P::Reply, E>,
) -> Result<Answer, Refused<E>> {
    let reply = method(call.parameters()?).await.map_err(Refused::Interface)?;
    Ok(Answer::new(&reply))
}

/// The refusal of a method that none of the interfaces `own` and `org.varlink.service` has.
pub(super) fn unknown<E>(call: Call, own: &str) -> Refused<E> {
    let interface = call.method.rsplit_once('.').map_or("", |(interface, _)| interface);
    Refused::Service(if [own, SERVICE.0].contains(&interface) {
        ServiceError::MethodNotFound { method: call.method }
    } else {
        ServiceError::InterfaceNotFound { interface: interface.to_owned() }
    })
}

/// Serves a connection until its peer is gone.
///
/// # Errors
/// The peer sent a message that is not a call, or took no reply.
pub(super) async fn serve<I: Interface>(
    mut connection: PeerConnection,
    mut interface: I,
    shell: &Shared,
) -> io::Result<()> {
    while let Some(message) = connection.receive().await? {
        let call = Call::read(&message)?;
        drop(message);
        let oneway = call.oneway;
        let answer = answer(&mut interface, call).await.unwrap_or_else(|refused| {
            Answer::Once(Message { text: wire::refusal(&refused), fds: Vec::new(), loan: None })
        });
        match answer {
            // Dropped with its descriptors, and so the loan ends that it hands over.
            _ if oneway => {}
            Answer::Once(message) => send(&connection, message, shell).await?,
            Answer::Reports(mut reports) => {
                while let Some(report) = reports.next().await {
                    connection.send(&wire::reply(&report, true)?, &[]).await?;
                }
            }
        }
    }
    Ok(())
}

/// Sends a message. It may be cancelled: then the borrower may have the loan, and its content is
/// not kept.
async fn send(connection: &PeerConnection, message: Message, shell: &Shared) -> io::Result<()> {
    let Message { text, fds, loan } = message;
    let Some((lease, lent)) = loan else { return connection.send(&text?, &fds).await };
    let sent = connection.send(&text?, &lent).await;
    // Before the end of the lease, after which the same queue looks at the blocks.
    drop(lent);
    let mut shell = shell.borrow_mut();
    if sent.is_ok() {
        shell.sent(lease)
    } else {
        shell.end_lease(lease)
    }
    sent
}

async fn answer<I: Interface>(interface: &mut I, call: Call) -> Result<Answer, Refused<I::Error>> {
    if call.upgrade {
        return Err(no_upgrade::<I>(call));
    }
    match call.method.as_str() {
        GetInfo::NAME => reply(call, async |GetInfo {}| Ok(info::<I>())).await,
        GetInterfaceDescription::NAME => {
            let GetInterfaceDescription { interface } = call.parameters()?;
            let Some(description) = description::<I>(&interface) else {
                return Err(Refused::Service(ServiceError::InterfaceNotFound { interface }));
            };
            Ok(Answer::new(&InterfaceDescription { description: description.to_owned() }))
        }
        _ => interface.call(call).await,
    }
}

fn info<I: Interface>() -> Info {
    Info {
        vendor: "prezero".to_owned(),
        product: "prezero".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        url: "https://crates.io/crates/prezero".to_owned(),
        interfaces: vec![SERVICE.0.to_owned(), I::NAME.to_owned()],
    }
}

fn description<I: Interface>(interface: &str) -> Option<&'static str> {
    let all = [SERVICE, (I::NAME, I::DESCRIPTION)];
    all.into_iter().find(|(name, _)| *name == interface).map(|(_, description)| description)
}

/// The refusal of a call that wants another protocol: no method changes to one.
fn no_upgrade<I: Interface>(call: Call) -> Refused<I::Error> {
    let (interface, method) = call.method.rsplit_once('.').unwrap_or_default();
    let has_it = |text: &str| text.contains(&format!("\nmethod {method}("));
    if description::<I>(interface).is_some_and(has_it) {
        return Refused::Service(ServiceError::MethodNotImplemented { method: call.method });
    }
    unknown(call, I::NAME)
}
