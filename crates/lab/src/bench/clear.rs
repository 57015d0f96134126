// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clearing engine against itself: every method at every chunk, and prezero's choice among
//! them.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use crate::prefault::Anonymous;
use ::clear::parallel::{Share, clear_shares};
use ::clear::{Chunk, Clearer, Extent, Method};
use units::Bytes;

use super::Bench;
use super::clock::{self, CPU, Rates};
use super::evidence::{Cell, Clearing};
use crate::figure::{Chart, Labels, Part, Shape};
use crate::rig::Plan;
use cli::exit::Failure;

/// Chunks from the smallest page to the extent in one go.
const CHUNK_KIB: [usize; 5] = [4, 64, 256, 16 << 10, 64 << 10];
/// Stays in the caches of every CPU that prezero is for.
const CACHED_BYTES: usize = 4 << 20;
/// What a thread takes from the queue: the smallest huge page.
const PAGE_BYTES: usize = 2 << 20;
/// The label of the candidate that clears as prezero would.
const CHOICE: &str = "prezero's choice";
/// The number of best cells that run again beside the choice: a best of many noisy medians is too
/// good.
const FINALISTS: usize = 4;

/// One way to fill an extent.
struct Candidate {
    labels: Labels,
    how: How,
    threads: usize,
    extent_bytes: usize,
    /// What the extent holds before.
    before: u8,
    rates: Rates,
}

#[derive(Clone, Copy)]
enum How {
    /// Each thread clears its share of the extent.
    Cell(Clearer),
    /// As a worker does it: pages from a queue.
    Choice(Clearer),
    /// The C library's fill.
    Fill(u8),
}

pub(super) fn measure(bench: &mut Bench) -> Result<Part, Failure> {
    let bytes = usize::try_from(bench.size.0).unwrap_or(usize::MAX);
    let choice = bench.choice;
    let mut part = Part::new(
        "clear",
        "How fast can this machine clear memory that is already mapped, and does prezero choose the best way?",
        format!(
            "{} of anonymous memory with transparent huge pages, touched once, cleared by every method with every \
             chunk, by 1 and by {} threads; 4 MiB again and again for what stays cached; 0xa5 by the C \
             library. The best {FINALISTS} cells run again beside the choice, {} rounds: the ratio is of these. \
             By the CPU clock.",
            bench.size,
            bench.plan.threads,
            bench.plan.rounds * 3
        ),
    );
    let clearer = choice.setting.clearer().map_err(Failure::failed)?;
    let mut memory = Anonymous::map_transparent(Bytes(bytes as u64), true)?;
    memory.as_mut_slice().fill(0xa5);

    let mut candidates = Vec::new();
    let mut thread_counts = vec![1];
    thread_counts.extend((bench.plan.threads > 1).then_some(bench.plan.threads));
    for &threads in &thread_counts {
        for method in Method::available() {
            for chunk in chunks(bytes) {
                let cell = Clearer::new(method, chunk).map_err(Failure::failed)?;
                candidates.push(candidate(
                    method.name(),
                    chunk,
                    threads,
                    bytes,
                    0,
                    How::Cell(cell),
                ));
            }
        }
        let how = How::Choice(clearer);
        candidates.push(candidate(CHOICE, choice.setting.chunk, threads, bytes, 0, how));
        let fill = How::Fill(0xa5);
        candidates.push(candidate("C library, 0xa5", Chunk::WHOLE, threads, bytes, 0xa5, fill));
    }
    for method in Method::available() {
        let cell = Clearer::new(method, Chunk::DEFAULT).map_err(Failure::failed)?;
        candidates.push(candidate(
            method.name(),
            Chunk::DEFAULT,
            1,
            CACHED_BYTES,
            0,
            How::Cell(cell),
        ));
    }
    candidates.push(candidate(
        "C library, 0xa5",
        Chunk::WHOLE,
        1,
        CACHED_BYTES,
        0xa5,
        How::Fill(0xa5),
    ));
    candidates.push(candidate(CHOICE, choice.setting.chunk, 1, bytes, 0xa5, How::Choice(clearer)));
    run(&bench.plan, &mut memory, &mut candidates)?;

    let plan = Plan { rounds: bench.plan.rounds * 3, ..bench.plan.clone() };
    for &threads in &thread_counts {
        let mut finalists = finalists(&candidates, threads, bytes);
        for candidate in &mut finalists {
            candidate.rates = Rates::default();
        }
        run(&plan, &mut memory, &mut finalists)?;
        let found = clearing(&finalists).ok_or_else(|| "no method is faster than the clock".into());
        part.rows.extend(finalists.iter().map(|candidate| {
            let mut row = candidate.rates.row(candidate.labels.clone());
            row.labels.push(("run", "final".into()));
            row
        }));
        if threads == 1 {
            bench.evidence.clear = found;
        } else {
            bench.evidence.clear_all_threads = found;
        }
    }
    if thread_counts.len() == 1 {
        bench.evidence.clear_all_threads = Err("there is one thread only".to_owned());
    }
    part.rows.extend(candidates.iter().map(|candidate| {
        let mut row = candidate.rates.row(candidate.labels.clone());
        row.labels.push(("run", "matrix".into()));
        row
    }));
    part.notes.push(format!("prezero's choice here: {choice}"));
    for &threads in &thread_counts {
        part.charts.push(Chart {
            title: if threads == 1 {
                "Clearing rate by chunk, 1 thread"
            } else {
                "Clearing rate by chunk, all threads"
            },
            shape: Shape::Lines,
            what: CPU,
            x: &["chunk"],
            series: &["method"],
            only: vec![
                ("run", "matrix".into()),
                ("threads", threads.to_string()),
                ("extent", Bytes(bytes as u64).to_string()),
                ("before", "0x00".into()),
            ],
        });
    }
    part.charts.push(Chart {
        title: "4 MiB again and again: what the caches change",
        shape: Shape::Bars,
        what: CPU,
        x: &["method"],
        series: &[],
        only: vec![("extent", Bytes(CACHED_BYTES as u64).to_string())],
    });
    Ok(part)
}

/// The choice, and the best of the others.
fn clearing(finalists: &[Candidate]) -> Option<Clearing> {
    let best = |is_choice: bool| {
        let candidates = finalists
            .iter()
            .filter(|candidate| matches!(candidate.how, How::Choice(_)) == is_choice);
        let cells = candidates.filter_map(|candidate| {
            let rate = candidate.rates.row(Vec::new()).value(CPU)?.stats;
            let (How::Cell(clearer) | How::Choice(clearer)) = candidate.how else { return None };
            Some(Cell { method: clearer.method().name().to_owned(), chunk: clearer.chunk(), rate })
        });
        cells.max_by(|a, b| a.rate.median.total_cmp(&b.rate.median))
    };
    Some(Clearing { choice: best(true)?, best: best(false)? })
}

fn chunks(bytes: usize) -> Vec<Chunk> {
    let mut chunks: Vec<_> = CHUNK_KIB
        .iter()
        .filter(|&&kib| kib << 10 < bytes)
        .filter_map(|&kib| Chunk::from_bytes(kib << 10).ok())
        .collect();
    chunks.push(Chunk::WHOLE);
    chunks
}

fn candidate(
    method: &str,
    chunk: Chunk,
    threads: usize,
    extent_bytes: usize,
    before: u8,
    how: How,
) -> Candidate {
    let labels = vec![
        ("method", method.to_owned()),
        ("chunk", chunk.to_string()),
        ("threads", threads.to_string()),
        ("extent", Bytes(extent_bytes as u64).to_string()),
        ("before", format!("{before:#04x}")),
    ];
    Candidate { labels, how, threads, extent_bytes, before, rates: Rates::default() }
}

/// The best cells and the choice, of the cells with this many threads on zeroed memory.
fn finalists(candidates: &[Candidate], threads: usize, bytes: usize) -> Vec<Candidate> {
    let rate = |candidate: &Candidate| candidate.rates.row(Vec::new()).median(CPU).unwrap_or(0.0);
    let fits = |candidate: &&Candidate| {
        candidate.threads == threads && candidate.extent_bytes == bytes && candidate.before == 0
    };
    let mut cells: Vec<_> = candidates.iter().filter(fits).collect();
    cells.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    let (choice, mut best): (Vec<_>, Vec<_>) =
        cells.into_iter().partition(|candidate| matches!(candidate.how, How::Choice(_)));
    best.truncate(FINALISTS);
    best.into_iter().chain(choice).map(Candidate::again).collect()
}

impl Candidate {
    fn again(&self) -> Self {
        Self { labels: self.labels.clone(), rates: Rates::default(), ..*self }
    }

    /// Fills the extent as often as makes it worth timing.
    fn once(&self, memory: &mut [u8]) -> Result<u64, Failure> {
        let repeats = (64_usize << 20).div_ceil(self.extent_bytes).max(1);
        let extent = &mut memory[..self.extent_bytes];
        for _ in 0..repeats {
            match self.how {
                How::Fill(byte) => self.fill(black_box(&mut *extent), byte),
                How::Cell(clearer) => {
                    let share = self.extent_bytes.div_ceil(self.threads);
                    clear(&clearer, extent, share.next_multiple_of(4096), self.threads)?;
                }
                How::Choice(clearer) => clear(&clearer, extent, PAGE_BYTES, self.threads)?,
            }
        }
        Ok((repeats * self.extent_bytes) as u64)
    }

    fn fill(&self, extent: &mut [u8], byte: u8) {
        let share = extent.len().div_ceil(self.threads);
        if self.threads == 1 {
            extent.fill(byte);
            return;
        }
        std::thread::scope(|scope| {
            for part in extent.chunks_mut(share) {
                scope.spawn(move || part.fill(byte));
            }
        });
    }
}

/// By one thread on the spot, by several from a queue of pages.
pub(super) fn clear(
    clearer: &Clearer,
    memory: &mut [u8],
    page_bytes: usize,
    threads: usize,
) -> Result<(), Failure> {
    let page = NonZeroUsize::new(page_bytes).unwrap_or(NonZeroUsize::MIN);
    let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
    let extent = Extent::from(memory);
    let shares = vec![Share { extent, threads, cpus: Vec::new() }];
    clear_shares(clearer, page, shares, |_| ControlFlow::Continue(())).map_err(Failure::failed)?;
    Ok(())
}

fn run(plan: &Plan, memory: &mut Anonymous, candidates: &mut [Candidate]) -> Result<(), Failure> {
    // What the memory holds, so that it is only refilled for candidates that want it otherwise.
    let mut holds = None;
    clock::rounds(plan, candidates.len(), |index, counts| {
        let candidate = &mut candidates[index];
        let memory = memory.as_mut_slice();
        if holds != Some(candidate.before) {
            memory.fill(candidate.before);
        }
        let (bytes, took) = clock::time(candidate.threads, || candidate.once(memory));
        let bytes = bytes?;
        holds = match candidate.how {
            How::Fill(_) if candidate.extent_bytes < memory.len() => None,
            How::Fill(byte) => Some(byte),
            _ if candidate.before == 0 => Some(0),
            _ if candidate.extent_bytes == memory.len() => Some(0),
            _ => None,
        };
        if counts {
            candidate.rates.add(bytes, candidate.threads, took);
        }
        Ok(())
    })
}
