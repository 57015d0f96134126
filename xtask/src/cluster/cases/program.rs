// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that people run, on its claim.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::cluster::{
    bed::{Bed, MIB},
    config, guest,
    kubectl::{text, wait_for},
    node,
};

/// As large as the larger kind of block.
const MEMORY: u64 = 2 * config::BLOCK_PAGES * 2;

/// A line of the console that begins so, without that. The serial line ends it with a return.
fn line<'a>(said: &'a str, begin: &str) -> Option<&'a str> {
    said.lines().find_map(|line| line.trim_end().strip_prefix(begin))
}

/// KiB of memory that the guest's kernel was given: `Memory: 90000K/130552K available (...)`.
fn memory_of(said: &str) -> Result<u64> {
    let words = line(said, "guest Memory: ").with_context(|| said.to_owned())?;
    let all = words.split_whitespace().next().and_then(|word| word.split_once('/'));
    let kib = all.and_then(|(_, all)| all.strip_suffix('K')?.parse().ok());
    kib.with_context(|| words.to_owned())
}

/// What the daemon has counted since it is up, and what of its pools is lent.
fn counted(bed: &Bed) -> Result<(u64, u64, u64)> {
    let status: Value = serde_json::from_str(&bed.prezero(&["status", "--json"])?)?;
    let counter = |name: &str| status["counters"][name].as_u64().with_context(|| name.to_owned());
    let pools = status["pools"].as_array().context("pools")?;
    let lent = pools.iter().filter_map(|pool| pool["lent_pages"].as_u64()).sum();
    Ok((counter("lent_ready_bytes")?, counter("lent_unbacked_bytes")?, lent))
}

/// The length of a mapping of the file in a program that is called so.
fn mapped(program: &str, path: &str) -> Result<u64> {
    let name = Path::new(path).strip_prefix("/")?.display().to_string();
    for (pid, _) in node::processes()?.into_iter().filter(|(_, name)| program.starts_with(name)) {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        // As the container sees it, which is not the daemon's path.
        let line =
            maps.lines().find(|line| line.ends_with("/dev/prezero/mem") || line.ends_with(&name));
        let Some(line) = line else { continue };
        ensure!(line.contains(" rw-s "), "not shared: {line}");
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let (from, to) = range.with_context(|| line.to_owned())?;
        return Ok(u64::from_str_radix(to, 16)? - u64::from_str_radix(from, 16)?);
    }
    anyhow::bail!("no {program} maps {path}")
}

/// QEMU's guest has the claim's file for memory: all of it, ready at the request, and unused after
/// it has powered off.
pub(super) fn qemu(bed: &mut Bed) -> Result<String> {
    let dir = guest::dir()?;
    bed.wait_for_ready_pages()?;
    let (hits, misses, _) = counted(bed)?;
    bed.kubectl.apply(&[guest::pod(&dir, "machine", MEMORY)])?;
    let pod = bed.runs("default", "machine")?;
    let said = wait_for("the guest is up", || {
        let said = bed.said(&pod, 0)?;
        Ok(line(&said, "guest mark ").is_some().then_some(said))
    })
    .with_context(|| bed.said(&pod, 0).unwrap_or_default())?;
    let (memory, kib) = (MEMORY * MIB, memory_of(&said)?);
    // Without what a PC keeps below 1 MiB, and what the firmware has.
    ensure!(kib <= memory >> 10 && kib + 2048 > memory >> 10, "the guest was given {kib} KiB");
    let loan = bed.loan()?;
    ensure!(loan["bytes"] == memory, "lent was {loan}");
    let (hit, miss, lent) = counted(bed)?;
    ensure!(
        (hit - hits, miss - misses) == (memory, 0),
        "{} ready, {} not",
        hit - hits,
        miss - misses
    );
    ensure!(lent * 2 * MIB == memory, "{lent} pages are lent");
    let path = text(&loan["path"]);
    let length = mapped("qemu-system-x86", path)?;
    ensure!(length == memory, "QEMU maps {length} bytes of it");
    // What the guest has made up lies in the file and nowhere else.
    let mark = line(&said, "guest mark ").unwrap_or_default();
    ensure!(mark.len() == 36, "no uuid: {mark:?}");
    let content = fs::read(path)?;
    ensure!(content.len() as u64 == memory, "the file has {} bytes", content.len());
    let found = content.windows(mark.len()).filter(|bytes| *bytes == mark.as_bytes()).count();
    ensure!(found > 0, "{mark} is nowhere in {path}");
    drop(content);
    guest::notify(&dir)?;
    let pod = wait_for("the guest has powered off", || {
        let pod = bed.kubectl.get(&["pod", "-n", "default", "machine"])?;
        Ok((text(&pod["status"]["phase"]) == "Succeeded").then_some(pod))
    })?;
    let said = bed.said(&pod, 0)?;
    ensure!(line(&said, "guest heard enough").is_some(), "{said}");
    // A pod that has ended holds its claim no longer, deleted or not.
    bed.is_clean()?;
    let (.., lent) = counted(bed)?;
    ensure!(lent == 0, "{lent} pages are lent");
    let next = bed.run("default", "next", MEMORY, ["use", "1"])?;
    super::holds(&bed.said(&next, 0)?, memory, 0)?;
    Ok(format!("the guest has {kib} KiB, and its mark is {found} times in the claim's file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_output_is_read_to_its_carriage_returns() {
        let said = "x\r\nguest Memory: 84632K/130552K available (16384K kernel code)\r\nguest mark a-b\r\n";
        assert_eq!(memory_of(said).unwrap(), 130_552);
        assert_eq!(line(said, "guest mark "), Some("a-b"));
        assert!(memory_of("guest Memory: none\n").is_err() && memory_of("").is_err());
    }
}
