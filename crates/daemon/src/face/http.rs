// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Serving the metrics by HTTP: `GET /metrics`, one answer per connection.
//!
//! On a thread of its own: each call on a scraper's socket wakes all who wait for it, and anybody
//! may have millions of epoll sets wait; half a million took the daemon's thread 24 ms. That one
//! makes the text, for all who want it at once, and has something else to do in between.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use book::config::Listen;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle, LocalSet};
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Error, Result};

/// How long one connection may take, from its beginning to the last byte of its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at a time. One more ends the oldest of whoever has most: a scraper is done within
/// milliseconds, and who holds connections without asking holds up itself.
const MOST_CONNECTIONS: usize = 16;
/// What Prometheus expects; curl shows it as text.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Making texts takes at most one part in so many of the daemon's time: one of 5,000 loans takes
/// 40 ms.
const SHARE: u32 = 10;

/// What makes the text, on the daemon's thread.
pub(crate) type Source = Box<dyn Fn() -> String>;

/// Who waits for a text.
type Asked = oneshot::Sender<Bytes>;

/// A place where metrics are served. Dropping it ends that, which it does not wait for.
#[derive(Debug)]
pub(crate) struct Endpoint {
    texts: JoinHandle<()>,
    /// Dropped, the thread ends.
    _serves: oneshot::Sender<Infallible>,
    /// A unix socket's path, to be removed.
    path: Option<PathBuf>,
}

/// Either kind of listener, before there is an event loop for it.
enum Bound {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

/// The same with one.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Bound {
    fn registered(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(TcpListener::from_std(listener)?),
            Self::Unix(listener) => Listener::Unix(UnixListener::from_std(listener)?),
        })
    }
}

impl Endpoint {
    /// Listens there, and serves what `source` makes. Waits for its thread to begin.
    ///
    /// # Errors
    /// [`Error::Listen`] for an address that is taken or not the machine's; [`Error::Runtime`] if
    /// there is no thread to do it, or no event loop for it.
    pub(crate) fn open(listen: &Listen, source: Source) -> Result<Self> {
        let failed =
            |source: io::Error| Error::Listen { path: PathBuf::from(listen.to_string()), source };
        let no_thread = |source| Error::Runtime { what: "cannot serve metrics", source };
        let (bound, path) = match listen {
            Listen::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                (Bound::Tcp(listener), None)
            }
            Listen::Unix(path) => {
                (Bound::Unix(crate::files::listen(path, Duration::ZERO)?), Some(path.clone()))
            }
        };
        let (ask, asked) = mpsc::channel(MOST_CONNECTIONS);
        let (serves, ended) = oneshot::channel::<Infallible>();
        let (begun, begins) = std::sync::mpsc::sync_channel(1);
        // The event loop begins and ends on that thread: none may be dropped within another's.
        let serve = move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return begun.send(Err(error)).unwrap_or_default(),
            };
            let serving = async {
                let listener = match bound.registered() {
                    Ok(listener) => listener,
                    Err(error) => return begun.send(Err(error)).unwrap_or_default(),
                };
                begun.send(Ok(())).unwrap_or_default();
                tokio::select! {
                    () = serve(listener, ask) => {}
                    _ = ended => {}
                }
            };
            LocalSet::new().block_on(&runtime, serving);
        };
        std::thread::Builder::new().name("metrics".to_owned()).spawn(serve).map_err(no_thread)?;
        let begins = begins.recv().unwrap_or_else(|_| Err(io::Error::other("its thread is gone")));
        begins.map_err(no_thread)?;
        tracing::info!(%listen, "serves metrics");
        Ok(Self { texts: tokio::task::spawn_local(tell(asked, source)), _serves: serves, path })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.texts.abort();
        if let Some(Err(error)) = self.path.as_ref().map(std::fs::remove_file) {
            tracing::debug!(%error, "the metrics' socket was gone already");
        }
    }
}

/// Who asks, as far as can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scraper {
    /// Of a unix socket.
    User(u32),
    /// All users of one machine are one here.
    Address(IpAddr),
}

/// The connections that are open, the oldest first.
#[derive(Debug, Default)]
struct Open(VecDeque<(Scraper, AbortHandle)>);

impl Open {
    /// One more, at the expense of whoever has most.
    fn add(&mut self, who: Scraper, task: AbortHandle) {
        self.make_room();
        self.0.push_back((who, task));
    }

    fn make_room(&mut self) {
        self.0.retain(|(_, task)| !task.is_finished());
        if self.0.len() < MOST_CONNECTIONS {
            return;
        }
        let count = |who: &Scraper| self.0.iter().filter(|(other, _)| other == who).count();
        // Of equals the last: so backwards, for whoever's oldest has waited longest.
        let Some(most) = self.0.iter().rev().map(|(who, _)| *who).max_by_key(|who| count(who))
        else {
            return;
        };
        if let Some(at) = self.0.iter().position(|(who, _)| *who == most)
            && let Some((_, task)) = self.0.remove(at)
        {
            task.abort();
        }
    }
}

/// Makes texts for those who ask: one for all who do meanwhile.
async fn tell(mut asked: mpsc::Receiver<Asked>, source: Source) {
    while let Some(first) = asked.recv().await {
        let begin = Instant::now();
        let text = Bytes::from(source());
        let others = std::iter::from_fn(|| asked.try_recv().ok());
        for one in std::iter::once(first).chain(others) {
            // Nobody hears it when the scraper is gone.
            one.send(text.clone()).ok();
        }
        sleep(begin.elapsed() * (SHARE - 1)).await;
    }
}

async fn serve(listener: Listener, ask: mpsc::Sender<Asked>) {
    let mut open = Open::default();
    loop {
        let accepted = match &listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, address)| {
                let who = Scraper::Address(address.ip());
                (who, tokio::task::spawn_local(converse(stream, ask.clone())))
            }),
            Listener::Unix(listener) => listener.accept().await.and_then(|(stream, _)| {
                let who = Scraper::User(stream.peer_cred()?.uid());
                Ok((who, tokio::task::spawn_local(converse(stream, ask.clone()))))
            }),
        };
        match accepted {
            Ok((who, task)) => open.add(who, task.abort_handle()),
            Err(error) => {
                tracing::debug!(%error, "cannot accept a scraper");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// One connection, from its beginning to the last byte of its answer.
async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, ask: mpsc::Sender<Asked>) {
    let answer = service_fn(|request| {
        let ask = ask.clone();
        async move { Ok::<_, Infallible>(answer(&request, &ask).await) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), answer);
    match timeout(PATIENCE, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a scraper's connection ended"),
        Err(_) => tracing::debug!("a scraper took too long"),
    }
}

async fn answer(request: &Request<Incoming>, ask: &mpsc::Sender<Asked>) -> Response<Full<Bytes>> {
    let text = |status, text: &'static str| {
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != "/metrics" {
        return text(StatusCode::NOT_FOUND, "the metrics are at /metrics\n");
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "metrics are only read\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    let (asked, told) = oneshot::channel();
    // Neither fails but where the daemon ends.
    let (Ok(()), Ok(metrics)) = (ask.send(asked).await, told.await) else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "the daemon ends\n");
    };
    let mut response = Response::new(Full::new(metrics));
    response.headers_mut().insert(CONTENT_TYPE, OPEN_METRICS);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn whoever_holds_all_places_makes_room_for_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let mut open = Open::default();
            let mut come = |user| {
                let task = tokio::task::spawn_local(pending::<()>());
                open.add(Scraper::User(user), task.abort_handle());
                let of =
                    |user| open.0.iter().filter(|(who, _)| *who == Scraper::User(user)).count();
                (of(1), of(2))
            };
            for _ in 0..100 {
                come(1);
            }
            assert_eq!(come(2), (MOST_CONNECTIONS - 1, 1));
            for _ in 0..100 {
                let (flood, scraper) = come(1);
                assert_eq!((flood, scraper), (MOST_CONNECTIONS - 1, 1), "it costs only its own");
            }
        });
    }

    #[test]
    fn one_text_is_made_for_all_who_wait_and_the_next_one_later() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let took = Duration::from_millis(5);
            let made = std::cell::Cell::new(0);
            let source = Box::new(move || {
                made.set(made.get() + 1);
                std::thread::sleep(took);
                made.get().to_string()
            });
            let (ask, asked) = mpsc::channel(MOST_CONNECTIONS);
            let waits = || {
                let (asked, told) = oneshot::channel();
                ask.try_send(asked).unwrap();
                told
            };
            let [first, gone, second] = [(); 3].map(|()| waits());
            drop(gone);
            let task = tokio::task::spawn_local(tell(asked, source));
            assert_eq!((first.await.unwrap(), second.await.unwrap()), ("1".into(), "1".into()));
            let begin = Instant::now();
            assert_eq!(waits().await.unwrap(), Bytes::from("2"));
            assert!(begin.elapsed() >= took * (SHARE - 2), "the daemon has others to serve");
            task.abort();
        });
    }

    #[test]
    fn an_address_that_is_not_the_machines_is_an_error_and_one_that_is_serves_until_dropped() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            // Of a block of addresses that nobody has (RFC 5737).
            let elsewhere = "192.0.2.1:1".parse().unwrap();
            let error = Endpoint::open(&elsewhere, Box::new(String::new)).unwrap_err();
            assert!(matches!(error, Error::Listen { .. }), "{error}");
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("metrics");
            let here = path.to_str().unwrap().parse().unwrap();
            let endpoint = Endpoint::open(&here, Box::new(|| "text".to_owned())).unwrap();
            let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("\r\n\r\ntext"), "{answer}");
            drop(endpoint);
            assert!(!path.exists());
        });
    }
}
