// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Serving the metrics by HTTP: `GET /metrics`, one answer per connection.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
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
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::error::{Error, Result};

/// How long one connection may take, from its first byte to the last of its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Scrapers at a time; further ones are closed at once.
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
                    async move || listener.accept().await.map(|(stream, _)| stream),
                    source,
                ))
            }
            Listen::Unix(path) => {
                let listener = crate::files::listen(path)?;
                let listener = UnixListener::from_std(listener).map_err(failed)?;
                tokio::task::spawn_local(serve(
                    async move || listener.accept().await.map(|(stream, _)| stream),
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

async fn serve<S>(accept: impl AsyncFn() -> io::Result<S>, source: Source)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let open = Rc::new(Cell::new(0_usize));
    loop {
        let stream = match accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a scraper");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if open.get() >= MOST_CONNECTIONS {
            continue;
        }
        open.set(open.get() + 1);
        let (open, source) = (Rc::clone(&open), Rc::clone(&source));
        tokio::task::spawn_local(async move {
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
            open.set(open.get() - 1);
        });
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
