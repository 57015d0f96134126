// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PostgreSQL, unchanged: its start, and the first filling of its shared buffers.
//!
//! The server touches little of its buffers before it accepts connections, so lent memory can gain
//! nothing there; each page is touched when the first block of a table is read into it.
//! `pg_prewarm` reads a whole table into the buffers, as an operator does after a restart. `CREATE
//! TABLE AS` and scans of large tables go round in a ring of a few buffers, and fill none of them.

use std::path::Path;
use std::time::Instant;

use units::{Bytes, PageSize, Pages};

use super::Bench;
use super::clock;
use super::start::{Way, labels, skip_if_failed};
use crate::figure::{Part, Row};
use crate::rig::postgres::{Cluster, Memory, Postgres};
use crate::rig::{Plan, Pool, Scene};
use cli::exit::Failure;

pub(super) const PROGRAM: &str = "PostgreSQL";
const PAGE: PageSize = PageSize::MIB_2;
/// Half of what a part works on, within these.
const MIN_BUFFERS: u64 = 128 << 20;
const MAX_BUFFERS: u64 = 1 << 30;
/// The server maps its memory in one piece, and blocks are lent in a row: small ones waste little.
const PAGES_PER_BLOCK: Pages = Pages(16);
/// The table is half of the buffers: each of its blocks is read into one that is empty.
const TABLE_PART: u64 = 2;
/// Of a table and of a buffer.
const BLOCK_BYTES: u64 = 8 << 10;
/// Rows of 1008 bytes, header included, that fill a block.
const ROWS_PER_BLOCK: u64 = 8;
const TEXT_BYTES: usize = 970;

/// Seconds from exec, in each round.
#[derive(Debug)]
struct Candidate {
    way: Way,
    /// To the first connection that would be accepted.
    started: Vec<f64>,
    /// To the end of the first filling.
    filled: Vec<f64>,
}

/// Adds a row for each way, or says why not.
pub(super) fn measure(bench: &mut Bench, part: &mut Part) -> Result<(), Failure> {
    let postgres = match Postgres::find() {
        Ok(postgres) => postgres,
        Err(lack) => {
            part.skip(lack);
            return Ok(());
        }
    };
    let shim = match cli::installed::shim() {
        Ok(shim) => Some(shim),
        Err(why) => {
            part.skip(format!("PostgreSQL on lent memory: {why}"));
            None
        }
    };
    let buffers = Bytes((bench.size.0 / 2).clamp(MIN_BUFFERS, MAX_BUFFERS));
    let pool =
        Pool::new(PAGE, needed(buffers)).in_blocks_of(PAGES_PER_BLOCK).for_group(postgres.group());
    let done = bench.with_huge(pool, |plan, scene| {
        Ok(candidates(plan, scene, &postgres, shim.as_deref(), buffers))
    })?;
    let Some(candidates) = skip_if_failed(part, "PostgreSQL", done)? else { return Ok(()) };
    for Candidate { way, started, filled } in &candidates {
        let row = Row::new(labels(PROGRAM, way.page(PAGE), way.name()));
        part.rows.push(row.with("time", "s", started).with("filled", "s", filled));
    }
    part.notes.push(format!(
        "PostgreSQL {}, shared_buffers of {buffers}, a table of {} in the page cache",
        postgres.version(),
        table(buffers)
    ));
    Ok(())
}

/// Of huge pages: the buffers, an eighth for what describes them, locks and the rest.
fn needed(buffers: Bytes) -> Bytes {
    let block = PAGES_PER_BLOCK.bytes(PAGE).0;
    Bytes((buffers.0 + buffers.0 / 8 + (64 << 20)).next_multiple_of(block))
}

fn table(buffers: Bytes) -> Bytes {
    Bytes(buffers.0 / TABLE_PART)
}

fn candidates(
    plan: &Plan,
    scene: &mut Scene<'_>,
    postgres: &Postgres,
    shim: Option<&Path>,
    buffers: Bytes,
) -> Result<Vec<Candidate>, Failure> {
    let cluster = Cluster::make(postgres, buffers, &plan.stop)?;
    let blocks = table(buffers).0 / BLOCK_BYTES;
    load(&cluster, blocks, plan)?;
    let socket = scene.socket().to_owned();
    let mut ways = vec![(Way::Ordinary, Memory::Ordinary), (Way::Kernel, Memory::Huge(PAGE))];
    ways.extend(shim.map(|shim| (Way::Lent, Memory::Lent { page: PAGE, shim, socket: &socket })));
    let mut candidates: Vec<_> = ways
        .iter()
        .map(|&(way, _)| Candidate { way, started: Vec::new(), filled: Vec::new() })
        .collect();
    clock::rounds(plan, ways.len(), |index, counts| {
        let ((way, memory), candidate) = (ways[index], &mut candidates[index]);
        if way == Way::Lent {
            scene.fill(plan)?;
        }
        let (server, started) = cluster.start(memory, &plan.stop)?;
        // It would take the kernel's pages without a word.
        if way == Way::Lent && scene.lent()? < buffers {
            let why = cluster.shim_said();
            return Err(Failure::failed(format!("its buffers were not lent: {why}")));
        }
        let begin = Instant::now();
        let read = server.ask("SELECT pg_prewarm('filled')", &plan.stop)?;
        let filled = started + begin.elapsed();
        if read != blocks.to_string() {
            return Err(Failure::failed(format!("{read} of {blocks} blocks were read")));
        }
        server.end(&plan.stop)?;
        if way == Way::Lent {
            scene.release(&plan.stop)?;
        }
        if counts {
            candidate.started.push(started.as_secs_f64());
            candidate.filled.push(filled.as_secs_f64());
        }
        Ok(())
    })?;
    Ok(candidates)
}

/// Makes the table that is read afterwards.
fn load(cluster: &Cluster<'_>, blocks: u64, plan: &Plan) -> Result<(), Failure> {
    let (server, _) = cluster.start(Memory::Ordinary, &plan.stop)?;
    server.ask("CREATE EXTENSION pg_prewarm", &plan.stop)?;
    let rows = blocks * ROWS_PER_BLOCK;
    let sql = format!(
        "CREATE TABLE filled AS SELECT n::integer, repeat('x', {TEXT_BYTES}) AS text \
         FROM generate_series(1, {rows}) AS n"
    );
    server.ask(&sql, &plan.stop)?;
    server.end(&plan.stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_of_whole_blocks_has_room_for_buffers_and_the_rest() {
        for buffers in [MIN_BUFFERS, MAX_BUFFERS] {
            let needed = needed(Bytes(buffers)).0;
            assert_eq!(needed % PAGES_PER_BLOCK.bytes(PAGE).0, 0);
            assert!(needed > buffers + buffers / 20 && needed <= 2 << 30, "{needed}");
        }
    }
}
