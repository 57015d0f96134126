// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vLLM's CPU offload: every rank opens one file in `/dev/shm` by the engine's name. The program
//! makes the calls of vLLM's class, without torch: vLLM's wheel has 400 MB.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use prezero_tests::user::NO_USER;
use prezero_tests::{Daemon, Page};
use testkit::hugepages;

use super::{assert_returned, installed, measured, succeeded, until};

const PAGE: Page = Page::Mib2;
/// Of the region, with 2 ranks. One block less than whole huge pages: so regions end.
const BLOCKS: u64 = 511;
const PART: u64 = 128 << 10;
const RANKS: u64 = 2;

/// A rank of an engine.
struct Rank {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
    is_joiner: bool,
    page_kib: u64,
    took: Duration,
}

impl Rank {
    fn start(program: &Path, region: &Path, rank: u64) -> Self {
        let mut command = Command::new("python3");
        command.arg(program).arg(region).args([BLOCKS, PART, rank, RANKS].map(|n| n.to_string()));
        command.uid(NO_USER).gid(NO_USER).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 runs");
        let asks = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut rank =
            Self { child, asks, answers, is_joiner: false, page_kib: 0, took: Duration::ZERO };
        let line = rank.line();
        let mut words = line.split_whitespace();
        rank.is_joiner = words.next() == Some("joiner");
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        (rank.page_kib, rank.took) = (number(), Duration::from_micros(number()));
        rank
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it speaks");
        line
    }

    /// What the ranks have written.
    fn sees(&mut self) -> String {
        self.asks.write_all(b"\n").expect("it listens");
        self.line().trim().to_owned()
    }

    fn kill(mut self) {
        self.child.kill().expect("our own");
        self.child.wait().expect("our own");
    }
}

fn engine(program: &Path, region: &Path) -> Vec<Rank> {
    (0..RANKS).map(|rank| Rank::start(program, region, rank)).collect()
}

fn slowest(engine: &[Rank]) -> Duration {
    engine.iter().map(|rank| rank.took).max().unwrap_or_default()
}

// Promise P364 (programs): Ranks of vLLM's CPU offload, as an ordinary user, all join a loan that
// is bound or linked at their region's path. They share its huge pages, also after SIGKILL, and the
// path goes with the loan.
#[test]
fn ranks_of_an_engine_join_a_bound_loan() {
    if installed("python3", "python3").is_none() {
        return;
    }
    let Some(reserved) = hugepages::reserve(PAGE.size(), 64) else { return };
    let daemon = Daemon::start_with(Some(reserved), &PAGE.pool("pages_per_block = 64"), &[]);
    daemon.zero("max");
    // Where another user can read it.
    let program = daemon.scratch().join("offload.py");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("consumers/python/offload.py");
    std::fs::copy(source, &program).expect("a copy");
    let id = format!("prezero-test-{}", std::process::id());
    let region = PathBuf::from(format!("/dev/shm/vllm_offload_{id}.mmap"));
    // As things are: the first rank makes the file, and each rank's populate takes small pages.
    let own = engine(&program, &region);
    assert!(!own[0].is_joiner && own[1].is_joiner);
    assert_eq!(own[0].page_kib, 4);
    let cold = slowest(&own);
    own.into_iter().for_each(Rank::kill);
    std::fs::remove_file(&region).expect("what a killed engine leaves");
    for flag in ["--bind", "--link"] {
        let shown = region.display().to_string();
        let uid = NO_USER.to_string();
        let words = ["lend", "128M", "--name", "vllm/e0", "--whole", "--uid", &uid, flag, &shown];
        succeeded(&daemon.command(&words).output().expect("prezero runs"));
        for _ in 0..2 {
            let mut ranks = engine(&program, &region);
            assert!(ranks.iter().all(|rank| rank.is_joiner && rank.page_kib == 2048), "{flag}");
            let seen: Vec<_> = ranks.iter_mut().map(Rank::sees).collect();
            assert_eq!(seen, ["[1, 2]", "[1, 2]"], "{flag}");
            measured(&format!("vLLM offload {flag}, 128 MiB, 2 ranks"), cold, slowest(&ranks));
            ranks.into_iter().for_each(Rank::kill);
            assert!(region.exists(), "it outlives the engine");
        }
        succeeded(&daemon.command(&["return", "vllm/e0"]).output().expect("prezero runs"));
        until("the path is gone", || region.symlink_metadata().is_err().then_some(()));
        assert_returned(&daemon);
        daemon.zero("max");
    }
}
