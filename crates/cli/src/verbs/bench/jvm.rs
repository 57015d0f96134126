// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A JVM to the end of `-version` with a heap that it touches first, unchanged, under the shim.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use model::units::{Bytes, PageSize, Pages};

use super::Bench;
use super::figure::{Part, Row};
use crate::exit::Failure;
use crate::stage::Pool;

pub(super) const PROGRAM: &str = "JVM";
const PAGE: PageSize = PageSize::MIB_2;
/// Twice the heap, its side tables and the code cache: each piece takes whole blocks.
const NEEDED: Bytes = Bytes(3 << 30);
/// The JVM maps its heap in one piece and the rest in small ones.
const PAGES_PER_BLOCK: Pages = Pages(64);
/// Left to the kernel: the code cache of 240 MiB is executable, which lent memory is not.
const FREE: Pages = Pages(192);
const OPTIONS: [&str; 5] =
    ["-XX:+UseLargePages", "-XX:+AlwaysPreTouch", "-Xms1g", "-Xmx1g", "-version"];

/// Adds two rows, or says why not.
pub(super) fn measure(bench: &mut Bench, part: &mut Part) -> Result<(), Failure> {
    let Some(java) = in_path("java") else {
        part.skip("a JVM: java is not installed: apt-get install default-jre-headless");
        return Ok(());
    };
    let shim = match crate::verbs::run::find() {
        Ok(shim) => shim,
        Err(why) => {
            part.skip(format!("a JVM: {why}"));
            return Ok(());
        }
    };
    let done =
        bench.with_huge(Pool::of(PAGE, NEEDED).in_blocks_of(PAGES_PER_BLOCK), |plan, scene| {
            let (mut cold, mut lent) = (Vec::new(), Vec::new());
            for round in 0..=plan.rounds {
                // What the kernel has free is the program's own; the pool is empty.
                let took = start(&java, None)?;
                scene.fill(plan)?;
                client::Client::connect(scene.socket())?.give_back(None, None, Some(FREE))?;
                let with = start(&java, Some((&shim, scene.socket())))?;
                scene.give_back(&plan.stop)?;
                plan.go_on()?;
                if round > 0 {
                    cold.push(took.as_secs_f64());
                    lent.push(with.as_secs_f64());
                }
            }
            Ok((cold, lent))
        })?;
    match done {
        Ok((cold, lent)) => {
            for (way, times) in [("a heap of its own", &cold), ("lent by prezero", &lent)] {
                let labels = super::start::labels(PROGRAM, PAGE, way);
                part.rows.push(Row::new(labels).with("time", "s", times));
            }
        }
        Err(why) => part.skip(format!("a JVM: {why}")),
    }
    Ok(())
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.exists())
}

/// From exec to the end.
fn start(java: &Path, lent: Option<(&PathBuf, &Path)>) -> Result<Duration, Failure> {
    let mut command = Command::new(java);
    command.args(OPTIONS).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    if let Some((shim, socket)) = lent {
        command.env("LD_PRELOAD", shim).env("PREZERO_SOCKET", socket);
    }
    let begin = Instant::now();
    let output = command.output()?;
    let took = begin.elapsed();
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || said.contains("warning") {
        return Err(Failure::failed(format!("{}: {}: {said}", java.display(), output.status)));
    }
    Ok(took)
}
