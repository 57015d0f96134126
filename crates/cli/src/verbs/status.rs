// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero status`: pools, loans and what happened so far.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde::ser::Error;
use serde::{Serialize, Serializer};
use units::Pages;
use wire::{LoanStatus, PoolStatus, Status, UserStatus};

use crate::exit::{Exit, Outcome};
use crate::output::table::{self, Align};
use crate::output::{Form, Record, count, loans, pools, provider};
use crate::shared::Daemon;

/// Show the pools by state, the loans, and what happened since the daemon started
///
/// Counts are pages of the line's size. READY pages are zero and wait for a borrower. ZEROABLE
/// pages could be zeroed now: dirty ones that the daemon owns, and free ones of the kernel's pool
/// that it may take. DRAINING pages were returned, but a process still has them open, mapped or
/// pinned, and a line below says which. A pool with only a ready target has BLOCKs of all sizes; a
/// table lists the sizes, as learnt from recent loans. Background zeroing starts below LOW and
/// stops at HIGH ready pages. FREE pages are left in the kernel's pool and unpromised. With
/// provider kernel they are the same pages: READY, ZEROING and ZEROABLE ones are free. Of a loan,
/// PID and COMMAND are the process that asked for it and UNIT its control group; UNBACKED are pages
/// that the borrower's faults fill. Users that may only borrow see these of their own loans.
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
    args.form.print(&StatusReport(status))?;
    Ok(Exit::Done)
}

#[derive(Debug)]
struct StatusReport(Status);

/// The wire's status, with the name of each user on this machine beside its number.
impl Serialize for StatusReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut status = serde_json::to_value(&self.0).map_err(S::Error::custom)?;
        for list in ["loans", "users"] {
            for entry in status[list].as_array_mut().into_iter().flatten() {
                let uid = entry["uid"].as_u64().and_then(|uid| u32::try_from(uid).ok());
                entry["user"] = uid.and_then(loans::name_of).into();
            }
        }
        status.serialize(serializer)
    }
}

impl Record for StatusReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let Status { version, pid, pools, loans, users, workers, .. } = &self.0;
        let Status { paused_by_pressure, fresh_reason, unknown_files, counters, .. } = &self.0;
        let paused = match (self.0.drained, *paused_by_pressure) {
            (true, _) => ", drained",
            (false, true) => ", paused by cpu pressure",
            (false, false) => "",
        };
        writeln!(
            out,
            "prezero {version}, provider {}, pid {pid}, workers {workers}{paused}",
            provider::describe(&self.0)
        )?;
        writeln!(out)?;
        pool_table(out, pools)?;
        pools::sizes(out, pools)?;
        draining(out, pools)?;
        reserved(out, pools)?;
        pools::resize(out, pools)?;
        if let Some(reason) = fresh_reason {
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
        if users.iter().any(|user| user.quota_bytes.is_some()) {
            writeln!(out)?;
            user_table(out, users)?;
        }
        writeln!(out)?;
        writeln!(
            out,
            "since start: {} loans ({} kept), {} lent ready, {} not ready, {} refused, {} zeroed, {} given back, {} workers lost",
            counters.loans,
            counters.kept_loans,
            counters.lent_ready_bytes,
            counters.lent_unbacked_bytes,
            counters.refusals,
            counters.zeroed_bytes,
            counters.released_bytes,
            counters.lost_workers,
        )
    }
}

/// By what pages are draining, where any do.
fn draining(out: &mut dyn Write, pools: &[PoolStatus]) -> io::Result<()> {
    let draining: Vec<_> = pools.iter().filter(|pool| pool.draining_pages > Pages(0)).collect();
    if !draining.is_empty() {
        writeln!(out)?;
    }
    for pool in draining {
        let (mapped, pinned) = (pool.mapped_pages, pool.pinned_pages);
        let open = pool.draining_pages.saturating_sub(mapped + pinned);
        let page = pool.page_size;
        writeln!(
            out,
            "draining, node {}, {page}: {pinned} pinned, {mapped} mapped, {open} open: `prezero holders` says by whom",
            pool.node
        )?;
    }
    Ok(())
}

/// The kernel's pools with free pages that are promised to other programs.
fn reserved(out: &mut dyn Write, pools: &[PoolStatus]) -> io::Result<()> {
    let mut reported = BTreeSet::new();
    for pool in pools.iter().filter(|pool| pool.kernel_reserved_pages > Pages(0)) {
        if reported.insert((pool.node, pool.page_size.bytes())) {
            let (node, page) = (pool.node, pool.page_size);
            let reserved = count(pool.kernel_reserved_pages.0, "page");
            writeln!(out)?;
            writeln!(
                out,
                "reserved, node {node}, {page}: {reserved} free in the kernel, and promised to programs that have mapped them"
            )?;
        }
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
        ("DRAINING", Right),
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
                pool.draining_pages,
                pool.ready_low,
                pool.ready_high,
            ];
            let mut row = vec![
                pool.node.to_string(),
                pool.page_size.to_string(),
                pools::block(pool),
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

fn loan_table(out: &mut dyn Write, loans: &[LoanStatus]) -> io::Result<()> {
    use Align::{Left, Right};
    let columns = [
        ("LEASE", Right),
        ("USER", Left),
        ("PID", Right),
        ("COMMAND", Left),
        ("OWNER", Left),
        ("NODE", Right),
        ("AGE", Right),
        ("PAGE", Right),
        ("PAGES", Right),
        ("UNBACKED", Right),
        ("SIZE", Right),
        ("UNIT", Left),
    ];
    let row = |loan: &LoanStatus| {
        let nodes: Vec<_> = loan.nodes.iter().map(ToString::to_string).collect();
        vec![
            loan.lease.0.to_string(),
            loans::borrower(loan),
            loans::or_dash(loan.pid),
            loans::or_dash(loan.command.as_ref()),
            loans::or_dash(loan.owner.as_ref()),
            nodes.join(","),
            loans::age(loan.age),
            loan.page_size.to_string(),
            // Pages that it has taken itself, beyond the loan, are added.
            match loan.grown_pages {
                Pages(0) => loan.pages.to_string(),
                grown => format!("{}+{grown}", loan.pages),
            },
            loan.unbacked_pages.to_string(),
            loans::size(loan.pages.0, loan.page_size.bytes()),
            loans::unit(loan.cgroup.as_deref()),
        ]
    };
    table::write(out, &columns, &loans.iter().map(row).collect::<Vec<_>>())
}

fn user_table(out: &mut dyn Write, users: &[UserStatus]) -> io::Result<()> {
    use Align::{Left, Right};
    let columns = [("USER", Left), ("LOANS", Right), ("HELD", Right), ("QUOTA", Right)];
    let row = |user: &UserStatus| {
        vec![
            loans::user(user.uid.0),
            user.loans.to_string(),
            user.held_bytes.to_string(),
            loans::or_dash(user.quota_bytes),
        ]
    };
    table::write(out, &columns, &users.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::output::text;
    use units::{Bytes, LeaseId, Node, PageSize, Uid};
    use wire::Counters;

    /// An idle daemon without pools: the one place of these tests that names every field.
    pub(in super::super) fn idle() -> Status {
        Status {
            provider: wire::Provider::Stock,
            kernel: None,
            version: "0.1.0".into(),
            pid: 7,
            pools: Vec::new(),
            levels: Vec::new(),
            loans: Vec::new(),
            users: Vec::new(),
            workers: 0,
            paused_by_pressure: false,
            fresh_reason: None,
            drained: false,
            tree: None,
            unknown_files: 0,
            counters: Counters::default(),
        }
    }

    fn report() -> StatusReport {
        StatusReport(Status {
            pools: vec![PoolStatus {
                node: Node(0),
                page_size: PageSize::GIB_1,
                pages_per_block: Pages(8),
                recycle: wire::Recycle::Fresh,
                zeroable_pages: Pages(16),
                ready_pages: Pages(8),
                lent_pages: Pages(8),
                blocks: 4,
                ready_low: Pages(8),
                ready_high: Pages(16),
                kernel_free_pages: Pages(2),
                ..PoolStatus::default()
            }],
            loans: vec![LoanStatus {
                lease: LeaseId(3),
                page_size: PageSize::GIB_1,
                pages: Pages(8),
                blocks: 1,
                nodes: vec![Node(0)],
                ready_pages: Pages(7),
                unbacked_pages: Pages(1),
                age: Some(Duration::from_secs(90)),
                pid: Some(77),
                command: Some("qemu".into()),
                cgroup: Some("/machine.slice/vm.scope".into()),
                ..LoanStatus::default()
            }],
            users: vec![UserStatus {
                uid: Uid(0),
                loans: 1,
                held_bytes: Bytes(8 << 30),
                quota_bytes: Some(Bytes(16 << 30)),
            }],
            workers: 1,
            paused_by_pressure: true,
            counters: Counters {
                loans: 1,
                lent_ready_bytes: Bytes(8 << 30),
                ..Counters::default()
            },
            ..idle()
        })
    }

    #[test]
    fn the_table_for_people() {
        assert_eq!(
            text(&report()),
            "\
prezero 0.1.0, provider stock, pid 7, workers 1, paused by cpu pressure

NODE  PAGE  BLOCK  RECYCLE  READY  ZEROING  ZEROABLE  LENT  KEPT  DRAINING  LOW  HIGH  MAX  FREE
   0    1G      8  fresh        8        0        16     8     0         0    8    16    -     2

LEASE  USER  PID  COMMAND  OWNER  NODE  AGE  PAGE  PAGES  UNBACKED  SIZE  UNIT
    3  root   77  qemu     -         0   1m    1G      8         1    8G  vm.scope

USER  LOANS  HELD  QUOTA
root      1    8G    16G

since start: 1 loans (0 kept), 8G lent ready, 0 not ready, 0 refused, 0 zeroed, 0 given back, 0 workers lost
"
        );
    }

    #[test]
    fn draining_and_unseen_pages_are_shown() {
        let StatusReport(mut status) = report();
        status.pools[0].draining_pages = Pages(6);
        status.pools[0].mapped_pages = Pages(1);
        status.pools[0].pinned_pages = Pages(3);
        status.pools[0].kernel_reserved_pages = Pages(1539);
        status.fresh_reason = Some("no BTF".into());
        status.pools[0].resize = Some(wire::ResizeStatus {
            max_pages: Pages(64),
            total_pages: Pages(18),
            added_pages: Pages(16),
            held_pages: Some(Pages(18)),
            short_because: Some("memory".into()),
            ..wire::ResizeStatus::default()
        });
        let text = text(&StatusReport(status));
        assert!(
            text.contains("\ndraining, node 0, 1G: 3 pinned, 1 mapped, 2 open: `prezero"),
            "{text}"
        );
        assert!(text.contains("\nreserved, node 0, 1G: 1539 pages free"), "{text}");
        let resize = "\nsize, node 0, 1G: the kernel's pool has 18G, 16G of it added by the daemon; 0 to 64G; somebody made it smaller: it stays within 18G until pages are added, or a reload; smaller than wanted: memory\n";
        assert!(text.contains(resize), "{text}");
        assert!(text.contains("\nauto recycles fresh: no BTF\n"), "{text}");
    }

    #[test]
    fn a_loan_of_a_subordinate_that_has_grown_says_so() {
        let StatusReport(status) = report();
        let uid = 4_000_000_001;
        let loan = LoanStatus { uid: Uid(uid), grown_pages: Pages(375), ..status.loans[0].clone() };
        let text = text(&StatusReport(Status { loans: vec![loan], ..status }));
        assert!(text.contains("4000000001 of root") && text.contains(" 8+375 "), "{text}");
    }

    #[test]
    fn json_has_every_field_of_the_wire_and_the_users_names() {
        let json = serde_json::to_value(report()).unwrap();
        let wire = serde_json::to_value(report().0).unwrap();
        let names = |value: &serde_json::Value| {
            value.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(names(&json), names(&wire));
        assert_eq!(json["pools"][0]["ready_pages"], 8);
        assert_eq!(json["counters"]["lent_ready_bytes"], 8_u64 << 30);
        assert_eq!(
            (&json["loans"][0]["user"], &json["loans"][0]["pid"]),
            (&"root".into(), &77.into())
        );
    }
}
