// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where metrics are served: a TCP address or a unix socket.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A place to listen at, written as `"127.0.0.1:9464"`, `"[::1]:9464"` or `"/run/prezero/metrics"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address and port.
    Tcp(SocketAddr),
    /// A unix socket's absolute path.
    Unix(PathBuf),
}

/// A text that is no place to listen at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no place to listen at: write an address with a port, as in 127.0.0.1:9464, or an absolute path"
)]
pub struct BadListen(pub String);

impl FromStr for Listen {
    type Err = BadListen;

    fn from_str(text: &str) -> Result<Self, BadListen> {
        if text.starts_with('/') {
            return Ok(Self::Unix(PathBuf::from(text)));
        }
        text.parse().map(Self::Tcp).map_err(|_| BadListen(text.to_owned()))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_addresses_or_absolute_paths() {
        for text in ["127.0.0.1:9464", "[::1]:9464", "/run/prezero/metrics"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        for text in ["", "9464", "localhost:9464", "127.0.0.1", "metrics", ":9464"] {
            let error = text.parse::<Listen>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("127.0.0.1:9464"));
        }
    }
}
