// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Serving the metrics by HTTP: `GET /metrics`, one answer per connection.
//!
//! On a thread of its own: each call on a scraper's socket wakes all who wait for it, and any user
//! may have millions of epoll sets wait; half a million took the daemon's thread 24 ms. The serving
//! thread makes the text, for all scrapers at once, and serves others in between.

mod host;
mod places;

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use book::config::Listen;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use linux::{Peer, Roots};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen as wait_for, socket_with};
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{sleep, timeout};

use crate::api::http::places::{MAX_OWN_SCRAPES, MAX_SCRAPES, Places, Scraper, Scrapers};
use crate::base::crowds::{Crowd, TRIM_INTERVAL};
use crate::base::error::{Error, Result};
use crate::base::files::{ALL_USERS_MODE, BACKLOG, SocketName};

/// How long one connection may take, from its beginning to the last byte of its answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// What Prometheus expects; curl shows it as text.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Making texts takes at most one part in this number of the daemon's time: one of 5,000 loans
/// takes 40 ms.
const MAX_TIME_SHARE: u32 = 10;
/// ... unless who waits for the next one would wait for longer than it may.
const MAX_PAUSE_PERIOD: Duration = Duration::from_secs(2);

/// What makes the text, on the daemon's thread.
pub(crate) type Source = Box<dyn Fn() -> String>;

/// Who waits for a text.
type Asked = oneshot::Sender<Bytes>;

/// A place where metrics are served. Dropping it ends that, at a later moment.
#[derive(Debug)]
pub(crate) struct Endpoint {
    texts: JoinHandle<()>,
    /// Dropped, the thread ends.
    _serves: oneshot::Sender<Infallible>,
    hosts: Hosts,
    /// A unix socket's, removed with it.
    _name: Option<SocketName>,
}

/// The names by which requests may ask, beside addresses and `localhost`.
type Hosts = Arc<Mutex<Vec<String>>>;

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
    /// Listens there, and serves the texts of `source` to requests by one of `hosts`. Waits for its
    /// thread to begin.
    ///
    /// # Errors
    /// [`Error::Listen`] for an address that is taken or of another machine; [`Error::NotOurs`] for
    /// a path that another user can change; [`Error::Runtime`] without a thread or an event loop
    /// for it.
    pub(crate) fn open(
        listen: &Listen,
        hosts: Vec<String>,
        roots: Roots,
        source: Source,
    ) -> Result<Self> {
        let failed =
            |source: io::Error| Error::Listen { path: PathBuf::from(listen.to_string()), source };
        let no_thread = |source| Error::Runtime { what: "cannot serve metrics", source };
        let (bound, name) = match listen {
            Listen::Tcp(address) => (Bound::Tcp(listen_at(*address).map_err(failed)?), None),
            Listen::Unix(path) => {
                let (listener, name) =
                    crate::base::files::listen(path, ALL_USERS_MODE, Duration::ZERO)?;
                (Bound::Unix(listener), Some(name))
            }
        };
        let (ask, asked) = mpsc::channel(MAX_SCRAPES + MAX_OWN_SCRAPES);
        let hosts = Arc::new(Mutex::new(hosts));
        let server = Server { ask, hosts: Arc::clone(&hosts), is_local: name.is_some() };
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
                let accepted = Cell::new(0);
                tokio::select! {
                    () = serve(listener, Rc::new(server), Scrapers::new(roots), &accepted) => {}
                    () = tidy(&accepted) => {}
                    _ = ended => {}
                }
            };
            LocalSet::new().block_on(&runtime, serving);
        };
        std::thread::Builder::new().name("metrics".to_owned()).spawn(serve).map_err(no_thread)?;
        let begins = begins.recv().unwrap_or_else(|_| Err(io::Error::other("its thread is gone")));
        begins.map_err(no_thread)?;
        tracing::info!(%listen, "serves metrics");
        let texts = tokio::task::spawn_local(render(asked, source));
        Ok(Self { texts, _serves: serves, hosts, _name: name })
    }

    /// From now on these are the names.
    pub(crate) fn answer_to(&self, hosts: Vec<String>) {
        *self.hosts.lock().unwrap_or_else(PoisonError::into_inner) = hosts;
    }
}

/// As the standard library does, with room for as many clients as the system allows.
fn listen_at(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, None)?;
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    wait_for(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.texts.abort();
    }
}

/// Makes texts on request: one for all requests meanwhile.
async fn render(mut asked: mpsc::Receiver<Asked>, source: Source) {
    while let Some(first) = asked.recv().await {
        let begin = cpu_time();
        let text = Bytes::from(source());
        let others = std::iter::from_fn(|| asked.try_recv().ok());
        for one in std::iter::once(first).chain(others) {
            // The scraper may be gone.
            one.send(text.clone()).ok();
        }
        let rest = cpu_time().saturating_sub(begin) * (MAX_TIME_SHARE - 1);
        sleep(rest.min(MAX_PAUSE_PERIOD)).await;
    }
}

/// What this thread has used: what it waited for a CPU meanwhile is no work of its own.
fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

/// What each connection needs.
struct Server {
    ask: mpsc::Sender<Asked>,
    hosts: Hosts,
    /// Whether only this machine reaches it, by a path: no browser does.
    is_local: bool,
}

/// Gives memory back when a crowd is gone.
async fn tidy(accepted: &Cell<usize>) {
    let mut crowd = Crowd::default();
    loop {
        sleep(TRIM_INTERVAL).await;
        crowd.end(accepted.take());
    }
}

async fn serve(listener: Listener, server: Rc<Server>, scrapers: Scrapers, ended: &Cell<usize>) {
    let mut places = Places::default();
    loop {
        let has_asked = Rc::new(Cell::new(false));
        let talk = (Rc::clone(&server), Rc::clone(&has_asked));
        let accepted = match &listener {
            Listener::Tcp(listener) => listener.accept().await.and_then(|(stream, peer)| {
                let who = scrapers.of_address(stream.local_addr()?, peer);
                let ready = async move { stream.ready(Interest::READABLE).await.map(|_| stream) };
                Ok((who, tokio::task::spawn_local(converse(ready, talk))))
            }),
            Listener::Unix(listener) => listener.accept().await.and_then(|(stream, _)| {
                let who = user_of(&stream, &scrapers)?;
                let ready = async move { stream.ready(Interest::READABLE).await.map(|_| stream) };
                Ok((who, tokio::task::spawn_local(converse(ready, talk))))
            }),
        };
        match accepted {
            Ok((who, task)) => {
                places.add(who, has_asked, task.abort_handle());
                // Each ends soon, within [`CONNECTION_TIMEOUT`].
                ended.set(ended.get() + 1);
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept a scraper");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// The user of a connection. Its groups are irrelevant, and a user may have 65,536 of them.
fn user_of(stream: &tokio::net::UnixStream, scrapers: &Scrapers) -> io::Result<Scraper> {
    let cred = stream.peer_cred()?;
    let pid = cred.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0);
    let peer = Peer { pid, uid: cred.uid(), gid: cred.gid() };
    Ok(scrapers.of_socket(stream, &peer))
}

/// One connection, from its beginning to the last byte of its answer. Until there is something to
/// read it costs no memory but its own.
async fn converse<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    ready: impl Future<Output = io::Result<S>>,
    (server, has_asked): (Rc<Server>, Rc<Cell<bool>>),
) {
    let answer = service_fn(|request| {
        has_asked.set(true);
        let server = Rc::clone(&server);
        async move { Ok::<_, Infallible>(answer(&request, &server).await) }
    });
    let serving = async {
        let stream = ready.await?;
        let served = http1::Builder::new()
            .keep_alive(false)
            .max_buf_size(16 << 10)
            .serve_connection(TokioIo::new(stream), answer);
        served.await.map_err(io::Error::other)
    };
    match timeout(CONNECTION_TIMEOUT, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a scraper's connection ended"),
        Err(_) => tracing::debug!("a scraper took too long"),
    }
}

async fn answer(request: &Request<Incoming>, server: &Server) -> Response<Full<Bytes>> {
    let text = |status, text: &'static str| {
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        *response.status_mut() = status;
        response
    };
    let is_known = server.is_local || {
        let hosts = server.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        host::is_known(request.headers(), &hosts)
    };
    if !is_known {
        return text(
            StatusCode::MISDIRECTED_REQUEST,
            "ask by the address, by localhost, or by a name of metrics.hosts\n",
        );
    }
    if request.uri().path() != "/metrics" {
        return text(StatusCode::NOT_FOUND, "the metrics are at /metrics\n");
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "metrics are only read\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    let (asked, reported) = oneshot::channel();
    // Both fail only where the daemon ends.
    let (Ok(()), Ok(metrics)) = (server.ask.send(asked).await, reported.await) else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "the daemon ends\n");
    };
    let mut response = Response::new(Full::new(metrics));
    response.headers_mut().insert(CONTENT_TYPE, OPEN_METRICS);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    // Promise P242.
    #[test]
    fn one_text_serves_all_waiting_scrapes_and_the_next_comes_later() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let took = Duration::from_millis(5);
            let made = std::cell::Cell::new(0);
            let source = Box::new(move || {
                made.set(made.get() + 1);
                let begin = cpu_time();
                while cpu_time() < begin + took {
                    std::hint::spin_loop();
                }
                made.get().to_string()
            });
            let (ask, asked) = mpsc::channel(MAX_SCRAPES);
            let waits = || {
                let (asked, reported) = oneshot::channel();
                ask.try_send(asked).unwrap();
                reported
            };
            let [first, gone, second] = [(); 3].map(|()| waits());
            drop(gone);
            let task = tokio::task::spawn_local(render(asked, source));
            assert_eq!((first.await.unwrap(), second.await.unwrap()), ("1".into(), "1".into()));
            let begin = std::time::Instant::now();
            assert_eq!(waits().await.unwrap(), Bytes::from("2"));
            assert!(
                begin.elapsed() >= took * (MAX_TIME_SHARE - 2),
                "the daemon has others to serve"
            );
            task.abort();
        });
    }

    #[test]
    fn wrong_address_is_an_error_and_a_local_one_is_served() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            // Of an unassigned block of addresses (RFC 5737).
            let elsewhere = "192.0.2.1:1".parse().unwrap();
            let open = |at, text: &'static str| {
                Endpoint::open(at, Vec::new(), Roots::default(), Box::new(|| text.to_owned()))
            };
            let error = open(&elsewhere, "").unwrap_err();
            assert!(matches!(error, Error::Listen { .. }), "{error}");
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("metrics");
            let here = path.to_str().unwrap().parse().unwrap();
            let endpoint = open(&here, "text").unwrap();
            let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("\r\n\r\ntext"), "{answer}");
            drop(endpoint);
            assert!(!path.exists());
        });
    }
}
