// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernels that there is a series for.

use std::{fmt, path::PathBuf};

use clap::ValueEnum;
use serde::Deserialize;

use crate::cache;

/// A kernel that Debian packages, and the series for it.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, ValueEnum,
)]
pub(crate) enum Linux {
    /// Long-term support, of Debian 12 and 13.
    #[default]
    #[serde(rename = "6.12")]
    #[value(name = "6.12")]
    V6_12,
    /// Today's, of Debian 13's backports: the series for upstream is written against it.
    #[serde(rename = "7.3")]
    #[value(name = "7.3")]
    V7_3,
}

impl Linux {
    pub(crate) const ALL: [Self; 2] = [Self::V6_12, Self::V7_3];

    /// `6.12`
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V6_12 => "6.12",
            Self::V7_3 => "7.3",
        }
    }

    /// Debian's package of the source.
    pub(crate) fn package(self) -> &'static str {
        match self {
            Self::V6_12 => "linux-source-6.12",
            Self::V7_3 => "linux-source-7.3",
        }
    }

    /// The suite that has the package, where the system's own suites don't.
    pub(crate) fn suite(self) -> Option<&'static str> {
        match self {
            Self::V6_12 => None,
            Self::V7_3 => Some("trixie-backports"),
        }
    }

    /// `kernel/linux-NAME` of this checkout.
    pub(crate) fn home(self) -> PathBuf {
        home().join(format!("linux-{}", self.name()))
    }
}

impl fmt::Display for Linux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// `kernel` of this checkout.
pub(crate) fn home() -> PathBuf {
    cache::repo().join("kernel")
}
