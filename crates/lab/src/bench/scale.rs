// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a loan takes longer where there is more of everything: blocks, loans, connections.
//!
//! One borrower is timed. The others are threads of this process that have taken on another user's
//! number for as long as they connect, which is what the daemon asks the kernel for.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use client::{Client, LendRequest, Loan};
use rustix::process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use units::{Bytes, Node, PageSize, Pages};
use worker::{Engine, Worker};

use super::Bench;
use crate::figure::{Chart, Part, Row, Shape, quantile};
use crate::rig::{Plan, Pool, Scene};
use cli::exit::Failure;

const PAGE: PageSize = PageSize::MIB_2;
/// Who else is there.
const USERS: u32 = 100;
/// The number of the first of them, the timed borrower, and of their group. An unused number: no
/// user and no container gets one from 2^31 on (systemd's UIDS-GIDS document).
const FIRST: u32 = (1 << 31) + 1000;
/// Timed loans of one round at each point, as many at a time as there are blocks for.
const CALLS: usize = 1000;
const QUICK_CALLS: usize = 20;
const AT_A_TIME: usize = 200;
/// Connections asked for. The daemon serves 4096 of users that are not root.
const CONNECTIONS: [usize; 6] = [0, 10, 100, 1000, 4000, 10_000];
/// Descriptors: a connection has two ends in this process, a loan three.
const DESCRIPTORS: u64 = 1 << 16;
/// No machine has it: the daemon answers with an error and does nothing.
const NO_NODE: Node = Node(u32::MAX);
/// How long returned blocks may take to be ready again.
const RETURN_TIMEOUT: Duration = Duration::from_secs(20);

/// What there is more of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Axis {
    Blocks,
    Loans,
    Connections,
}

impl Axis {
    fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks ready",
            Self::Connections => "connections of others",
            Self::Loans => "loans of others",
        }
    }
}

/// The figures of one point.
#[derive(Debug)]
struct Point {
    axis: Axis,
    /// How many there are; of connections how many were asked for.
    count: usize,
    /// How many of them there were.
    had: Vec<f64>,
    /// Of each round.
    lends: Vec<Vec<f64>>,
    reports: Vec<f64>,
}

impl Point {
    fn new(axis: Axis, count: usize) -> Self {
        Self { axis, count, had: Vec::new(), lends: Vec::new(), reports: Vec::new() }
    }
}

pub(super) fn measure(bench: &mut Bench) -> Result<Part, Failure> {
    let mut part = Part::new(
        "scale",
        "Does a loan take longer where there are more blocks, loans and connections?",
        format!(
            "One user borrows ready blocks of one 2 MiB page, {AT_A_TIME} one after the other, and returns them. Beside it: \
             pools of more and more blocks; loans of {USERS} other users, of whom each has as many; idle connections of \
             {USERS} other users, each asked for once something that the daemon refuses. GetStatus is root's, with all loans \
             in it. Borrowers and daemon share the CPUs; points of one kind take turns, pools of different sizes cannot.",
        ),
    );
    let calls = if bench.quick { QUICK_CALLS } else { CALLS };
    let most_loans = loans_of(raise_descriptors()?);
    let all = usize::try_from(bench.size.0 / PAGE.bytes()).unwrap_or(usize::MAX);
    let mut points = Vec::new();
    for blocks in decades(10, all) {
        let mut point = Point::new(Axis::Blocks, blocks);
        let beside = blocks == all;
        let pool = Pool::new(PAGE, Pages(blocks as u64).bytes(PAGE)).in_blocks_of(Pages(1));
        let done = bench.with_huge(pool.for_group(FIRST.to_string()), |plan, scene| {
            for _ in 0..plan.rounds {
                point.had.push(count_of(blocks));
                time(plan, scene, calls, 0, &mut point)?;
            }
            if beside { others(plan, scene, calls, blocks, most_loans) } else { Ok(Vec::new()) }
        })?;
        match done {
            Ok(more) => {
                points.push(point);
                points.extend(more);
            }
            Err(why) => {
                part.skip(why);
                return Ok(part);
            }
        }
    }
    let timed: usize = points.iter().flat_map(|point| &point.lends).map(Vec::len).sum();
    part.notes.push(format!("{timed} loans timed"));
    for point in &points {
        let at = |part| point.lends.iter().map(|lends| quantile(lends, part)).collect::<Vec<_>>();
        let labels = vec![("of", point.axis.name().to_owned()), ("count", point.count.to_string())];
        part.rows.push(
            Row::new(labels)
                .with("there", "", &point.had)
                .with("p50", "ms", &at(0.5))
                .with("p90", "ms", &at(0.9))
                .with("p99", "ms", &at(0.99))
                .with("GetStatus", "ms", &point.reports),
        );
    }
    part.charts = vec![
        chart("Median of a loan, ms, by how many there are of others", "p50"),
        chart("99th percentile of a loan, ms, by how many there are of others", "p99"),
    ];
    Ok(part)
}

fn chart(title: &'static str, what: &'static str) -> Chart {
    Chart { title, shape: Shape::Lines, what, x: &["count"], series: &["of"], only: Vec::new() }
}

/// The powers of ten from `from` up to `most`, and `most`.
fn decades(from: usize, most: usize) -> Vec<usize> {
    let steps = std::iter::successors(Some(from), |step| step.checked_mul(10));
    let mut steps: Vec<_> = steps.take_while(|step| *step < most).collect();
    steps.push(most);
    steps
}

#[expect(clippy::cast_precision_loss, reason = "thousands")]
fn count_of(things: usize) -> f64 {
    things as f64
}

/// Loans and connections of others, in turns.
fn others(
    plan: &Plan,
    scene: &mut Scene<'_>,
    calls: usize,
    blocks: usize,
    most_loans: usize,
) -> Result<Vec<Point>, Failure> {
    // The timed loans need blocks, too.
    let most = blocks.saturating_sub(AT_A_TIME.min(blocks / 2)).min(most_loans);
    let loans = [0].into_iter().chain(decades(10, most));
    let mut points: Vec<_> = loans.map(|count| Point::new(Axis::Loans, count)).collect();
    points.extend(CONNECTIONS.map(|count| Point::new(Axis::Connections, count)));
    super::clock::rounds(plan, points.len(), |index, counts| {
        let point = &mut points[index];
        let mut fresh = Point::new(point.axis, point.count);
        let socket = scene.socket().to_owned();
        if point.axis == Axis::Loans {
            until_ready(plan, scene, most)?;
            let held = borrow_by_all(&socket, point.count)?;
            fresh.had.push(count_of(held.len()));
            time(plan, scene, calls, point.count, &mut fresh)?;
        } else {
            let mut crowd = connect_by_all(&socket, point.count)?;
            time(plan, scene, calls, 0, &mut fresh)?;
            crowd.retain_mut(is_served);
            fresh.had.push(count_of(crowd.len()));
        }
        if counts {
            point.had.extend(fresh.had);
            point.lends.extend(fresh.lends);
            point.reports.extend(fresh.reports);
        }
        Ok(())
    })?;
    Ok(points)
}

/// Times `calls` loans by one user while others hold this many of the blocks, and a few reports.
fn time(
    plan: &Plan,
    scene: &mut Scene<'_>,
    calls: usize,
    held: usize,
    point: &mut Point,
) -> Result<(), Failure> {
    let request = request();
    let blocks = usize::try_from(scene.bytes().0 / PAGE.bytes()).unwrap_or(usize::MAX);
    let batch = AT_A_TIME.min(calls).min(blocks - held);
    let socket = scene.socket().to_owned();
    let mut client = by_user(0, || Client::connect(&socket))?.map_err(Failure::from)?;
    let mut root = Client::connect(&socket)?;
    let (mut left, mut lends) = (calls, Vec::with_capacity(calls));
    while left > 0 {
        plan.go_on()?;
        // All that is not held, so that a pool of many blocks has many ready.
        until_ready(plan, scene, blocks - held)?;
        let mut loans = Vec::with_capacity(batch);
        for _ in 0..batch.min(left) {
            let begin = Instant::now();
            let loan = client.lend(&request)?;
            lends.push(begin.elapsed().as_secs_f64() * 1e3);
            if loan.ready_bytes() < loan.bytes() {
                return Err(Failure::failed("a loan was not ready: somebody else takes pages"));
            }
            loans.push(loan);
        }
        left -= loans.len();
        let begin = Instant::now();
        root.status()?;
        point.reports.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    point.lends.push(lends);
    Ok(())
}

fn request() -> LendRequest {
    let mut request = LendRequest::new(Bytes(PAGE.bytes()));
    request.page_size = Some(PAGE);
    request
}

/// Zeroes returned blocks until this many are ready.
fn until_ready(plan: &Plan, scene: &mut Scene<'_>, blocks: usize) -> Result<(), Failure> {
    let begin = Instant::now();
    loop {
        let worker = Worker {
            socket: scene.socket(),
            which: scene.which(),
            background: false,
            idle_timeout: Duration::ZERO,
            threads: plan.threads,
            limit: None,
            engine: Engine::default(),
            at_least_one: false,
            stop: &plan.stop,
        };
        worker.run(&|_| {})?;
        plan.go_on()?;
        if scene.ready()? >= Pages(blocks as u64).bytes(PAGE) {
            return Ok(());
        }
        if begin.elapsed() > RETURN_TIMEOUT {
            return Err(Failure::failed(format!(
                "{blocks} blocks were not ready in {RETURN_TIMEOUT:?}"
            )));
        }
    }
}

/// `count` loans of all other users, one after the other.
fn borrow_by_all(socket: &Path, count: usize) -> Result<Vec<Loan>, Failure> {
    let request = request();
    let mut loans = Vec::with_capacity(count);
    for (user, part) in parts(count) {
        let borrowed = by_user(user, || {
            let mut client = Client::connect(socket)?;
            (0..part).map(|_| client.lend(&request)).collect::<Result<Vec<_>, _>>()
        })?;
        loans.extend(borrowed?);
    }
    Ok(loans)
}

/// `count` connections of all other users, each with one call behind it.
fn connect_by_all(socket: &Path, count: usize) -> Result<Vec<Client>, Failure> {
    let mut clients = Vec::with_capacity(count);
    for (user, part) in parts(count) {
        let connected = by_user(user, || {
            (0..part).map(|_| Client::connect(socket)).collect::<Result<Vec<_>, _>>()
        })?;
        clients.extend(connected?);
    }
    // A client that had to make room learns of it with its next call.
    for client in &mut clients {
        is_served(client);
    }
    Ok(clients)
}

fn is_served(client: &mut Client) -> bool {
    matches!(
        client.release(Some(NO_NODE), None, None),
        Ok(_)
            | Err(client::Error::Refused(
                wire::Error::NotPermitted { .. }
                    | wire::Error::NoSuchPool { .. }
                    | wire::Error::BadValue { .. }
            ))
    )
}

/// Each other user's part of this many.
fn parts(count: usize) -> impl Iterator<Item = (u32, usize)> {
    let of = move |user: usize| (count + user) / USERS as usize;
    (1..=USERS).zip(0..).map(move |(number, user)| (number, of(user))).filter(|(_, part)| *part > 0)
}

/// Does something as the user with that number among ours.
fn by_user<T: Send>(number: u32, work: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    let become_user = move || {
        let (uid, gid) = (Uid::from_raw(FIRST + number), Gid::from_raw(FIRST));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)
    };
    thread::scope(|scope| {
        let thread = scope.spawn(|| become_user().map(|()| work()));
        let done = thread.join().expect("a borrower does not panic");
        done.map_err(|errno| Failure::failed(format!("cannot be another user: {errno}")))
    })
}

/// Lets this process, and the daemon in it, have as many descriptors as it takes.
///
/// Returns how many that is.
fn raise_descriptors() -> Result<u64, Failure> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // None is no limit.
    let (Some(current), Some(hard)) = (current, maximum) else { return Ok(u64::MAX) };
    let limit = |soft: u64, hard: u64| {
        setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: Some(hard) })
    };
    let most = DESCRIPTORS.max(current);
    // Root may have more than it was left: the parts that need huge pages are root's anyway.
    let raised = limit(most, hard.max(most)).map(|()| most);
    let raised = raised.or_else(|_| limit(most.min(hard), hard).map(|()| most.min(hard)));
    raised.map_err(|errno| Failure::failed(format!("cannot have {most} open files: {errno}")))
}

/// How many loans of one block these descriptors allow: each takes the block, and both ends of its
/// lease. Some are for what else there is.
fn loans_of(descriptors: u64) -> usize {
    usize::try_from(descriptors.saturating_sub(2000) / 3).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_powers_of_ten_and_the_most() {
        assert_eq!(decades(10, 1024), [10, 100, 1000, 1024]);
        assert_eq!(decades(10, 10), [10]);
        assert_eq!(decades(10, 3), [3]);
    }

    #[test]
    fn users_have_parts_that_differ_by_one_at_most_and_are_all() {
        for count in [0, 1, 10, 100, 250, 10_000] {
            let parts: Vec<_> = parts(count).map(|(_, part)| part).collect();
            assert_eq!(parts.iter().sum::<usize>(), count);
            let most = parts.iter().max().copied().unwrap_or(0);
            assert!(parts.iter().all(|part| part + 1 >= most));
        }
    }
}
