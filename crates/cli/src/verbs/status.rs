// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero status`: pools, loans and what happened so far.

use std::io::{self, Write};

use serde::Serialize;
use units::Bytes;
use wire::{LoanStatus, PoolStatus, Status};

use crate::exit::{Exit, Outcome};
use crate::output::table::{self, Align};
use crate::output::{Form, Record, count};
use crate::shared::Daemon;

/// Show the pools by state, the loans, and what happened since the daemon started
///
/// Counts are pages of the line's size. READY pages are zero and wait for a borrower. ZEROABLE
/// pages could be zeroed now: dirty ones that the daemon owns, and free ones of the kernel's pool
/// that it may take. LINGERING pages were returned, but somebody still has them open, mapped or
/// pinned, which a line below says.
/// Background zeroing starts below LOW and stops at HIGH ready pages. FREE are those left in the
/// kernel's pool, which with provider kernel are the same pages: READY, ZEROING and ZEROABLE ones
/// are free.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero status
  prezero status --json | jq '.pools[] | {node, page_bytes, ready_pages}'")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let status = args.daemon.connect()?.status()?;
    args.form.print(&Report(status))?;
    Ok(Exit::Done)
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Report(Status);

impl Record for Report {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let Status { provider, version, pid, pools, loans, workers, .. } = &self.0;
        let Status { paused_by_pressure, fresh_because, unknown_files, counters, .. } = &self.0;
        let paused = if *paused_by_pressure { ", paused by cpu pressure" } else { "" };
        writeln!(
            out,
            "prezero {version}, provider {provider}, pid {pid}, workers {workers}{paused}"
        )?;
        writeln!(out)?;
        pool_table(out, pools)?;
        lingering(out, pools)?;
        if let Some(reason) = fresh_because {
            writeln!(out)?;
            writeln!(out, "auto recycles fresh: {reason}")?;
        }
        if *unknown_files > 0 {
            let blocks = count(*unknown_files, "block");
            writeln!(out)?;
            writeln!(
                out,
                "{blocks} that the daemon knows nothing of: restart it to have the pages"
            )?;
        }
        if !loans.is_empty() {
            writeln!(out)?;
            loan_table(out, loans)?;
        }
        writeln!(out)?;
        writeln!(
            out,
            "since start: {} loans ({} kept), {} lent ready, {} not ready, {} refused, {} zeroed, {} given back, {} workers lost",
            counters.loans,
            counters.kept_loans,
            Bytes(counters.hit_bytes),
            Bytes(counters.miss_bytes),
            counters.refusals,
            Bytes(counters.zeroed_bytes),
            Bytes(counters.given_back_bytes),
            counters.lost_workers,
        )
    }
}

/// By what pages linger, where any do.
fn lingering(out: &mut dyn Write, pools: &[PoolStatus]) -> io::Result<()> {
    let lingers: Vec<_> = pools.iter().filter(|pool| pool.lingering_pages > 0).collect();
    if !lingers.is_empty() {
        writeln!(out)?;
    }
    for pool in lingers {
        let (mapped, pinned) = (pool.mapped_pages, pool.pinned_pages);
        let open = pool.lingering_pages.saturating_sub(mapped + pinned);
        let page = Bytes(pool.page_bytes);
        writeln!(
            out,
            "lingering, node {}, {page}: {pinned} pinned, {mapped} mapped, {open} open",
            pool.node
        )?;
    }
    Ok(())
}

fn pool_table(out: &mut dyn Write, pools: &[PoolStatus]) -> io::Result<()> {
    use Align::{Left, Right};
    let columns = [
        ("NODE", Right),
        ("PAGE", Right),
        ("BLOCK", Right),
        ("RECYCLE", Left),
        ("READY", Right),
        ("ZEROING", Right),
        ("ZEROABLE", Right),
        ("LENT", Right),
        ("KEPT", Right),
        ("LINGERING", Right),
        ("LOW", Right),
        ("HIGH", Right),
        ("MAX", Right),
        ("FREE", Right),
    ];
    let rows: Vec<_> = pools
        .iter()
        .map(|pool| {
            let counts = [
                pool.ready_pages,
                pool.zeroing_pages,
                pool.zeroable_pages,
                pool.lent_pages,
                pool.kept_pages,
                pool.lingering_pages,
                pool.ready_low,
                pool.ready_high,
            ];
            let mut row = vec![
                pool.node.to_string(),
                Bytes(pool.page_bytes).to_string(),
                pool.pages_per_block.to_string(),
                pool.recycle.to_string(),
            ];
            row.extend(counts.iter().map(ToString::to_string));
            row.push(pool.max_pages.map_or_else(|| "-".into(), |max| max.to_string()));
            row.push(pool.kernel_free_pages.to_string());
            row
        })
        .collect();
    table::write(out, &columns, &rows)
}

/// A loan as people read it: lease, user, owner, page size, pages, blocks, size. A user whose quota
/// is another's is `user of other`; pages that it has taken itself, beyond the loan, are added.
pub(crate) fn loan_cells(loan: &LoanStatus) -> [String; 7] {
    [
        loan.lease.to_string(),
        if loan.account == loan.uid {
            loan.uid.to_string()
        } else {
            format!("{} of {}", loan.uid, loan.account)
        },
        loan.owner.clone().unwrap_or_else(|| "-".into()),
        Bytes(loan.page_bytes).to_string(),
        if loan.grown_pages == 0 {
            loan.pages.to_string()
        } else {
            format!("{}+{}", loan.pages, loan.grown_pages)
        },
        loan.blocks.to_string(),
        Bytes(loan.pages.saturating_mul(loan.page_bytes)).to_string(),
    ]
}

fn loan_table(out: &mut dyn Write, loans: &[LoanStatus]) -> io::Result<()> {
    use Align::{Left, Right};
    let columns = [
        ("LEASE", Right),
        ("USER", Right),
        ("OWNER", Left),
        ("PAGE", Right),
        ("PAGES", Right),
        ("BLOCKS", Right),
        ("SIZE", Right),
    ];
    let rows: Vec<_> = loans.iter().map(|loan| loan_cells(loan).to_vec()).collect();
    table::write(out, &columns, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::text;
    use wire::Counters;

    fn report() -> Report {
        Report(Status {
            provider: wire::Provider::Stock,
            version: "0.1.0".into(),
            pid: 7,
            pools: vec![PoolStatus {
                node: 0,
                page_bytes: 1 << 30,
                pages_per_block: 8,
                recycle: wire::Recycle::Fresh,
                zeroable_pages: 16,
                zeroing_pages: 0,
                ready_pages: 8,
                lent_pages: 8,
                kept_pages: 0,
                lingering_pages: 0,
                mapped_pages: 0,
                pinned_pages: 0,
                blocks: 4,
                ready_low: 8,
                ready_high: 16,
                max_pages: None,
                leave_free: 0,
                kernel_free_pages: 2,
            }],
            levels: Vec::new(),
            loans: vec![LoanStatus {
                lease: 3,
                uid: 1000,
                account: 1000,
                grown_pages: 0,
                owner: None,
                page_bytes: 1 << 30,
                pages: 8,
                blocks: 1,
            }],
            workers: 1,
            paused_by_pressure: true,
            fresh_because: None,
            unknown_files: 0,
            counters: Counters { loans: 1, hit_bytes: 8 << 30, ..Counters::default() },
        })
    }

    #[test]
    fn the_table_for_people() {
        assert_eq!(
            text(&report()),
            "\
prezero 0.1.0, provider stock, pid 7, workers 1, paused by cpu pressure

NODE  PAGE  BLOCK  RECYCLE  READY  ZEROING  ZEROABLE  LENT  KEPT  LINGERING  LOW  HIGH  MAX  FREE
   0    1G      8  fresh        8        0        16     8     0          0    8    16    -     2

LEASE  USER  OWNER  PAGE  PAGES  BLOCKS  SIZE
    3  1000  -        1G      8       1    8G

since start: 1 loans (0 kept), 8G lent ready, 0 not ready, 0 refused, 0 zeroed, 0 given back, 0 workers lost
"
        );
    }

    #[test]
    fn what_lingers_and_what_is_not_seen_is_said() {
        let Report(mut status) = report();
        status.pools[0].lingering_pages = 6;
        status.pools[0].mapped_pages = 1;
        status.pools[0].pinned_pages = 3;
        status.fresh_because = Some("no BTF".into());
        let text = text(&Report(status));
        assert!(text.contains("\nlingering, node 0, 1G: 3 pinned, 1 mapped, 2 open\n"), "{text}");
        assert!(text.contains("\nauto recycles fresh: no BTF\n"), "{text}");
    }

    #[test]
    fn a_loan_of_a_subordinate_that_has_grown_says_so() {
        let Report(status) = report();
        let loan = LoanStatus { uid: 100_001, grown_pages: 375, ..status.loans[0].clone() };
        let [_, user, _, _, pages, ..] = loan_cells(&loan);
        assert_eq!((user.as_str(), pages.as_str()), ("100001 of 1000", "8+375"));
    }

    #[test]
    fn json_has_the_names_of_the_wire() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["pools"][0]["ready_pages"], 8);
        assert_eq!(json["counters"]["hit_bytes"], 8_u64 << 30);
    }
}
