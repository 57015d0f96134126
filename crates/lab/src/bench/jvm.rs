// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A JVM to the end of `-version` with a heap that it touches first, unchanged.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use units::{Bytes, PageSize, Pages};

use super::start::{Way, labels, skip_if_failed};
use super::{Bench, clock};
use crate::figure::{Part, Row};
use crate::rig::child::watch;
use crate::rig::{Plan, Pool, Scene};
use cli::exit::Failure;

pub(super) const PROGRAM: &str = "JVM";
const PAGE: PageSize = PageSize::MIB_2;
/// Twice the heap, its side tables and the code cache: each piece takes whole blocks.
const NEEDED: Bytes = Bytes(3 << 30);
/// The JVM maps its heap in one piece and the rest in small ones.
const PAGES_PER_BLOCK: Pages = Pages(64);
/// Left to the kernel: the code cache of 240 MiB is executable, which lent memory is not.
const FREE: Pages = Pages(192);
const OPTIONS: [&str; 4] = ["-XX:+AlwaysPreTouch", "-Xms1g", "-Xmx1g", "-version"];
const LARGE: &str = "-XX:+UseLargePages";
/// A start takes a second at most.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Adds a row for each way, or says why not.
pub(super) fn measure(bench: &mut Bench, part: &mut Part) -> Result<(), Failure> {
    let Some(java) = in_path("java") else {
        part.skip("a JVM: java is not installed: apt-get install default-jre-headless");
        return Ok(());
    };
    let shim = match cli::installed::shim() {
        Ok(shim) => Some(shim),
        Err(why) => {
            part.skip(format!("a JVM on lent memory: {why}"));
            None
        }
    };
    let pool = Pool::new(PAGE, NEEDED).in_blocks_of(PAGES_PER_BLOCK);
    let done =
        bench.with_huge(pool, |plan, scene| Ok(candidates(plan, scene, &java, shim.as_deref())))?;
    for (way, times) in skip_if_failed(part, "a JVM", done)?.into_iter().flatten() {
        let row = Row::new(labels(PROGRAM, way.page(PAGE), way.name()));
        part.rows.push(row.with("time", "s", &times));
    }
    Ok(())
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.exists())
}

fn candidates(
    plan: &Plan,
    scene: &mut Scene<'_>,
    java: &Path,
    shim: Option<&Path>,
) -> Result<Vec<(Way, Vec<f64>)>, Failure> {
    let mut candidates = vec![(Way::Ordinary, Vec::new()), (Way::Kernel, Vec::new())];
    candidates.extend(shim.map(|_| (Way::Lent, Vec::new())));
    clock::rounds(plan, candidates.len(), |index, counts| {
        let (way, times) = &mut candidates[index];
        let took = match (*way, shim) {
            (Way::Lent, Some(shim)) => lent(plan, scene, java, shim)?,
            // What the kernel has free is the program's own; the pool is empty.
            _ => start(plan, java, *way, &[])?,
        };
        if counts {
            times.push(took.as_secs_f64());
        }
        Ok(())
    })?;
    Ok(candidates)
}

fn lent(plan: &Plan, scene: &mut Scene<'_>, java: &Path, shim: &Path) -> Result<Duration, Failure> {
    scene.fill(plan)?;
    let socket = scene.socket().to_owned();
    client::Client::connect(&socket)?.release(None, None, Some(FREE))?;
    let log = scene.run_dir().join("jvm.log");
    match fs::remove_file(&log) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let variables = [("LD_PRELOAD", shim), ("PREZERO_SOCKET", &socket), ("PREZERO_SHIM_LOG", &log)];
    let took = start(plan, java, Way::Lent, &variables)?;
    // It would take the kernel's pages without a word.
    let said = fs::read_to_string(&log)?;
    let heap = format!("mmap of {} bytes", 1 << 30);
    if !said.lines().any(|line| line.contains(&heap) && line.contains("is served")) {
        return Err(Failure::failed(format!("its heap was not lent: {said}")));
    }
    scene.release(&plan.stop)?;
    Ok(took)
}

/// From exec to the end.
fn start(
    plan: &Plan,
    java: &Path,
    way: Way,
    variables: &[(&str, &Path)],
) -> Result<Duration, Failure> {
    let mut command = Command::new(java);
    if way != Way::Ordinary {
        command.arg(LARGE);
    }
    command.args(OPTIONS).envs(variables.iter().copied()).stdin(Stdio::null());
    let begin = Instant::now();
    let said = watch(&mut command, START_TIMEOUT, &plan.stop)?;
    let took = begin.elapsed();
    // Some go to the one stream, some to the other: it goes on with small pages.
    match [said.stdout, said.stderr].iter().find(|text| text.contains("warning")) {
        Some(warning) => Err(Failure::failed(format!("{}: {warning}", java.display()))),
        None => Ok(took),
    }
}
