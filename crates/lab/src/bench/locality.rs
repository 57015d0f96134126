// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Was "neighbourhood last" worth it? What the first accesses cost after a page was cleared.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Instant;

use crate::prefault::Anonymous;
use ::clear::{Clearer, Extent, Method, Order, TouchedLast};

use super::Bench;
use super::clock;
use super::figure::{Chart, Part, Row, Shape};
use cli::exit::Failure;

const PAGE_BYTES: usize = 2 << 20;
/// What is accessed next, around the touched byte, and its name.
const ACCESSES: [(usize, &str); 3] =
    [(4 << 10, "next 4 KiB"), (64 << 10, "next 64 KiB"), (2 << 20, "next 2 MiB")];
/// The label of the clear itself.
const CLEAR: &str = "clear";
const RADII: [usize; 5] = [0, 1, 2, 4, 8];

struct Lane {
    method: Method,
    order: &'static str,
    radius: Option<usize>,
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
    let mut lanes = Vec::new();
    let chosen = bench.choice.setting.method;
    let cached = Clearer::default().near();
    let mut methods = vec![cached];
    methods.extend((chosen != cached).then_some(chosen));
    for method in methods {
        let clearer = Clearer::new(method, bench.choice.setting.chunk).map_err(Failure::failed)?;
        let lane =
            |order, radius| Lane { method, order, radius, clearer, times: Default::default() };
        lanes.push(lane("straight", None));
        lanes.push(lane("reversed", None));
        lanes.extend(RADII.map(|radius| lane("touched last", Some(radius))));
    }
    clock::rounds(&bench.plan, lanes.len(), |index, counts| {
        round(&mut lanes[index], memory.as_mut_slice(), counts);
        Ok(())
    })?;
    for lane in &lanes {
        let labels = vec![
            ("far method", lane.method.to_string()),
            ("order", lane.order.to_owned()),
            ("radius", lane.radius.map_or("-".into(), |radius| radius.to_string())),
        ];
        let mut row = Row::new(labels).with(CLEAR, "us", &lane.times[0]);
        for ((_, name), times) in ACCESSES.iter().zip(&lane.times[1..]) {
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
fn round(lane: &mut Lane, memory: &mut [u8], counts: bool) {
    for (index, page) in memory.chunks_exact_mut(PAGE_BYTES).enumerate() {
        let which = index % ACCESSES.len();
        let (bytes, _) = ACCESSES[which];
        // Odd, so that it visits all base pages.
        let at_bytes = index * 199 * 4096 % PAGE_BYTES;
        let order = match (lane.order, lane.radius) {
            (_, Some(radius_pages)) => Order::TouchedLast(TouchedLast { at_bytes, radius_pages }),
            ("reversed", _) => Order::Reversed,
            _ => Order::Straight,
        };
        let begin = Instant::now();
        let outcome =
            lane.clearer.clear_in(order, Extent::from(&mut *page), |_| ControlFlow::Continue(()));
        let cleared = begin.elapsed();
        drop(outcome);
        let from = at_bytes.saturating_sub(bytes / 2).min(PAGE_BYTES - bytes);
        let begin = Instant::now();
        let lines = page[from..from + bytes].iter().step_by(64);
        black_box(lines.fold(0, |seen, byte| seen | byte));
        let read = begin.elapsed();
        if counts {
            lane.times[0].push(cleared.as_secs_f64() * 1e6);
            lane.times[1 + which].push(read.as_secs_f64() * 1e6);
        }
    }
}
