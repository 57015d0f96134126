// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero status`: pools, loans and what happened so far.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde::ser::Error;
use serde::{Serialize, Serializer};
use units::Pages;
use wire::{Ailment, LoanStatus, PoolStatus, Status, UserStatus};

use crate::exit::{Exit, Outcome};
use crate::output::table::{self, Column};
use crate::output::{Form, Record, count, loans, pools, provider, text};
use crate::shared::Daemon;

/// Show the pools by state, the loans, and what happened since the daemon started
///
/// All amounts are sizes; --json counts in pages. READY memory is zero and waits for a borrower.
/// ZEROABLE memory could be zeroed now: dirty pages that the daemon owns, and free ones of the
/// kernel's pool that it may take. DRAINING memory was returned, but a process still has it open,
/// mapped or pinned, and a line below says which. A pool with only a ready target has BLOCKs of all
/// sizes; a table lists the sizes, as learnt from recent loans. Background zeroing starts below LOW
/// and stops at HIGH. FREE memory is left in the kernel's pool and unpromised. With provider kernel
/// it is the same memory: READY, ZEROING and ZEROABLE pages are free.
///
/// Of a loan, PID and COMMAND are the process that asked for it and UNIT its control group;
/// UNBACKED is the part that the borrower's faults fill. Users that may only borrow see these of
/// their own loans. A narrow terminal gets fewer columns, and a line names the missing ones.
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
        let Status { health, ailments, fresh_reason, counters, .. } = &self.0;
        let provider = provider::describe(&self.0);
        text::write(
            out,
            &format!(
                "prezero {version}, provider {provider}, pid {pid}, workers {workers}: {health}"
            ),
        )?;
        for Ailment { found, remedy, command, .. } in
            ailments.iter().filter(|a| a.cause.is_ailing())
        {
            text::write(out, &format!("{health}: {found}"))?;
            let command = command.as_ref().map(|command| format!(": {command}"));
            text::write(out, &format!("  -> {remedy}{}", command.unwrap_or_default()))?;
        }
        writeln!(out)?;
        pool_table(out, pools)?;
        pools::sizes(out, pools)?;
        for line in pools.iter().filter_map(pools::learnt) {
            writeln!(out)?;
            text::write(out, &line)?;
        }
        draining(out, pools)?;
        reserved(out, pools)?;
        pools::resize(out, pools)?;
        if let Some(reason) = fresh_reason {
            writeln!(out)?;
            text::write(out, &format!("auto recycles fresh: {reason}"))?;
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
        let since = [
            format!(
                "since start: {} ({} kept)",
                count(counters.loans, "loan"),
                counters.kept_loans
            ),
            format!("{} lent ready", counters.lent_ready_bytes),
            format!("{} not ready", counters.lent_unbacked_bytes),
            format!("{} refused", counters.refusals),
            format!("{} zeroed", counters.zeroed_bytes),
            format!("{} given back", counters.released_bytes),
            format!("{} lost", count(counters.lost_workers, "worker")),
        ];
        text::write(out, &since.join(", "))
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
        let [pinned, mapped, open] = [pinned, mapped, open].map(|pages| pages.bytes(page));
        let found = format!("{pinned} pinned, {mapped} mapped, {open} open");
        let node = pool.node;
        let line = format!(
            "draining, node {node}, {page}: {found}: `prezero holders` names the processes"
        );
        text::write(out, &line)?;
    }
    Ok(())
}

/// The kernel's pools with free pages that are promised to other programs.
fn reserved(out: &mut dyn Write, pools: &[PoolStatus]) -> io::Result<()> {
    let mut reported = BTreeSet::new();
    for pool in pools.iter().filter(|pool| pool.kernel_reserved_pages > Pages(0)) {
        if reported.insert((pool.node, pool.page_size.bytes())) {
            let (node, page) = (pool.node, pool.page_size);
            let reserved = pool.kernel_reserved_pages.bytes(page);
            writeln!(out)?;
            let what = "free in the kernel, and promised to programs that have mapped them";
            text::write(out, &format!("reserved, node {node}, {page}: {reserved} {what}"))?;
        }
    }
    Ok(())
}

fn pool_table(out: &mut dyn Write, pools: &[PoolStatus]) -> io::Result<()> {
    let columns = [
        Column::right("NODE"),
        Column::right("PAGE"),
        Column::right("BLOCK").drop(4),
        Column::left("RECYCLE").drop(2),
        Column::right("READY"),
        Column::right("ZEROING").drop(5),
        Column::right("ZEROABLE").drop(6),
        Column::right("LENT"),
        Column::right("KEPT").drop(3),
        Column::right("DRAINING").drop(7),
        Column::right("LOW").drop(8),
        Column::right("HIGH").drop(9),
        Column::right("MAX").drop(1),
        Column::right("FREE"),
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
            let size = |pages: Pages| pages.bytes(pool.page_size).to_string();
            let mut row = vec![
                pool.node.to_string(),
                pool.page_size.to_string(),
                pools::block(pool),
                pool.recycle.to_string(),
            ];
            row.extend(counts.into_iter().map(size));
            row.push(loans::or_dash(pool.max_pages.map(size)));
            row.push(size(pool.kernel_free_pages));
            row
        })
        .collect();
    table::write(out, &columns, &rows)
}

fn loan_table(out: &mut dyn Write, loans: &[LoanStatus]) -> io::Result<()> {
    let columns = [
        Column::right("LEASE"),
        Column::left("USER").cut(10),
        Column::right("PID").drop(4),
        Column::left("COMMAND").cut(7),
        Column::left("OWNER").cut(8).drop(5),
        Column::right("NODE").drop(2),
        Column::right("AGE").drop(3),
        Column::right("PAGE").drop(1),
        Column::right("SIZE"),
        Column::right("UNBACKED"),
        Column::left("UNIT").cut(12).drop(6),
    ];
    let row = |loan: &LoanStatus| {
        let nodes: Vec<_> = loan.nodes.iter().map(ToString::to_string).collect();
        let size = |pages: Pages| pages.bytes(loan.page_size).to_string();
        vec![
            loan.lease.0.to_string(),
            loans::borrower(loan),
            loans::or_dash(loan.pid),
            loans::or_dash(loan.command.as_ref()),
            loans::or_dash(loan.owner.as_ref()),
            nodes.join(","),
            loans::age(loan.age),
            loan.page_size.to_string(),
            // Memory that it has taken itself, beyond the loan, is added.
            match loan.grown_pages {
                Pages(0) => size(loan.pages),
                grown => format!("{}+{}", size(loan.pages), size(grown)),
            },
            size(loan.unbacked_pages),
            loans::unit(loan.cgroup.as_deref()),
        ]
    };
    table::write(out, &columns, &loans.iter().map(row).collect::<Vec<_>>())
}

fn user_table(out: &mut dyn Write, users: &[UserStatus]) -> io::Result<()> {
    let columns = [
        Column::left("USER").cut(12),
        Column::right("LOANS"),
        Column::right("HELD"),
        Column::right("QUOTA"),
    ];
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
    use crate::output::{text, text_within};
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
            health: wire::Health::Healthy,
            ailments: Vec::new(),
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
            health: wire::Health::Paused,
            ailments: vec![Ailment {
                cause: wire::AilmentCause::Pressure,
                found: "zeroing waits for CPU pressure to fall below 40 %".into(),
                remedy: "it goes on by itself".into(),
                command: Some("sudo prezero zero".into()),
            }],
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
prezero 0.1.0, provider stock, pid 7, workers 1: paused
paused: zeroing waits for CPU pressure to fall below 40 %
  -> it goes on by itself: sudo prezero zero

NODE  PAGE  BLOCK  RECYCLE  READY  ZEROING  ZEROABLE  LENT  KEPT  DRAINING  LOW  HIGH  MAX  FREE
   0    1G     8G  fresh       8G        0       16G    8G     0         0   8G   16G    -    2G

LEASE  USER  PID  COMMAND  OWNER  NODE  AGE  PAGE  SIZE  UNBACKED  UNIT
    3  root   77  qemu     -         0   1m    1G    8G        1G  vm.scope

USER  LOANS  HELD  QUOTA
root      1    8G    16G

since start: 1 loan (0 kept), 8G lent ready, 0 not ready, 0 refused, 0 zeroed, 0 given back, 0 workers lost
"
        );
    }

    // Promise P323.
    #[test]
    fn every_line_fits_80_columns_and_missing_columns_are_named() {
        let StatusReport(mut status) = report();
        let large = |pages: u64| Pages(pages << 10);
        status.pools[0].zeroable_pages = large(1);
        status.pools[0].draining_pages = large(2);
        status.pools[0].kept_pages = Pages(777);
        status.pools[0].max_pages = Some(large(3));
        status.fresh_reason = Some("the kernel has no BTF, so that no program can see pins".into());
        status.loans[0].lease = LeaseId(1_618_412_445_123);
        status.loans[0].command = Some("qemu-system-x86".into());
        status.loans[0].cgroup = Some("/machine.slice/machine-qemu-1-databases.scope".into());
        status.loans[0].owner = Some("x".repeat(64));
        let report = StatusReport(status);
        for columns in [60, 80, 100] {
            let text = text_within(&report, Some(columns));
            let wide = text.lines().find(|line| line.chars().count() > columns);
            assert_eq!(wide, None, "{columns}: {text}");
            assert!(text.contains("1618412445123"), "{text}");
        }
        let text = text_within(&report, Some(80));
        assert!(text.contains("(no room for MAX, RECYCLE"), "{text}");
        assert!(text.contains("machine-qem"), "{text}");
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
            text.contains("\ndraining, node 0, 1G: 3G pinned, 1G mapped, 2G open: `prezero"),
            "{text}"
        );
        assert!(text.contains("\nreserved, node 0, 1G: 1.5T free"), "{text}");
        let resize = "\nsize, node 0, 1G: the kernel's pool has 18G, 16G of it added by the daemon; 0 to 64G; another program made it smaller: it stays within 18G until pages are added, or a reload; smaller than wanted: memory\n";
        assert!(text.contains(resize), "{text}");
        assert!(text.contains("\nauto recycles fresh: no BTF\n"), "{text}");
    }

    #[test]
    fn a_loan_of_a_subordinate_that_has_grown_says_so() {
        let StatusReport(status) = report();
        let uid = 4_000_000_001;
        let loan = LoanStatus { uid: Uid(uid), grown_pages: Pages(375), ..status.loans[0].clone() };
        let text = text(&StatusReport(Status { loans: vec![loan], ..status }));
        assert!(text.contains("4000000001 of root") && text.contains(" 8G+375G "), "{text}");
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
