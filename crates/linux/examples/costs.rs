// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the steps of a loan cost on this machine: `cargo run --release --example costs` as root.
//!
//! The numbers in the module texts come from here. Every step is repeated, and the median printed.

#![allow(clippy::print_stdout, reason = "printing is all that it does")]

use std::error::Error;
use std::time::{Duration, Instant};

use linux::{BlockDir, BlockFile, LeaseDir, Mapping, exclusive, numa};
use testkit::hugepages::{self, GIB_1, MIB_2};
use units::PageSize;

const ROUNDS: usize = 21;
const BLOCK_BYTES: u64 = 2 << 30;

fn main() -> Result<(), Box<dyn Error>> {
    for page in [MIB_2, GIB_1] {
        block(page)?;
    }
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let leases = LeaseDir::open(dir.path())?;
    row("lease: create, find, end, remove", || {
        let (client, daemon) = leases.create("1")?;
        leases.reopen("1")?;
        drop(client);
        daemon.has_ended()?;
        Ok(leases.remove("1")?)
    })
}

fn block(page: PageSize) -> Result<(), Box<dyn Error>> {
    let Some(_guard) = hugepages::reserve(page, BLOCK_BYTES / page.bytes()) else { return Ok(()) };
    let Some(mount) = hugepages::mounted(page) else { return Ok(()) };
    let dir = BlockDir::open(mount.path(), &["ready", "lent"], 0o700)?;
    println!("a block of {} GiB in pages of {page}", BLOCK_BYTES >> 30);
    row("  fallocate and free", || {
        dir.create("ready", "x")?.allocate(0, BLOCK_BYTES)?;
        Ok(dir.unlink("ready", "x")?)
    })?;
    let file = dir.create("ready", "a")?;
    file.allocate(0, BLOCK_BYTES)?;
    row("  map, unmap", || map(&file, page).map(drop))?;
    row("  map, populate, unmap", || Ok(map(&file, page)?.populate()?))?;
    row("  map, ask for the nodes, unmap", || {
        numa::nodes_of(&map(&file, page)?, page)?;
        Ok(())
    })?;
    row("  prove", || {
        exclusive::prove(&file)?;
        Ok(())
    })?;
    row("  rename there and back", || {
        dir.rename("a", "ready", "a", "lent")?;
        Ok(dir.rename("a", "lent", "a", "ready")?)
    })?;
    row("  read and compare with zero", || {
        file.first_nonzero(0..BLOCK_BYTES)?;
        Ok(())
    })
}

fn map(file: &BlockFile, page: PageSize) -> Result<Mapping, Box<dyn Error>> {
    Ok(Mapping::map(file, BLOCK_BYTES, page)?)
}

fn row(what: &str, step: impl Fn() -> Result<(), Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        step()?;
        times.push(begun.elapsed());
    }
    times.sort();
    let median: Duration = times[ROUNDS / 2];
    println!("{what:<40} {:>12.1} us", median.as_secs_f64() * 1e6);
    Ok(())
}
