// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The event stream of one VM.
//!
//! ```text
//! Booted -> Ready -> (Begin -> Output* -> End)* -> Off
//!    \         \         \
//!     +---------+---------+--> Failed            (the init gives up)
//!      \         \         \
//!       +---------+---------+-> end of stream    (panic, or killed by the harness)
//! ```
//!
//! `Console` may come between any two. A stream that does not end with `Off`
//! is a failed run: programs without an `End` have failed.

use serde::{Deserialize, Serialize};

/// One line of the stream.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The init runs.
    Booted {
        /// `uname -r`.
        release: String,
        /// From the kernel's first instruction to now.
        uptime_ms: u64,
        /// What `dmesg` calls the preemption model, `unknown` if it doesn't say.
        preempt: String,
        /// In order of their number.
        nodes: Vec<Node>,
    },
    /// Modules are loaded and settings made; programs follow.
    Ready {
        /// Every pool that is not empty.
        pools: Vec<Pool>,
    },
    /// A program starts.
    Begin {
        /// Its name in the plan.
        name: String,
    },
    /// A line that it wrote to stdout or stderr.
    Output {
        /// Which program.
        name: String,
        /// Without the newline; bytes that are not UTF-8 replaced.
        line: String,
    },
    /// It ended, or was ended.
    End {
        /// Which program.
        name: String,
        /// How.
        outcome: Outcome,
        /// How long it took on the guest's clock.
        elapsed_ms: u64,
    },
    /// The init cannot go on.
    Failed {
        /// What it tried, and the error.
        reason: String,
    },
    /// All programs have run; the machine goes down.
    Off,
    /// A line on the kernel's console. Made by the harness, never by the init.
    Console {
        /// Without the newline.
        line: String,
    },
}

/// A NUMA node as the guest sees it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Node {
    /// Its number.
    pub node: u32,
    /// `MemTotal` of the node, in KiB.
    pub memory_kib: u64,
    /// Its CPUs, as the kernel lists them (`0-1`).
    pub cpus: String,
}

/// Huge pages of one size on one node.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Pool {
    /// Which node.
    pub node: u32,
    /// Page size in KiB: 2048, 1048576.
    pub page_kib: u64,
    /// How many pages it has.
    pub pages: u64,
}

/// How a program ended.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum Outcome {
    /// By itself, with this status: 0 is success, 4 a skip (kselftest's rule).
    Exit {
        /// Exit status.
        status: i32,
    },
    /// By a signal.
    Signal {
        /// Signal number.
        signal: i32,
    },
    /// Its time ran out and it was killed.
    Timeout,
    /// It could not be started.
    NotStarted {
        /// Why.
        reason: String,
    },
}
