// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pages that count as ready, by claims of one file and of several.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{found, holds};
use crate::cluster::{
    bed::{Bed, MIB, pod},
    config,
    kubectl::{text, wait_for},
};

pub(super) fn larger(bed: &mut Bed) -> Result<String> {
    let block = config::BLOCK_PAGES * 2;
    let pod = bed.run("default", "larger", 3 * block, ["use", "1"])?;
    let said = bed.said(&pod, 0)?;
    holds(&said, 3 * block * MIB, 0)?;
    let claims = bed.kubectl.list(&["resourceclaims", "-n", "default"])?;
    let device = text(&claims[0]["status"]["allocation"]["devices"]["results"][0]["device"]);
    ensure!(device == "node0-2048k-rest", "no block holds it, and it was counted on {device}");
    let (bytes, _) = found(&said)?;
    Ok(format!("one file of {} MiB, of blocks of {block}", bytes / MIB))
}

/// A claim larger than a block is nowhere while all is ready, and `rest` keeps room for it.
pub(super) fn rest(bed: &mut Bed) -> Result<String> {
    let all = format!("ready_high={}", config::PAGES / 2);
    let low = all.replace("high", "low");
    for block in [config::BLOCK_PAGES, 2 * config::BLOCK_PAGES] {
        let block = block.to_string();
        bed.prezero(&["set", "--pages-per-block", &block, &low, &all])?;
    }
    let kept = kept_out(bed);
    bed.install(&[])?;
    bed.driver_is_ready()?;
    bed.kubectl.run(&["delete", "pod", "-n", "default", "--ignore-not-found", "larger"])?;
    bed.is_clean()?;
    as_it_was(bed)?;
    kept
}

/// MiB of the device for everything that is not ready.
fn rest_of(bed: &Bed) -> Result<u64> {
    let devices = bed.devices()?;
    let rest = devices.iter().find(|device| device["attributes"]["state"]["string"] == "rest");
    let Some(rest) = rest else { return Ok(0) };
    let memory = text(&rest["capacity"]["memory"]["value"]).to_owned();
    memory.strip_suffix("Mi").context(memory.clone())?.parse().context("a quantity")
}

fn kept_out(bed: &Bed) -> Result<String> {
    wait_for("all is published as ready", || Ok((rest_of(bed)? == 0).then_some(())))?;
    bed.ask("default", "larger", 192, ["use", "1"])?;
    let event = bed.event("default", "larger", "cannot allocate all claims")?;
    bed.install(&["rest=192Mi"])?;
    bed.driver_is_ready()?;
    let pod = bed.runs("default", "larger")?;
    holds(&bed.said(&pod, 0)?, 192 * MIB, 0)?;
    bed.delete("default", "larger")?;
    bed.is_clean()?;
    // Whole blocks are published as ready, so that up to one of them more is kept.
    let all = config::PAGES * 2;
    wait_for("all is ready, and as much is not published so", || {
        let (ready, rest) = (ready_of(bed)? / MIB, rest_of(bed)?);
        Ok((ready == all && (192..192 + 4 * config::BLOCK_PAGES).contains(&rest)).then_some(()))
    })?;
    Ok(event)
}

/// What the daemon has ready.
fn ready_of(bed: &Bed) -> Result<u64> {
    let status: Value = serde_json::from_str(&bed.prezero(&["status", "--json"])?)?;
    let pools = status["pools"].as_array().context("pools")?;
    Ok(pools.iter().filter_map(|pool| pool["ready_pages"].as_u64()).sum::<u64>() * 2 * MIB)
}

/// Pools that were told otherwise have as much ready as they are configured to.
fn as_it_was(bed: &Bed) -> Result<()> {
    let high = format!("ready_high={}", config::PAGES / 4);
    let low = high.replace("high", "low");
    for block in [config::BLOCK_PAGES, 2 * config::BLOCK_PAGES] {
        bed.prezero(&["set", "--pages-per-block", &block.to_string(), &low, &high])?;
    }
    bed.prezero(&["drain"])?;
    bed.prezero(&["drain", "--end"])?;
    bed.wait_for_ready_pages()
}

/// Three requests of one claim are three files, each a block that was ready. One request with a
/// count is another thing: the scheduler wants as many devices, and all blocks of a size are one.
pub(super) fn several(bed: &mut Bed) -> Result<String> {
    let high = format!("ready_high={}", 3 * config::BLOCK_PAGES);
    let low = high.replace("high", "low");
    let block = config::BLOCK_PAGES.to_string();
    bed.prezero(&["set", "--pages-per-block", &block, &low, &high])?;
    wait_for("three blocks are published", || {
        let devices = bed.devices()?;
        let mut small = devices.iter().filter(|d| d["name"] == "node0-2048k-ready-65536k");
        Ok(small.any(|d| d["capacity"]["memory"]["value"] == "192Mi").then_some(()))
    })?;
    let files = ["mem", "second", "third"];
    let template = |name: &str, requests: Vec<Value>| {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"spec": {"devices": {"requests": requests}}},
        })
    };
    let exact = format!("device.attributes[\"prezero.io\"].blockBytes == {}", 64 * MIB);
    let request = |name: &str, count: usize| {
        json!({"name": name, "exactly": {
            "deviceClassName": "prezero-ready", "count": count,
            "capacity": {"requests": {"memory": "64Mi"}},
            "selectors": [{"cel": {"expression": exact}}],
        }})
    };
    let each = files.map(|name| request(name, 1)).to_vec();
    bed.kubectl.apply(&[template("counted", vec![request("mem", 3)]), template("three", each)])?;
    let of = |name: &str| {
        let mut pod = pod("default", name, "use 1", Some(64), &json!({}));
        pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = name.into();
        pod
    };
    bed.kubectl.apply(&[of("counted")])?;
    let event = bed.event("default", "counted", "cannot allocate all claims")?;
    bed.delete("default", "counted")?;
    let mut pod = of("three");
    let main = pod["spec"]["containers"][0].clone();
    for file in &files[1..] {
        let mut more = main.clone();
        more["name"] = (*file).into();
        more["args"] = json!(["use", format!("/dev/prezero/{file}"), "2"]);
        pod["spec"]["containers"].as_array_mut().context("containers")?.push(more);
    }
    bed.kubectl.apply(&[pod])?;
    let pod = bed.runs("default", "three")?;
    for container in ["main", "second", "third"] {
        let said = wait_for("each container has looked", || {
            let said = bed.said_in(&pod, container, 0)?;
            Ok((!said.is_empty()).then_some(said))
        })?;
        holds(&said, 64 * MIB, 0)?;
    }
    let paths: BTreeSet<_> = bed.loans()?.iter().map(|loan| loan["path"].to_string()).collect();
    ensure!(paths.len() == 3, "three files are {paths:?}");
    let claims = bed.kubectl.list(&["resourceclaims", "-n", "default"])?;
    let counted = all_was_ready(bed, &claims[0])?;
    ensure!(counted == 3, "{counted} files were counted as ready");
    // Each looks at its own five times a second, and ends where another has written.
    std::thread::sleep(Duration::from_secs(2));
    let pod = bed.kubectl.get(&["pod", "-n", "default", "three"])?;
    let all = pod["status"]["containerStatuses"].as_array().context("containers")?;
    ensure!(all.iter().all(|one| one["restartCount"] == 0), "files of one claim are shared");
    bed.delete("default", "three")?;
    bed.is_clean()?;
    as_it_was(bed)?;
    Ok(format!("with a count: {event}"))
}

/// The driver was told how much of each loan was ready; the scheduler has said where it was to be.
pub(super) fn promised(bed: &mut Bed) -> Result<String> {
    bed.wait_for_ready_pages()?;
    let asked = [("a", 64), ("b", 64), ("c", 128)];
    for (name, mib) in asked {
        bed.ask("default", name, mib, ["use", "1"])?;
    }
    for (name, mib) in asked {
        let pod = bed.runs("default", name)?;
        holds(&bed.said(&pod, 0)?, mib * MIB, 0)?;
    }
    let mut ready = 0;
    for claim in bed.kubectl.list(&["resourceclaims", "-n", "default"])? {
        ready += all_was_ready(bed, &claim)?;
    }
    ensure!(ready == asked.len(), "{ready} claims were counted as ready");
    Ok(format!("{ready} claims on what was ready had all of it ready"))
}

/// How many files a claim has. Each is counted as ready, and was.
fn all_was_ready(bed: &Bed, claim: &Value) -> Result<usize> {
    let said = bed.driver_log()?;
    let results = &claim["status"]["allocation"]["devices"]["results"];
    let results = results.as_array().context("the claim is not allocated")?;
    for (index, result) in results.iter().enumerate() {
        let name = format!("name=\"default/{}.{index}\"", text(&claim["metadata"]["uid"]));
        let line = said.lines().find(|line| line.contains("\"lent\"") && line.contains(&name));
        let line = line.with_context(|| format!("the driver has said nothing of {name}"))?;
        let number = |field: &str| -> Result<u64> {
            let value = line.split(field).nth(1).and_then(|rest| rest.split(' ').next());
            Ok(value.with_context(|| format!("no {field} in {line}"))?.trim().parse()?)
        };
        let device = text(&result["device"]);
        ensure!(device.contains("-ready-"), "all was ready, and {name} is on {device}");
        ensure!(number(" ready=")? == number(" bytes=")?, "counted as ready: {line}");
    }
    Ok(results.len())
}
