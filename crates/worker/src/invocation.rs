// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a worker does: the arguments of `prezero zero`.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clear::{Chunk, Method};

use crate::context::Context;
use crate::engine::Forced;
use crate::which::Which;

/// A number of pages of at least 1, or no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageLimit(Option<u64>);

impl PageLimit {
    /// At most this many pages; `None` for all there are.
    #[must_use]
    pub fn new(pages: Option<u64>) -> Self {
        Self(pages)
    }

    /// The number, if there is one.
    #[must_use]
    pub fn pages(self) -> Option<u64> {
        self.0
    }
}

impl fmt::Display for PageLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pages) => pages.fmt(f),
            None => f.write_str("max"),
        }
    }
}

/// What a worker zeroes, and how. Which daemon gives it jobs, and in which form it answers, is not
/// part of it.
///
/// `prezero zero` has a flag for each field; [`Invocation::arguments`] writes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Invocation {
    /// Which pages.
    pub which: Which,
    /// Threads; default: one for each CPU that the process may use.
    pub threads: Option<usize>,
    /// How many pages.
    pub pages: PageLimit,
    /// Zero only what the pools' thresholds ask for, silently, with one thread.
    pub background: bool,
    /// For how many seconds to wait for more pages once there are none.
    pub idle_timeout: Option<u32>,
    /// CPUs to run on, as in `0-3,8`; default with `background`: those of the node.
    pub cpus: Option<String>,
    /// The nice value.
    pub nice: Option<i32>,
    /// Run under `SCHED_IDLE`.
    pub sched_idle: bool,
    /// The cgroup to run in, made if it is missing.
    pub cgroup: Option<PathBuf>,
    /// The method that clears blocks in place; default: the best as measured on this CPU.
    pub method: Option<Method>,
    /// How much to clear in place between two looks for a signal.
    pub chunk: Option<Chunk>,
    /// Run where and as this process or thread runs: its cgroups, CPUs, policy and nice value. In
    /// place of `cpus`, `nice`, `sched_idle` and `cgroup`.
    pub like: Option<u32>,
    /// Stop at the end of standard input as at a signal, but always do a first page where the
    /// kernel allocates.
    pub until_eof: bool,
}

impl Invocation {
    /// Its words on a command line, behind `prezero zero`.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let Self { which, threads, pages, background, cpus, nice, sched_idle, .. } = self;
        let Self { idle_timeout, cgroup, method, chunk, like, until_eof, .. } = self;
        let mut words = Vec::new();
        // In one word, so that a value may begin with a dash.
        let mut give = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                let mut word = OsString::from(format!("--{name}="));
                word.push(value);
                words.push(word);
            }
        };
        fn text(value: &Option<impl ToString>) -> Option<OsString> {
            value.as_ref().map(|value| value.to_string().into())
        }
        give("node", text(&which.node()));
        give("page-size", text(&which.page_size));
        give("threads", text(threads));
        give("idle-timeout", text(idle_timeout));
        give("cpus", text(cpus));
        give("nice", text(nice));
        give("cgroup", cgroup.clone().map(PathBuf::into_os_string));
        give("method", text(method));
        give("chunk", text(chunk));
        give("like", text(like));
        let flags =
            [("background", background), ("sched-idle", sched_idle), ("until-eof", until_eof)];
        let flags = flags.into_iter().filter(|(_, given)| **given);
        words.extend(flags.map(|(name, _)| format!("--{name}").into()));
        words.push(pages.to_string().into());
        words
    }

    /// Where it runs, and which cgroup pays for it.
    #[must_use]
    pub fn context(&self) -> Context {
        Context {
            cpus: self.cpus.clone(),
            near: self.which.node().filter(|_| self.background),
            nice: self.nice,
            sched_idle: self.sched_idle,
            cgroup: self.cgroup.clone(),
            like: self.like,
        }
    }

    /// What a person insists on.
    #[must_use]
    pub fn forced(&self) -> Forced {
        Forced { method: self.method, chunk: self.chunk }
    }

    /// Whether it runs without a person at a terminal.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.background || self.until_eof
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_invocation_zeroes_everything() {
        assert_eq!(Invocation::default().arguments(), ["max"]);
    }
}
