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
    Call, Error, GetInfo, GetInterfaceDescription, Info, InterfaceDescription, Lent, Parameters,
    Refused, ServiceError,
};

use super::connection::PeerConnection;
use super::watch::Reports;
use super::{Api, Service};
use crate::base::user_queues::ClosedInQueue;
use crate::ops::Shared;

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
pub(super) async fn reply<P: Parameters>(
    call: Call,
    method: impl AsyncFnOnce(P) -> Result<P::Reply, Error>,
) -> Result<Answer, Refused> {
    let reply = method(call.parameters()?).await?;
    Ok(Answer::new(&reply))
}

/// The refusal of a method that no interface of the socket has.
pub(super) fn not_found(api: Api, method: String) -> Refused {
    let interface = method.rsplit_once('.').map_or("", |(interface, _)| interface);
    Refused::Service(match description(api, interface) {
        Some(_) => ServiceError::MethodNotFound { method },
        None => ServiceError::InterfaceNotFound { interface: interface.to_owned() },
    })
}

/// Whether an interface of the socket has the method.
pub(super) fn has_method(api: Api, method: &str) -> bool {
    let (interface, method) = method.rsplit_once('.').unwrap_or_default();
    let has_it = |text: &str| {
        text.contains(&format!(
            "
method {method}("
        ))
    };
    description(api, interface).is_some_and(has_it)
}

/// Serves a connection until its peer is gone.
///
/// # Errors
/// The peer sent a message that is not a call, or took no reply.
pub(super) async fn serve(mut connection: PeerConnection, mut service: Service) -> io::Result<()> {
    while let Some(message) = connection.receive().await? {
        let call = Call::read(&message)?;
        drop(message);
        let oneway = call.oneway;
        let answer = answer(&mut service, call).await.unwrap_or_else(|refused| {
            Answer::Once(Message { text: wire::refusal(&refused), fds: Vec::new(), loan: None })
        });
        match answer {
            // Dropped with its descriptors, and so the loan ends that it hands over.
            _ if oneway => {}
            Answer::Once(message) => send(&connection, message, &service).await?,
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
async fn send(connection: &PeerConnection, message: Message, service: &Service) -> io::Result<()> {
    let Message { text, fds, loan } = message;
    let Some((lease, mut lent)) = loan else { return connection.send(&text?, &fds).await };
    let sent = connection.send(&text?, &lent).await;
    // The lease at once: a borrower that returns its loan and borrows again gets what it left. The
    // blocks before the end of the lease, after which the same queue looks at them.
    drop(lent.take_first());
    drop(lent);
    let mut shell = service.shell.borrow_mut();
    if sent.is_ok() {
        shell.sent(lease)
    } else {
        shell.end_lease(lease)
    }
    sent
}

async fn answer(service: &mut Service, call: Call) -> Result<Answer, Refused> {
    let api = service.api;
    if call.upgrade {
        // No method changes to another protocol.
        return Err(match has_method(api, &call.method) {
            true => ServiceError::MethodNotImplemented { method: call.method }.into(),
            false => not_found(api, call.method),
        });
    }
    match call.method.as_str() {
        GetInfo::NAME => reply(call, async |GetInfo {}| Ok(info(api))).await,
        GetInterfaceDescription::NAME => {
            let GetInterfaceDescription { interface } = call.parameters()?;
            let Some(description) = description(api, &interface) else {
                return Err(ServiceError::InterfaceNotFound { interface }.into());
            };
            Ok(Answer::new(&InterfaceDescription { description: description.to_owned() }))
        }
        _ => service.call(call).await,
    }
}

fn info(api: Api) -> Info {
    Info {
        vendor: "prezero".to_owned(),
        product: "prezero".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        url: "file:///usr/share/doc/prezero/html/index.html".to_owned(),
        interfaces: api.interfaces().iter().map(|(name, _)| (*name).to_owned()).collect(),
    }
}

fn description(api: Api, interface: &str) -> Option<&'static str> {
    let mut all = api.interfaces().iter();
    all.find(|(name, _)| *name == interface).map(|(_, description)| *description)
}
