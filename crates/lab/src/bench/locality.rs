// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Would "neighbourhood last" be worth it? What the first accesses cost after a page was cleared.
//!
//! prezero clears straight on; the other orders are made here, of clears of parts of a page.

use std::hint::black_box;
use std::ops::{ControlFlow, Range};
use std::time::Instant;

use crate::prefault::Anonymous;
use ::clear::{Clearer, Extent, Method};

use super::Bench;
use super::clock;
use crate::figure::{Chart, Part, Row, Shape};
use cli::exit::Failure;

const PAGE_BYTES: usize = 2 << 20;
/// The unit of a radius: the base page of x86-64, and of most aarch64 kernels.
const BASE_BYTES: usize = 4096;
/// The next access, around the touched byte, and its name.
const ACCESSES: [(usize, &str); 3] =
    [(4 << 10, "next 4 KiB"), (64 << 10, "next 64 KiB"), (2 << 20, "next 2 MiB")];
/// The label of the clear itself.
const CLEAR: &str = "clear";
const RADII: [usize; 5] = [0, 1, 2, 4, 8];

/// In which order the parts of a page are cleared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// From the first byte to the last.
    Straight,
    /// Chunk by chunk from the end, each chunk forwards.
    Reversed,
    /// The pages right of the touched base page and its neighbours, the pages left of them, and
    /// these last.
    TouchedLast { radius: usize },
}

struct Candidate {
    method: Method,
    order: Order,
    clearer: Clearer,
    /// Microseconds, one list for the clear and one for each access.
    times: [Vec<f64>; 1 + ACCESSES.len()],
}

pub(super) fn measure(bench: &Bench) -> Result<Part, Failure> {
    let mut part = Part::new(
        "locality",
        "Is it worth clearing the neighbourhood of the touched byte last?",
        format!(
            "2 MiB pages out of {}, each cleared as if a byte of it had been touched, then read around that byte, one \
             read per cache line: another page for each size. Time by the wall clock per page, since a look at the CPU \
             clock takes longer than the shortest read; medians over pages.",
            bench.size
        ),
    );
    let mut memory = Anonymous::map_transparent(bench.size, true)?;
    memory.as_mut_slice().fill(1);
    let mut candidates = Vec::new();
    let chosen = bench.choice.setting.method;
    let cached = super::cached();
    let mut methods = vec![cached];
    methods.extend((chosen != cached).then_some(chosen));
    for method in methods {
        let clearer = Clearer::new(method, bench.choice.setting.chunk).map_err(Failure::failed)?;
        let candidate = |order| Candidate { method, order, clearer, times: Default::default() };
        candidates.extend([Order::Straight, Order::Reversed].map(candidate));
        candidates.extend(RADII.map(|radius| candidate(Order::TouchedLast { radius })));
    }
    let near = Clearer::new(cached, bench.choice.setting.chunk).map_err(Failure::failed)?;
    clock::rounds(&bench.plan, candidates.len(), |index, counts| {
        round(&mut candidates[index], &near, memory.as_mut_slice(), counts);
        Ok(())
    })?;
    for candidate in &candidates {
        let (order, radius) = match candidate.order {
            Order::Straight => ("straight", "-".to_owned()),
            Order::Reversed => ("reversed", "-".to_owned()),
            Order::TouchedLast { radius } => ("touched last", radius.to_string()),
        };
        let labels = vec![
            ("far method", candidate.method.to_string()),
            ("order", order.to_owned()),
            ("radius", radius),
        ];
        let mut row = Row::new(labels).with(CLEAR, "us", &candidate.times[0]);
        for ((_, name), times) in ACCESSES.iter().zip(&candidate.times[1..]) {
            row = row.with(name, "us", times);
        }
        part.rows.push(row);
    }
    for (_, what) in ACCESSES {
        part.charts.push(Chart {
            title: what,
            shape: Shape::Bars,
            what,
            x: &["far method", "order", "radius"],
            series: &[],
            only: Vec::new(),
        });
    }
    Ok(part)
}

/// All pages once: the sizes of the accesses take turns.
fn round(candidate: &mut Candidate, near: &Clearer, memory: &mut [u8], counts: bool) {
    for (index, page) in memory.chunks_exact_mut(PAGE_BYTES).enumerate() {
        let which = index % ACCESSES.len();
        let (bytes, _) = ACCESSES[which];
        // Odd, so that it visits all base pages.
        let touched = index * 199 % (PAGE_BYTES / BASE_BYTES);
        let begin = Instant::now();
        for (part, is_near) in parts(candidate.order, touched, candidate.clearer.chunk().bytes()) {
            let clearer = if is_near { near } else { &candidate.clearer };
            drop(clearer.clear(Extent::from(&mut page[part]), |_| ControlFlow::Continue(())));
        }
        let cleared = begin.elapsed();
        let from = (touched * BASE_BYTES).saturating_sub(bytes / 2).min(PAGE_BYTES - bytes);
        let begin = Instant::now();
        let lines = page[from..from + bytes].iter().step_by(64);
        black_box(lines.fold(0, |seen, byte| seen | byte));
        let read = begin.elapsed();
        if counts {
            candidate.times[0].push(cleared.as_secs_f64() * 1e6);
            candidate.times[1 + which].push(read.as_secs_f64() * 1e6);
        }
    }
}

/// The parts of a page in the order of clearing, and whether one is wanted in the cache.
fn parts(order: Order, touched: usize, chunk: usize) -> Vec<(Range<usize>, bool)> {
    match order {
        Order::Straight => vec![(0..PAGE_BYTES, false)],
        Order::Reversed => (0..PAGE_BYTES)
            .step_by(chunk.min(PAGE_BYTES))
            .map(|start| (start..start.saturating_add(chunk).min(PAGE_BYTES), false))
            .rev()
            .collect(),
        Order::TouchedLast { radius } => {
            let start = touched.saturating_sub(radius) * BASE_BYTES;
            let end = ((touched + radius + 1) * BASE_BYTES).min(PAGE_BYTES);
            vec![(end..PAGE_BYTES, false), (0..start, false), (start..end, true)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_covers_every_byte_once() {
        let touched = RADII.map(|radius| Order::TouchedLast { radius });
        for order in [Order::Straight, Order::Reversed].into_iter().chain(touched) {
            for (at, chunk) in [(0, 4096), (1, 3 * 4096), (511, PAGE_BYTES), (77, usize::MAX)] {
                let mut parts = parts(order, at, chunk);
                parts.sort_by_key(|(part, _)| (part.start, part.end));
                let mut next = 0;
                for (part, _) in parts.into_iter().filter(|(part, _)| !part.is_empty()) {
                    assert_eq!(part.start, next);
                    next = part.end;
                }
                assert_eq!(next, PAGE_BYTES);
            }
        }
    }

    #[test]
    fn touched_last_is_right_then_left_then_neighbourhood() {
        let page = |pages: Range<usize>| pages.start * BASE_BYTES..pages.end * BASE_BYTES;
        let parts = parts(Order::TouchedLast { radius: 2 }, 5, 4096);
        assert_eq!(parts, [(page(8..512), false), (page(0..3), false), (page(3..8), true)]);
    }
}
