// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Zeroed memory in every way that there is: the workload of `perf bench mem mmap`, and prezero's.

use crate::prefault::{Anonymous, HugeFile};
use linux::Roots;
use units::{Bytes, PageSize};

use super::Bench;
use super::clear;
use super::clock::{self, CPU, Rates};
use super::evidence::Populating;
use crate::figure::{Chart, Part, Shape};
use crate::rig::{Plan, Pool, Scene};
use cli::exit::Failure;

/// One way to get memory that is zero and mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Touch every page.
    Demand,
    /// `MAP_POPULATE`.
    Populate,
    /// `MADV_POPULATE_WRITE` by this many threads, a part each.
    PopulateWrite(usize),
    /// `fallocate` of an unmapped file.
    Fallocate,
    /// prezero: clearing pages that are mapped already, by this many threads.
    InPlace(usize),
    /// prezero: borrow, map, touch every page.
    Lend,
}

impl Way {
    fn name(self) -> String {
        match self {
            Self::Demand => "demand fault".into(),
            Self::Populate => "MAP_POPULATE".into(),
            Self::PopulateWrite(n) => format!("MADV_POPULATE_WRITE, {}", threads(n)),
            Self::Fallocate => "fallocate".into(),
            Self::InPlace(n) => format!("prezero in place, {}", threads(n)),
            Self::Lend => "prezero lend + map + touch".into(),
        }
    }

    fn threads(self) -> usize {
        match self {
            Self::PopulateWrite(n) | Self::InPlace(n) => n,
            _ => 1,
        }
    }
}

fn threads(n: usize) -> String {
    if n == 1 { "1 thread".into() } else { format!("{n} threads") }
}

pub(super) fn measure(bench: &mut Bench) -> Result<Part, Failure> {
    let mut part = Part::new(
        "populate",
        "What does zeroed memory cost without prezero, and with it?",
        format!(
            "{} each, as `perf bench mem mmap` does it: mmap and touch are timed, munmap is not. In place: prezero's \
             method on pages that are mapped already. Lending: from the call to the last touched page, the zeroing was \
             done before. GB/s by the wall and by the CPU clock of the threads at work (the daemon's not counted).",
            bench.size
        ),
    );
    let bytes = bench.size;
    let always = thp_always(&bench.roots);
    for (kind, transparent) in [("4K", false), ("4K + THP", true)] {
        let mut candidates: Vec<_> = ways(bench.plan.threads, false)
            .into_iter()
            // Advice comes after mmap: the flag gets what the system's default is.
            .filter(|way| *way != Way::Populate || transparent == always)
            .map(|way| (way, Rates::default()))
            .collect();
        clock::rounds(&bench.plan, candidates.len(), |index, counts| {
            let (way, rates) = &mut candidates[index];
            let took = plain(*way, bytes, transparent)?;
            if counts {
                rates.add(bytes.0, way.threads(), took);
            }
            Ok(())
        })?;
        add(&mut part, kind, &candidates);
    }
    let clearer = bench.choice.setting.clearer().map_err(Failure::failed)?;
    // The largest first: once memory is split, large pages may not come back.
    for (kind, page) in [("1G", PageSize::GIB_1), ("2M", PageSize::MIB_2)] {
        let done = bench
            .with_huge(Pool::new(page, bytes), |plan, scene| huge(plan, scene, page, &clearer))?;
        let candidates = match done {
            Ok(candidates) => candidates,
            Err(why) => {
                part.skip(format!("{kind} pages: {why}"));
                *bench.evidence.populate(page) = Err(why);
                continue;
            }
        };
        let rate = |wanted: Way| {
            let found = candidates.iter().find(|(way, _)| *way == wanted);
            found.and_then(|(_, rates)| Some(rates.row(Vec::new()).value(CPU)?.stats))
        };
        *bench.evidence.populate(page) = rate(Way::Populate)
            .zip(rate(Way::InPlace(1)))
            .map(|(kernel, in_place)| Populating { kernel, in_place })
            .ok_or_else(|| "there were no rounds".to_owned());
        add(&mut part, kind, &candidates);
    }
    for (kind, title) in
        [("1G", "1 GiB pages"), ("2M", "2 MiB pages"), ("4K + THP", "Transparent"), ("4K", "4 KiB")]
    {
        // Lending takes no time that a bar on the same scale could show.
        if part.rows.iter().any(|row| row.label("page") == kind) {
            part.charts.push(Chart {
                title,
                shape: Shape::Bars,
                what: "zeroing",
                x: &["way"],
                series: &[],
                only: vec![("page", kind.to_owned())],
            });
        }
    }
    Ok(part)
}

fn add(part: &mut Part, kind: &str, candidates: &[(Way, Rates)]) {
    for (way, rates) in candidates {
        let labels = vec![("page", kind.to_owned()), ("way", way.name())];
        let mut row = rates.row(labels);
        if *way != Way::Lend
            && let Some(cpu) = row.value(CPU).cloned()
        {
            row.values.push(crate::figure::Value { what: "zeroing", ..cpu });
        }
        part.rows.push(row);
    }
}

fn ways(threads: usize, huge: bool) -> Vec<Way> {
    let mut ways = vec![Way::Demand, Way::Populate, Way::PopulateWrite(1)];
    ways.extend((threads > 1).then_some(Way::PopulateWrite(threads)));
    if huge {
        ways.extend([Way::Fallocate, Way::InPlace(1)]);
        ways.extend((threads > 1).then_some(Way::InPlace(threads)));
        ways.push(Way::Lend);
    }
    ways
}

/// Whether every mapping gets transparent huge pages, advised or not.
fn thp_always(roots: &Roots) -> bool {
    let path = roots.sys.join("kernel/mm/transparent_hugepage/enabled");
    std::fs::read_to_string(path).is_ok_and(|text| text.contains("[always]"))
}

/// The kernel's ways with plain pages.
fn plain(way: Way, bytes: Bytes, transparent: bool) -> Result<clock::Took, Failure> {
    let map = || Anonymous::map_transparent(bytes, transparent);
    let (memory, took) = clock::time(way.threads(), || {
        let mut memory = map()?;
        match way {
            Way::Demand => touch(memory.as_mut_slice(), PageSize::KIB_4),
            Way::Populate => memory = Anonymous::map_populated(bytes, PageSize::KIB_4)?,
            _ => populate(&memory, bytes, PageSize::KIB_4, way.threads())?,
        }
        Ok::<_, Failure>(memory)
    });
    drop(memory?);
    Ok(took)
}

fn huge(
    plan: &Plan,
    scene: &mut Scene<'_>,
    page: PageSize,
    clearer: &::clear::Clearer,
) -> Result<Vec<(Way, Rates)>, Failure> {
    let bytes = scene.bytes();
    let mut candidates: Vec<_> =
        ways(plan.threads, true).into_iter().map(|way| (way, Rates::default())).collect();
    clock::rounds(plan, candidates.len(), |index, counts| {
        let (way, rates) = &mut candidates[index];
        let way = *way;
        let took = match way {
            Way::Demand | Way::Populate | Way::PopulateWrite(_) => {
                let (memory, took) = clock::time(way.threads(), || {
                    if way == Way::Populate {
                        return Ok(Anonymous::map_populated(bytes, page)?);
                    }
                    let mut memory = Anonymous::map(bytes, page)?;
                    match way {
                        Way::Demand => touch(memory.as_mut_slice(), page),
                        _ => populate(&memory, bytes, page, way.threads())?,
                    }
                    Ok::<_, Failure>(memory)
                });
                drop(memory?);
                took
            }
            Way::Fallocate => {
                let file = HugeFile::new(page)?;
                let (done, took) = clock::time(1, || file.fallocate(bytes));
                done?;
                took
            }
            Way::InPlace(threads) => {
                let mut memory = Anonymous::map_populated(bytes, page)?;
                let memory = memory.as_mut_slice();
                let batch = memory.len().div_ceil(threads).min(page_len(page));
                let (done, took) =
                    clock::time(threads, || clear::clear(clearer, memory, batch, threads));
                done?;
                took
            }
            Way::Lend => {
                scene.fill(plan)?;
                let (memory, took) = clock::time(1, || {
                    let mut memory = scene.lend(false)?.map()?;
                    touch(&mut memory, page);
                    Ok::<_, Failure>(memory)
                });
                drop(memory?);
                scene.release(&plan.stop)?;
                took
            }
        };
        if counts {
            rates.add(bytes.0, way.threads(), took);
        }
        Ok(())
    })?;
    Ok(candidates)
}

fn page_len(page: PageSize) -> usize {
    usize::try_from(page.bytes()).unwrap_or(usize::MAX)
}

fn touch(memory: &mut [u8], page: PageSize) {
    for byte in memory.iter_mut().step_by(page_len(page)) {
        *byte = 1;
    }
}

/// `MADV_POPULATE_WRITE`, each thread a run of whole pages.
fn populate(
    memory: &Anonymous,
    bytes: Bytes,
    page: PageSize,
    threads: usize,
) -> Result<(), Failure> {
    let len = usize::try_from(bytes.0).unwrap_or(usize::MAX);
    // At least 2 MiB, so that no two threads meet in one transparent huge page.
    let align = page_len(page).max(page_len(PageSize::MIB_2));
    let share = len.div_ceil(threads).next_multiple_of(align);
    if threads == 1 {
        return Ok(memory.populate(0..len)?);
    }
    std::thread::scope(|scope| {
        let parts = (0..len).step_by(share).map(|start| start..(start + share).min(len));
        let team: Vec<_> = parts.map(|part| scope.spawn(move || memory.populate(part))).collect();
        team.into_iter()
            .try_for_each(|one| one.join().expect("populating does not panic"))
            .map_err(Failure::from)
    })
}
