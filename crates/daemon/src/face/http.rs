// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Serving the metrics by HTTP: `GET /metrics`, one answer per connection.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
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
use tokio::task::{AbortHandle, JoinHandle, yield_now};
use tokio::time::{sleep, timeout};

use crate::error::{Error, Result};

/// How long one connection may take, from its beginning to the last byte of its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at a time. One more ends the oldest of whoever has most: a scraper is done within
/// milliseconds, and who holds connections without asking holds up itself.
const MOST_CONNECTIONS: usize = 16;
/// What Prometheus expects; curl shows it as text.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// What makes the text.
pub(crate) type Source = Rc<dyn Fn() -> String>;

/// A place where metrics are served. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Endpoint {
    task: JoinHandle<()>,
    /// A unix socket's path, to be removed.
    path: Option<PathBuf>,
}

impl Endpoint {
    /// Listens there, and serves what `source` makes.
    ///
    /// # Errors
    /// [`Error::Listen`] for an address that is taken or not the machine's.
    pub(crate) fn open(listen: &Listen, source: Source) -> Result<Self> {
        let failed =
            |source: io::Error| Error::Listen { path: PathBuf::from(listen.to_string()), source };
        let task = match listen {
            Listen::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let listener = TcpListener::from_std(listener).map_err(failed)?;
                tokio::task::spawn_local(serve(
                    async move || {
                        let (stream, address) = listener.accept().await?;
                        Ok((stream, Scraper::Address(address.ip())))
                    },
                    source,
                ))
            }
            Listen::Unix(path) => {
                let listener = crate::files::listen(path, Duration::ZERO)?;
                let listener = UnixListener::from_std(listener).map_err(failed)?;
                tokio::task::spawn_local(serve(
                    async move || {
                        let (stream, _) = listener.accept().await?;
                        let user = stream.peer_cred()?.uid();
                        Ok((stream, Scraper::User(user)))
                    },
                    source,
                ))
            }
        };
        tracing::info!(%listen, "serves metrics");
        let path = match listen {
            Listen::Tcp(_) => None,
            Listen::Unix(path) => Some(path.clone()),
        };
        Ok(Self { task, path })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
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
    /// Makes room for one more, at the expense of whoever has most.
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

async fn serve<S>(accept: impl AsyncFn() -> io::Result<(S, Scraper)>, source: Source)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let mut open = Open::default();
    loop {
        let (stream, who) = match accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a scraper");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        open.make_room();
        let source = Rc::clone(&source);
        let task = tokio::task::spawn_local(async move {
            let answer = service_fn(|request| {
                let response = answer(&request, &source);
                async { Ok::<_, Infallible>(response) }
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
        });
        open.0.push_back((who, task.abort_handle()));
        // Clients of the daemon itself come first, however many knock here.
        yield_now().await;
    }
}

fn answer(request: &Request<Incoming>, source: &Source) -> Response<Full<Bytes>> {
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
    let mut response = Response::new(Full::new(Bytes::from(source())));
    response.headers_mut().insert(CONTENT_TYPE, OPEN_METRICS);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    #[test]
    fn whoever_holds_all_places_makes_room_for_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let mut open = Open::default();
            let mut come = |user| {
                open.make_room();
                let task = tokio::task::spawn_local(pending::<()>());
                open.0.push_back((Scraper::User(user), task.abort_handle()));
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
}
