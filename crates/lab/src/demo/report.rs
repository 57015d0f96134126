// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The measurements, their ratios, and the one table.

use std::io::{self, Write};
use std::time::Duration;

use cli::machine::Machine;
use serde::Serialize;
use units::{Bytes, PageSize};

use super::boots::Boots;
use super::maps::Maps;
use crate::rig::starts::Starts;
use cli::output::table::{self, Align};
use cli::output::{Record, bytes_per_second, count, rate, seconds};

fn text(s: f64) -> String {
    seconds(Duration::from_secs_f64(s))
}

/// The ratios that say whether prezero keeps its promise. `None` where a part was left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Ratios {
    /// QEMU's start with lent memory, over that without huge pages: 1 is as fast.
    qemu_lent_over_plain: Option<f64>,
    /// QEMU preallocating with all threads, over its start with lent memory.
    qemu_prealloc_over_lent: Option<f64>,
    /// `MAP_POPULATE` over lend, map and touch: 1 GiB pages.
    populate_over_lend_1g: Option<f64>,
    /// The same with 2 MiB pages.
    populate_over_lend_2m: Option<f64>,
    /// The rate of filling the pool over that of QEMU's preallocation, both with all threads.
    /// QEMU's start is taken off its time.
    fill_over_qemu_prealloc: Option<f64>,
}

/// Everything that the demo found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct DemoReport {
    pub(super) machine: Machine,
    provider: &'static str,
    threads: usize,
    bytes: u64,
    pub(super) starts: Option<Starts>,
    pub(super) boots: Option<Boots>,
    pub(super) maps: Vec<Maps>,
    ratios: Ratios,
}

impl DemoReport {
    pub(super) fn new(
        machine: Machine,
        provider: &'static str,
        threads: usize,
        size: Bytes,
    ) -> Self {
        Self {
            machine,
            provider,
            threads,
            bytes: size.0,
            starts: None,
            boots: None,
            maps: Vec::new(),
            ratios: Ratios::default(),
        }
    }

    /// Works the ratios out.
    pub(super) fn conclude(&mut self) {
        let over = |a: f64, b: f64| (b > 0.0).then_some(a / b);
        let starts = self.starts.as_ref();
        let populate_over_lend = |page: PageSize| {
            let maps = self.maps.iter().find(|maps| maps.page_bytes == page.bytes())?;
            over(maps.populate.median(), maps.lend.median())
        };
        self.ratios = Ratios {
            qemu_lent_over_plain: starts.and_then(|s| over(s.lent.median(), s.plain.median())),
            qemu_prealloc_over_lent: starts
                .and_then(|s| over(s.prealloc_all.median(), s.lent.median())),
            populate_over_lend_1g: populate_over_lend(PageSize::GIB_1),
            populate_over_lend_2m: populate_over_lend(PageSize::MIB_2),
            fill_over_qemu_prealloc: starts
                .and_then(|s| over(s.prealloc_all.median() - s.plain.median(), s.fill.median())),
        };
    }

    /// What it comes to, in one sentence: a guest's start, or memory alone.
    fn lead(&self) -> Option<String> {
        let maps = self.maps.first()?;
        let (size, lent) = (Bytes(maps.bytes), text(maps.lend.median()));
        let starts = self.starts.as_ref();
        let zeroing = starts.map(|s| s.prealloc_all.median() - s.plain.median());
        // Pages of 4 KiB cost a fault each when they are touched, lent or not.
        let (lend, populate) = (maps.lend.median(), maps.populate.median());
        match (starts, zeroing) {
            (_, Some(seconds)) if lend < seconds => Some(format!(
                "A guest of {size} that preallocates its memory spends {} in zeroing at its start; \
                 with prezero it has it in {lent}.",
                text(seconds)
            )),
            (Some(starts), _) if starts.lent.median() < starts.prealloc_all.median() => {
                Some(format!(
                    "A guest of {size} that preallocates its memory starts in {}; with memory that \
                     prezero lends in {}.",
                    starts.prealloc_all.text(),
                    starts.lent.text()
                ))
            }
            _ if lend < populate => Some(format!(
                "{size} of memory take the kernel {} to clear; with prezero they are there in {lent}.",
                maps.populate.text()
            )),
            _ => None,
        }
    }

    fn heading(&self, out: &mut dyn Write) -> io::Result<()> {
        let Machine { cpu, cpus, kernel, page_bytes, .. } = &self.machine;
        let sizes: Vec<_> = page_bytes.iter().map(|&bytes| Bytes(bytes).to_string()).collect();
        let sizes = if sizes.is_empty() { "none".into() } else { sizes.join(" and ") };
        let kind = if self.provider == "plain" { " of plain memory" } else { "" };
        writeln!(
            out,
            "{cpu}, {cpus} cpus, Linux {kernel}, huge pages: {sizes}; {}{kind}",
            Bytes(self.bytes)
        )
    }
}

fn ratio(a: f64, b: f64) -> String {
    match a / b {
        ratio if !ratio.is_finite() => "-".into(),
        ratio if ratio >= 100.0 => format!("{ratio:.0} x"),
        ratio if ratio >= 10.0 => format!("{ratio:.1} x"),
        ratio => format!("{ratio:.2} x"),
    }
}

impl Record for DemoReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        use Align::{Left, Right};
        if let Some(lead) = self.lead() {
            writeln!(out, "{lead}\n")?;
        }
        self.heading(out)?;
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut row = |what: String, time: String, spread: String, ratio: String| {
            rows.push(vec![what, time, spread, ratio]);
        };
        let title = |row: &mut dyn FnMut(String, String, String, String), what: String| {
            row(what, String::new(), String::new(), String::new());
        };
        if let Some(starts) = &self.starts {
            let Starts { qemu, accel, page_bytes, bytes, threads, .. } = starts;
            let (size, page) = (Bytes(*bytes), Bytes(*page_bytes));
            title(&mut row, format!("QEMU {qemu} ({accel}) with {size}, to its QMP greeting"));
            let lent = starts.lent.median();
            for (way, series) in [
                ("no huge pages, nothing preallocated".to_owned(), &starts.plain),
                (format!("{page} pages, preallocated by QEMU, 1 thread"), &starts.prealloc_1),
                (
                    format!(
                        "{page} pages, preallocated by QEMU, {}",
                        count(*threads as u64, "thread")
                    ),
                    &starts.prealloc_all,
                ),
                (format!("{page} pages, lent by prezero"), &starts.lent),
            ] {
                row(
                    format!("  {way}"),
                    series.text(),
                    series.spread(),
                    ratio(series.median(), lent),
                );
            }
        }
        if let Some(boots) = &self.boots {
            let kernel = boots.kernel.file_name().unwrap_or_default().to_string_lossy();
            title(&mut row, format!("{kernel} in that guest, to its first userspace line"));
            for (way, s) in [
                ("no huge pages", boots.plain_seconds),
                ("preallocated by QEMU, all threads", boots.prealloc_seconds),
                ("lent by prezero", boots.lent_seconds),
            ] {
                row(format!("  {way}"), text(s), String::new(), ratio(s, boots.lent_seconds));
            }
        }
        for maps in &self.maps {
            let (size, page) = (Bytes(maps.bytes), Bytes(maps.page_bytes));
            title(&mut row, format!("{size} of {page} pages, without a program"));
            let lend = maps.lend.median();
            row(
                "  kernel, MAP_POPULATE".into(),
                maps.populate.text(),
                maps.populate.spread(),
                ratio(maps.populate.median(), lend),
            );
            row(
                "  lend, map, touch every page".into(),
                maps.lend.text(),
                maps.lend.spread(),
                ratio(lend, lend),
            );
        }
        let columns =
            [("", Left), ("MEDIAN", Right), ("FROM ... TO", Right), ("TIMES LENT", Right)];
        table::write(out, &columns, &rows)?;
        for maps in self.maps.iter().filter(|maps| maps.lacks_shared_tables()) {
            writeln!(
                out,
                "{} pages: {} page faults while touching, so the mapping shared no page tables \
                 (blocks below 1 GiB, or tables that were not made yet)",
                Bytes(maps.page_bytes),
                maps.lend_faults
            )?;
        }
        if let Some(starts) = &self.starts {
            let of = |s: f64| {
                rate(bytes_per_second(starts.bytes, Duration::from_secs_f64(s.max(f64::EPSILON))))
            };
            writeln!(
                out,
                "filling the pool beforehand: {} ({}); QEMU's preallocation: {}; both with {}",
                starts.fill.text(),
                of(starts.fill.median()),
                of(starts.prealloc_all.median() - starts.plain.median()),
                count(self.threads as u64, "thread"),
            )?;
        }
        if let Some(boots) = &self.boots {
            writeln!(out, "the lent guest says: {}", boots.guest_says)?;
            if self.starts.as_ref().is_some_and(|starts| starts.accel == "tcg") {
                writeln!(
                    out,
                    "the guests were emulated (no KVM is usable here): their own work takes so long \
                     that the boot hides most of what their memory saves"
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::Series;

    fn series(ms: &[u64]) -> Series {
        let mut series = Series::default();
        ms.iter().for_each(|&ms| series.add(Duration::from_millis(ms)));
        series
    }

    fn report() -> DemoReport {
        let machine = Machine {
            vendor: "V".into(),
            cpu: "CPU".into(),
            cpus: 2,
            is_virtual: false,
            kernel: "6.18".into(),
            governor: None,
            total_bytes: 1,
            available_bytes: 1,
            page_bytes: vec![2 << 20, 1 << 30],
            nodes: vec![0],
        };
        let mut report = DemoReport::new(machine, "stock", 2, Bytes(8 << 30));
        report.starts = Some(Starts {
            qemu: "7.2".into(),
            accel: "tcg".into(),
            page_bytes: 1 << 30,
            bytes: 8 << 30,
            threads: 2,
            plain: series(&[30, 20, 10]),
            prealloc_1: series(&[440]),
            prealloc_all: series(&[270, 260, 900]),
            lent: series(&[25]),
            fill: series(&[200]),
        });
        report.maps.push(Maps {
            page_bytes: 2 << 20,
            bytes: 8 << 30,
            populate: series(&[600]),
            lend: series(&[3]),
            lend_faults: 4096,
        });
        report.conclude();
        report
    }

    #[test]
    fn the_ratios_are_those_of_the_medians_and_json_ends_with_them() {
        let report = report();
        assert_eq!(
            report.ratios,
            Ratios {
                qemu_lent_over_plain: Some(0.025 / 0.02),
                qemu_prealloc_over_lent: Some(0.27 / 0.025),
                populate_over_lend_1g: None,
                populate_over_lend_2m: Some(0.6 / 0.003),
                fill_over_qemu_prealloc: Some((0.27 - 0.02) / 0.2),
            }
        );
        let json = serde_json::to_string(&report).unwrap();
        let (before, ratios) = json.split_once("\"ratios\":").unwrap();
        assert!(before.contains("\"median_seconds\":0.02"), "{before}");
        assert_eq!(ratios.matches('{').count(), 1, "nothing comes after them: {ratios}");
        assert!(ratios.contains("\"populate_over_lend_1g\":null"), "{ratios}");
    }

    #[test]
    fn first_sentence_claims_what_was_measured() {
        let mut report = report();
        let first = |report: &DemoReport| report.lead().unwrap_or_default();
        assert!(first(&report).contains("spends 250 ms"), "{}", first(&report));
        report.maps[0].lend = series(&[491]);
        assert!(first(&report).contains("starts in 270 ms"), "{}", first(&report));
        assert!(first(&report).ends_with("lends in 25.0 ms."), "{}", first(&report));
        report.starts = None;
        assert!(first(&report).contains("the kernel 600 ms"), "{}", first(&report));
        report.maps[0].lend = series(&[700]);
        assert_eq!(first(&report), "");
        assert!(report.maps[0].lacks_shared_tables(), "4096 faults of 4096 pages");
        report.maps[0].page_bytes = 4096;
        assert!(!report.maps[0].lacks_shared_tables(), "small pages share none");
    }

    #[test]
    fn the_table_for_people() {
        let mut out = Vec::new();
        report().human(&mut out).expect("a vector takes everything");
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "\
A guest of 8G that preallocates its memory spends 250 ms in zeroing at its start; with prezero it has it in 3.00 ms.

CPU, 2 cpus, Linux 6.18, huge pages: 2M and 1G; 8G
                                              MEDIAN         FROM ... TO  TIMES LENT
QEMU 7.2 (tcg) with 8G, to its QMP greeting
  no huge pages, nothing preallocated        20.0 ms  10.0 ms to 30.0 ms      0.80 x
  1G pages, preallocated by QEMU, 1 thread    440 ms                          17.6 x
  1G pages, preallocated by QEMU, 2 threads   270 ms    260 ms to 900 ms      10.8 x
  1G pages, lent by prezero                  25.0 ms                          1.00 x
8G of 2M pages, without a program
  kernel, MAP_POPULATE                        600 ms                           200 x
  lend, map, touch every page                3.00 ms                          1.00 x
2M pages: 4096 page faults while touching, so the mapping shared no page tables (blocks below 1 GiB, or tables that were not made yet)
filling the pool beforehand: 200 ms (42.9 GB/s); QEMU's preallocation: 34.4 GB/s; both with 2 threads
"
        );
    }
}
