// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a worker is told: the arguments of `prezero zero`, to a command line and from one.

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
    /// At most so many pages; `None` for all there are.
    #[must_use]
    pub fn new(pages: Option<u64>) -> Self {
        Self(pages)
    }

    /// Reads a number of at least 1, or the `word` that means no bound.
    ///
    /// # Errors
    /// What is wrong with the text, and what to write.
    pub fn parse(text: &str, word: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == word => Ok(Self(None)),
            Ok(0) => Err(format!("zero pages are nothing: write a number from 1 on, or `{word}`")),
            Ok(pages) => Ok(Self(Some(pages))),
            Err(_) => Err(format!("`{text}` is neither a number of pages nor `{word}`")),
        }
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

fn limit(text: &str) -> Result<PageLimit, String> {
    PageLimit::parse(text, "max")
}

/// What a worker is to do and how. Which daemon, and in which form it answers, is not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, clap::Args)]
pub struct Invocation {
    /// Which pages.
    #[command(flatten)]
    pub which: Which,
    /// Threads (default: as many as this process may use CPUs)
    #[arg(short = 'j', long = "threads", value_name = "N")]
    pub threads: Option<usize>,
    /// How many pages: a number, or `max`
    #[arg(value_name = "PAGES|max", default_value_t, value_parser = limit)]
    pub pages: PageLimit,
    /// Only what the pools' thresholds ask for, silently, with one thread: as the daemon's workers
    #[arg(long)]
    pub background: bool,
    /// Run on these CPUs only, as in 0-3,8 (--background: those of --node)
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Run with this nice value
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-20..=19))]
    pub nice: Option<i32>,
    /// Run only when nobody else wants the CPU (SCHED_IDLE)
    #[arg(long)]
    pub sched_idle: bool,
    /// Run in this cgroup, made if it is missing
    #[arg(long, value_name = "DIR")]
    pub cgroup: Option<PathBuf>,
    /// Clear blocks in place with this method (default: the best as measured on this CPU)
    #[arg(long, value_name = "NAME")]
    pub method: Option<Method>,
    /// Look for a signal after so many bytes of clearing in place, as in 256KiB
    #[arg(long, value_name = "BYTES")]
    pub chunk: Option<Chunk>,
    /// Run where and as this process or thread runs: its cgroups, CPUs, policy and nice value
    #[arg(long, value_name = "PID", hide = true,
          conflicts_with_all = ["cpus", "nice", "sched_idle", "cgroup"])]
    pub like: Option<u32>,
    /// Stop at the end of standard input as at a signal, but do a first page in any case where the
    /// kernel allocates
    #[arg(long, hide = true)]
    pub until_eof: bool,
}

impl Invocation {
    /// Its words on a command line, behind `prezero zero`.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let Self { which, threads, pages, background, cpus, nice, sched_idle, .. } = self;
        let Self { cgroup, method, chunk, like, until_eof, .. } = self;
        let mut words = Vec::new();
        // In one word: a value that begins with a dash is none otherwise.
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

    /// Where and at whose expense it runs.
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

    /// Whether nobody waits for it at a terminal.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.background || self.until_eof
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use proptest::prelude::*;
    use units::{Node, PageSize};

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        invocation: Invocation,
    }

    fn read(words: Vec<OsString>) -> Result<Invocation, clap::Error> {
        Line::try_parse_from([OsString::from("zero")].into_iter().chain(words))
            .map(|line| line.invocation)
    }

    fn invocations() -> impl Strategy<Value = Invocation> {
        let size = prop::sample::select(vec![2_u64 << 20, 1 << 30]).prop_map(PageSize::new);
        let chunk = (12_u32..30).prop_map(|bits| Chunk::from_bytes(1 << bits).unwrap());
        let place = (
            prop::option::of("[0-9]{1,2}(-[0-9]{1,2})?(,[0-9]{1,3})?"),
            prop::option::of(-20..=19_i32),
            any::<bool>(),
            prop::option::of("[-/ a-zA-Z0-9.=]{1,20}".prop_map(PathBuf::from)),
            prop::option::of(any::<u32>()),
        );
        let work = (
            prop::option::of(0..64_u32),
            prop::option::of(size),
            prop::option::of(1..64_usize),
            prop::option::of(1..u64::MAX),
            any::<bool>(),
            any::<bool>(),
            prop::option::of(Just(Method::Portable)),
            prop::option::of(chunk),
        );
        (place, work).prop_map(|((cpus, nice, sched_idle, cgroup, like), work)| {
            let (node, size, threads, pages, background, until_eof, method, chunk) = work;
            let which = Which::new(node.map(Node), size.flatten());
            let alone = like.is_none();
            Invocation {
                which,
                threads,
                pages: PageLimit::new(pages),
                background,
                cpus: cpus.filter(|_| alone),
                nice: nice.filter(|_| alone),
                sched_idle: sched_idle && alone,
                cgroup: cgroup.filter(|_| alone),
                method,
                chunk,
                like,
                until_eof,
            }
        })
    }

    proptest! {
        #[test]
        fn what_goes_to_a_command_line_comes_back(invocation in invocations()) {
            let back = read(invocation.arguments());
            prop_assert_eq!(back.map_err(|error| error.to_string()), Ok(invocation));
        }
    }

    #[test]
    fn nothing_said_is_everything() {
        assert_eq!(read(Vec::new()).unwrap(), Invocation::default());
        assert_eq!(Invocation::default().arguments(), ["max"]);
    }

    #[test]
    fn limits_are_numbers_or_the_word() {
        assert_eq!(PageLimit::parse("max", "max"), Ok(PageLimit(None)));
        assert_eq!(PageLimit::parse("7", "max"), Ok(PageLimit(Some(7))));
        for text in ["0", "-1", "", "all", "1G"] {
            assert!(PageLimit::parse(text, "max").unwrap_err().contains("`max`"), "{text}");
        }
    }
}
