// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that talks to the daemon, and comes back to one that went away.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use client::{Client, Error};
use units::{Node, PageSize, Pages};
use wire::{PoolChange, Status};

/// What the daemon is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    GiveBack { node: Node, page_size: PageSize, pages: Option<Pages> },
    Configure(PoolChange),
}

/// What was heard.
#[derive(Debug)]
pub(super) enum News {
    Status(Box<Status>),
    /// What became of an order, in one line.
    Answer(String),
    /// No daemon answers, and why.
    Gone(String),
}

/// The thread's ends. It ends with them.
#[derive(Debug)]
pub(super) struct Feed {
    news: Receiver<News>,
    orders: Sender<Order>,
}

impl Feed {
    pub(super) fn start(socket: PathBuf, interval: Duration) -> Self {
        let (tell, news) = mpsc::channel();
        let (orders, asked) = mpsc::channel();
        std::thread::spawn(move || talk(&socket, interval, &asked, &tell));
        Self { news, orders }
    }

    /// Everything heard since the last look. Does not block.
    pub(super) fn news(&self) -> impl Iterator<Item = News> + '_ {
        self.news.try_iter()
    }

    /// The next thing heard, if that is soon.
    pub(super) fn next(&self, patience: Duration) -> Option<News> {
        self.news.recv_timeout(patience).ok()
    }

    pub(super) fn ask(&self, order: Order) {
        // The thread lives as long as this end does.
        let _ = self.orders.send(order);
    }
}

fn talk(
    socket: &std::path::Path,
    interval: Duration,
    orders: &Receiver<Order>,
    tell: &Sender<News>,
) {
    let mut client: Option<Client> = None;
    let mut next = Instant::now();
    loop {
        let order = match orders.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(order) => Some(order),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if order.is_none() {
            next = (next + interval).max(Instant::now());
        }
        let heard = look(socket, &mut client, order);
        for news in heard {
            if tell.send(news).is_err() {
                return;
            }
        }
    }
}

/// Carries out an order, if there is one, and looks at the daemon.
fn look(socket: &std::path::Path, kept: &mut Option<Client>, order: Option<Order>) -> Vec<News> {
    let mut news = Vec::new();
    let talk = || {
        // A connection is kept only by what went well: a broken one is never used again.
        let mut client = match kept.take() {
            Some(client) => client,
            None => Client::connect(socket)?,
        };
        if let Some(order) = order {
            news.push(News::Answer(match carry_out(&mut client, order) {
                Ok(done) => done,
                Err(Error::Refused(refusal)) => format!("refused: {refusal}"),
                Err(error) => return Err(error),
            }));
        }
        let status = client.status()?;
        *kept = Some(client);
        Ok(status)
    };
    let last = match talk() {
        Ok(status) => News::Status(Box::new(status)),
        Err(error) => News::Gone(error.to_string()),
    };
    news.push(last);
    news
}

fn carry_out(client: &mut Client, order: Order) -> Result<String, Error> {
    match order {
        Order::GiveBack { node, page_size, pages } => {
            let given = client.give_back(Some(node), Some(page_size), pages)?;
            Ok(format!("gave {given} back to the kernel"))
        }
        Order::Configure(change) => client.configure(change).map(|()| "changed".to_owned()),
    }
}
