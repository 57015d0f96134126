// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the service is: one word, and the causes behind it.

use serde::{Deserialize, Serialize};

/// How the service is, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Nothing is known to keep it from its best.
    #[default]
    Healthy,
    /// It lends, and something keeps it from its best.
    Degraded,
    /// Background zeroing waits for CPU pressure to fall.
    Paused,
    /// It keeps nothing ready, because it was drained.
    Drained,
}

impl Health {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Healthy, Self::Degraded, Self::Paused, Self::Drained];

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Paused => "paused",
            Self::Drained => "drained",
        }
    }
}

impl std::fmt::Display for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.word())
    }
}

/// A kind of cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AilmentCause {
    /// It was drained.
    #[default]
    Drained,
    /// Zeroing waits for CPU pressure to fall.
    Pressure,
    /// No worker may run, and pools are to be filled.
    Workers,
    /// The configuration on disk is not the one that holds.
    Reload,
    /// A user without the right to borrow tried to.
    Stranger,
    /// A user's quota is used up.
    Quota,
    /// Loans find no memory.
    Shortage,
    /// Loans are larger than the ready blocks.
    Blocks,
    /// A node with memory has no pool.
    Node,
    /// The kernel's pool is smaller than what is to be ready.
    Pool,
    /// Programs without prezero use the pages.
    Taken,
    /// The kernel's pool could not be made larger.
    Resize,
    /// Returned blocks are cleared anew instead of in place.
    Fresh,
    /// A part of the interface is not served.
    Listener,
    /// Blocks that the daemon knows nothing of.
    Files,
}

impl AilmentCause {
    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Pressure => "pressure",
            Self::Workers => "workers",
            Self::Reload => "reload",
            Self::Stranger => "stranger",
            Self::Quota => "quota",
            Self::Shortage => "shortage",
            Self::Blocks => "blocks",
            Self::Node => "node",
            Self::Pool => "pool",
            Self::Taken => "taken",
            Self::Resize => "resize",
            Self::Fresh => "fresh",
            Self::Listener => "listener",
            Self::Files => "files",
        }
    }

    /// Whether the service is worse for it, or could only be better.
    #[must_use]
    pub const fn is_ailing(self) -> bool {
        !matches!(self, Self::Fresh | Self::Node)
    }
}

/// One cause that keeps the service from its best, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ailment {
    /// The kind of cause.
    pub cause: AilmentCause,
    /// What was found, with numbers.
    pub found: String,
    /// What to do about it.
    pub remedy: String,
    /// The command for that.
    pub command: Option<String>,
}
