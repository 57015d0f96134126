// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Latency of loans over the socket, with many clients at once.

use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use client::{Client, LendRequest};
use units::{Bytes, Node, PageSize, Pages};

use super::Bench;
use crate::figure::{Chart, Part, Row, Shape, quantile};
use crate::rig::Pool;
use cli::exit::Failure;

const CLIENTS: usize = 64;
/// Loans of one client in one round: it holds them to the round's end.
const LOANS: usize = 8;
/// No machine has it: the daemon answers with an error and does nothing.
const NO_NODE: Node = Node(u32::MAX);

/// When the clients call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrivals {
    /// One call each, all in the same moment.
    Together,
    /// [`LOANS`] each, the next as soon as the last is answered: 64 are waiting all the time.
    Circle,
    /// [`LOANS`] each with a pause of 0 to 20 ms between.
    Spread,
}

impl Arrivals {
    fn calls(self) -> usize {
        if self == Self::Together { 1 } else { LOANS }
    }

    fn pause(self) -> Duration {
        if self == Self::Spread { Duration::from_millis(20) } else { Duration::ZERO }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Together => "one each, together",
            Self::Circle => "8 each, no pause",
            Self::Spread => "8 each, 0 to 20 ms apart",
        }
    }
}

/// What the clients call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Lend,
    /// A call that does nothing: what the socket and the scheduler cost.
    Nothing,
}

pub(super) fn measure(bench: &mut Bench) -> Result<Part, Failure> {
    let page = PageSize::MIB_2;
    let mut part = Part::new(
        "lend",
        "How long does a loan take when 64 clients want one at the same time?",
        format!(
            "{CLIENTS} threads with a connection each start together. Each makes one call; or {LOANS}, the next as soon \
             as the last is answered, so that {CLIENTS} wait all the time and a call's latency is the queue's; or \
             {LOANS} with pauses, which spreads the arrivals. A loan is one ready block of 2 MiB, both descriptors received; the empty call is a Release of a node that does not \
             exist, which the daemon refuses without doing anything. Clients and daemon share the CPUs.",
        ),
    );
    let needed = Bytes((CLIENTS * LOANS) as u64 * page.bytes());
    let rounds = bench.plan.rounds;
    let done = bench.with_huge(Pool::new(page, needed).in_blocks_of(Pages(1)), |plan, scene| {
        let socket = scene.socket().to_owned();
        let kinds = [Call::Lend, Call::Nothing];
        let mut candidates: Vec<_> = [Arrivals::Together, Arrivals::Circle, Arrivals::Spread]
            .into_iter()
            .flat_map(|arrivals| kinds.map(|call| (call, arrivals, Vec::new(), Vec::new())))
            .collect();
        super::clock::rounds(plan, candidates.len(), |index, counts| {
            let (call, arrivals, times, rates) = &mut candidates[index];
            if *call == Call::Lend {
                scene.fill(plan)?;
            }
            let (round, rate) = round(&socket, *call, *arrivals)?;
            if counts {
                times.extend(round);
                rates.push(rate);
            }
            if *call == Call::Lend {
                scene.release(&plan.stop)?;
            }
            Ok(())
        })?;
        Ok(candidates)
    })?;
    let candidates = match done {
        Ok(candidates) => candidates,
        Err(why) => {
            part.skip(why);
            return Ok(part);
        }
    };
    for (call, arrivals, times, rates) in &candidates {
        let what = match call {
            Call::Lend => "lend",
            Call::Nothing => "empty call",
        };
        let at = |part| [quantile(times, part)];
        part.rows.push(
            Row::new(vec![("call", what.to_owned()), ("arrivals", arrivals.name().to_owned())])
                .with("rate", "1/s", rates)
                .with("p50", "ms", &at(0.5))
                .with("p90", "ms", &at(0.9))
                .with("p99", "ms", &at(0.99))
                .with("worst", "ms", &at(1.0)),
        );
    }
    let calls = candidates.iter().map(|candidate| candidate.2.len()).collect::<Vec<_>>();
    part.notes.push(format!("{calls:?} calls by row, {rounds} rounds"));
    part.charts.push(Chart {
        title: "99th percentile, ms",
        shape: Shape::Bars,
        what: "p99",
        x: &["call", "arrivals"],
        series: &[],
        only: Vec::new(),
    });
    Ok(part)
}

/// All clients at once; returns the latencies in ms, and the calls a second.
fn round(socket: &Path, call: Call, arrivals: Arrivals) -> Result<(Vec<f64>, f64), Failure> {
    let together = Barrier::new(CLIENTS);
    // Each client keeps its loan until all have theirs, because returned blocks are dirty.
    let (all, span) = thread::scope(|scope| {
        let together = &together;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|index| scope.spawn(move || one(socket, call, arrivals, index, together)))
            .collect();
        let mut all = Vec::new();
        let mut span: Option<(Instant, Instant)> = None;
        for client in clients {
            let (times, begin, end) = client.join().expect("a client does not panic")?;
            all.extend(times);
            span = Some(span.map_or((begin, end), |(b, e)| (b.min(begin), e.max(end))));
        }
        Ok::<_, Failure>((all, span))
    })?;
    let seconds = span.map_or(f64::NAN, |(begin, end)| (end - begin).as_secs_f64());
    #[expect(clippy::cast_precision_loss, reason = "a few hundred calls")]
    let rate = all.len() as f64 / seconds;
    Ok((all, rate))
}

fn one(
    socket: &Path,
    call: Call,
    arrivals: Arrivals,
    index: usize,
    together: &Barrier,
) -> Result<(Vec<f64>, Instant, Instant), Failure> {
    let client = Client::connect(socket);
    together.wait();
    let mut request = LendRequest::new(Bytes(PageSize::MIB_2.bytes()));
    request.page_size = Some(PageSize::MIB_2);
    let begin = Instant::now();
    let mut loans = Vec::new();
    let mut times = Vec::new();
    let result = client.map_err(Failure::from).and_then(|mut client| {
        for turn in 0..arrivals.calls() {
            // A stride that is prime to 64 gives every client another order of pauses.
            let part = u32::try_from((index * 37 + turn * 11) % CLIENTS).unwrap_or(0);
            thread::sleep(arrivals.pause() * part / u32::try_from(CLIENTS).unwrap_or(1));
            let start = Instant::now();
            match call {
                Call::Lend => loans.push(client.lend(&request)?),
                Call::Nothing => match client.release(Some(NO_NODE), None, None) {
                    Ok(_) | Err(client::Error::Refused(_)) => {}
                    Err(error) => return Err(error.into()),
                },
            }
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok(())
    });
    let end = Instant::now();
    together.wait();
    result?;
    let cold = loans.iter().filter(|loan| loan.ready_bytes() < loan.bytes()).count();
    if cold > 0 {
        return Err(Failure::failed(format!("{cold} of {LOANS} loans were not ready")));
    }
    Ok((times, begin, end))
}
