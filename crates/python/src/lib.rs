// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python module `prezero`: borrowed huge pages as a buffer. Its face is `prezero.pyi`.

mod error;
mod loan;
mod memory;

use std::path::PathBuf;
use std::time::Duration;

use client::{Bytes, Client, DEFAULT_SOCKET, LendRequest, Node, Owner, PageSize};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::error::{Error, NoDaemon, Refused, raised};
use crate::loan::Loan;

/// A size as Python has it: a number of bytes, or a text as on the command line.
#[derive(Debug, FromPyObject)]
enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    fn bytes(&self) -> PyResult<Bytes> {
        match self {
            Self::Bytes(bytes) => Ok(Bytes(*bytes)),
            Self::Text(text) => text.parse().map_err(bad_value),
        }
    }

    fn page(&self) -> PyResult<PageSize> {
        let Bytes(bytes) = self.bytes()?;
        PageSize::try_from(bytes).map_err(bad_value)
    }
}

fn bad_value(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The longest accepted time: 31 years. A longer one is a mistake.
const MAX_SECONDS: f64 = 1e9;

fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    let bad =
        |error: &dyn std::fmt::Display| PyValueError::new_err(format!("{name}={seconds}: {error}"));
    if seconds > MAX_SECONDS {
        return Err(bad(&format_args!("at most {MAX_SECONDS} seconds")));
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| bad(&error))
}

fn connect(socket: Option<PathBuf>) -> Result<Client, client::Error> {
    let named = || std::env::var_os("PREZERO_SOCKET").map(PathBuf::from);
    Client::connect(socket.or_else(named).unwrap_or_else(|| DEFAULT_SOCKET.into()))
}

/// Borrows memory and maps it: see the stub for each parameter.
#[pyfunction]
#[pyo3(signature = (size, *, page_size=None, node=None, owner=None, keep=None, wait=None, socket=None))]
#[expect(clippy::too_many_arguments, reason = "they are keywords where it is called")]
fn lend(
    py: Python<'_>,
    size: Size,
    page_size: Option<Size>,
    node: Option<u32>,
    owner: Option<&str>,
    keep: Option<f64>,
    wait: Option<f64>,
    socket: Option<PathBuf>,
) -> PyResult<Loan> {
    let request = LendRequest {
        page_size: page_size.map(|size| size.page()).transpose()?,
        node: node.map(Node),
        owner: owner.map(str::parse::<Owner>).transpose().map_err(bad_value)?,
        keep: keep.map(|keep| seconds("keep", keep)).transpose()?,
        ..LendRequest::new(size.bytes()?)
    };
    let wait = wait.map(|wait| seconds("wait", wait)).transpose()?;
    let lent = py.detach(|| {
        let mut client = connect(socket)?;
        // A handler of a signal, as Ctrl-C's, runs here and may raise.
        let go_on = || Python::attach(|py| py.check_signals()).map_err(Ended::Raised);
        let lent = match wait {
            Some(wait) => client.lend_within_unless(&request, wait, go_on)?,
            None => client.lend(&request)?,
        };
        Ok(lent.map()?)
    });
    lent.map(Loan::new).map_err(|ended| match ended {
        Ended::Failed(error) => raised(&error),
        Ended::Raised(error) => error,
    })
}

/// Why there is no loan: by the client or the daemon, or by what a signal's handler has raised.
enum Ended {
    Failed(client::Error),
    Raised(PyErr),
}

impl From<client::Error> for Ended {
    fn from(error: client::Error) -> Self {
        Self::Failed(error)
    }
}

/// Everything there is to see, as Python's own dictionaries and lists.
#[pyfunction]
#[pyo3(signature = (*, socket=None))]
fn status(py: Python<'_>, socket: Option<PathBuf>) -> PyResult<Bound<'_, PyAny>> {
    let status = py.detach(|| connect(socket)?.status()).map_err(|error| raised(&error))?;
    let text = serde_json::to_string(&status)
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    py.import("json")?.call_method1("loads", (text,))
}

/// Take ready huge pages from the prezero daemon.
#[pymodule]
fn prezero(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", py.get_type::<Error>())?;
    module.add("NoDaemon", py.get_type::<NoDaemon>())?;
    module.add("Refused", py.get_type::<Refused>())?;
    module.add_class::<Loan>()?;
    module.add_function(wrap_pyfunction!(lend, module)?)?;
    module.add_function(wrap_pyfunction!(status, module)?)
}
