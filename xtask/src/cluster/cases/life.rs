// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a claim when nothing goes wrong.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::holds;
use crate::cluster::{
    bed::{Bed, MIB, pod},
    config,
    kubectl::{text, wait_for},
};

pub(super) fn registered(bed: &mut Bed) -> Result<String> {
    let pool = config::PAGES * 2 * MIB;
    wait_for("the whole pool is published", || {
        let mut sum = 0;
        for device in bed.devices()? {
            let memory = text(&device["capacity"]["memory"]["value"]).to_owned();
            let mib: u64 = memory.strip_suffix("Mi").context(memory.clone())?.parse()?;
            sum += mib * MIB;
        }
        Ok((sum == pool).then_some(()))
    })?;
    let devices = bed.devices()?;
    let names: BTreeSet<_> = devices.iter().map(|device| text(&device["name"])).collect();
    let wanted = BTreeSet::from([
        "node0-2048k-ready-131072k",
        "node0-2048k-ready-65536k",
        "node0-2048k-rest",
    ]);
    ensure!(names == wanted, "the devices are {names:?}");
    // No token, no shell, no capability: as the chart says.
    let pods =
        bed.kubectl.list(&["pods", "-n", "prezero", "-l", "app.kubernetes.io/component=driver"])?;
    ensure!(pods.len() == 1, "{} pods of the driver on one node", pods.len());
    Ok(text(&pods[0]["spec"]["containers"][0]["image"]).to_owned())
}

pub(super) fn zeros(bed: &mut Bed) -> Result<String> {
    // The second pod of its kind: the first read from disk is not part of a claim's cost.
    bed.run("default", "warm", 128, ["use", "1"])?;
    bed.delete("default", "warm")?;
    bed.is_clean()?;
    bed.wait_for_ready_pages()?;
    let asked = now()?;
    let pod = bed.run("default", "zeroed", 128, ["use", "1"])?;
    let said = bed.said(&pod, 0)?;
    holds(&said, 128 * MIB, 0)?;
    let loan = bed.loan()?;
    ensure!(loan["bytes"] == 128 * MIB, "lent was {loan}");
    bed.delete("default", "zeroed")?;
    bed.is_clean()?;
    Ok(Start::parse(asked, &said)?.to_string())
}

/// Since when the clock of both, the test and the pod, counts.
fn now() -> Result<Duration> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
}

/// How long a pod took.
struct Start {
    until_first_byte: Duration,
    touched: Duration,
}

impl Start {
    fn parse(asked: Duration, said: &str) -> Result<Self> {
        let number = |name: &str| -> Result<u64> {
            let mut words = said.split_whitespace();
            let value = words.find(|word| *word == name).and_then(|_| words.next());
            Ok(value.with_context(|| format!("no {name} in {said:?}"))?.parse()?)
        };
        let at = Duration::from_micros(number("at_us")?);
        let until_first_byte = at.saturating_sub(asked);
        Ok(Self { until_first_byte, touched: Duration::from_micros(number("touched_us")?) })
    }
}

impl std::fmt::Display for Start {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (first, touched) = (self.until_first_byte.as_secs_f64(), self.touched.as_secs_f64());
        write!(f, "{first:.2} s to the first byte, 128 MiB touched in {:.2} ms", touched * 1e3)
    }
}

/// A pod of the same size on huge pages that it requests natively, in a directory of its own.
fn native() -> Value {
    let size = 128 * MIB;
    let limits = json!({"hugepages-2Mi": size.to_string(), "memory": "64Mi"});
    let words = format!("make /pages/mem 1 {size}");
    let mut pod = pod("default", "native", &words, None, &limits);
    let main = &mut pod["spec"]["containers"][0];
    main["resources"]["requests"]["hugepages-2Mi"] = size.to_string().into();
    main["volumeMounts"] = json!([{"name": "pages", "mountPath": "/pages"}]);
    pod["spec"]["volumes"] = json!([{"name": "pages", "emptyDir": {"medium": "HugePages-2Mi"}}]);
    pod
}

/// In turn, three pods of each kind; said is the median of each. Nothing is lent and nothing ready
/// while native ones run, which the kernel zeroes page by page as they touch.
pub(super) fn measured(bed: &mut Bed) -> Result<String> {
    let (mut claims, mut natives) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        bed.wait_for_ready_pages()?;
        let asked = now()?;
        let claimed = bed.run("default", "claimed", 128, ["use", "1"])?;
        claims.push(Start::parse(asked, &bed.said(&claimed, 0)?)?);
        bed.delete("default", "claimed")?;
        bed.is_clean()?;
        bed.prezero(&["drain"])?;
        let asked = now()?;
        bed.kubectl.apply(&[native()])?;
        let ran = bed.runs("default", "native");
        let said = ran.and_then(|pod| bed.said(&pod, 0));
        bed.delete("default", "native")?;
        bed.prezero(&["drain", "--end"])?;
        let said = said?;
        holds(&said, 128 * MIB, 0)?;
        natives.push(Start::parse(asked, &said)?);
    }
    let median = |mut starts: Vec<Start>| {
        starts.sort_by_key(|start| start.touched);
        starts.swap_remove(1)
    };
    Ok(format!("native: {}; a claim: {}", median(natives), median(claims)))
}

pub(super) fn restart(bed: &mut Bed) -> Result<String> {
    bed.ask("default", "crash", 64, ["crash", "7"])?;
    let pod = wait_for("the pod is there", || {
        let pod = bed.kubectl.get(&["pod", "-n", "default", "crash"])?;
        Ok((!bed.said(&pod, 0)?.is_empty()).then_some(pod))
    })?;
    holds(&bed.said(&pod, 0)?, 64 * MIB, 0)?;
    let said = bed.restarted(&pod, 1)?;
    holds(&said, 64 * MIB, 7)?;
    bed.loan()?;
    Ok(String::new())
}

pub(super) fn isolation(bed: &mut Bed) -> Result<String> {
    let one = bed.run("default", "one", 64, ["use", "1"])?;
    let two = bed.run("default", "two", 64, ["use", "2"])?;
    for pod in [&one, &two] {
        holds(&bed.said(pod, 0)?, 64 * MIB, 0)?;
    }
    let paths: BTreeSet<_> = bed.loans()?.iter().map(|loan| loan["path"].to_string()).collect();
    ensure!(paths.len() == 2, "two pods have {paths:?}");
    // Each of them looks at all its memory five times a second, and ends if it was written to.
    std::thread::sleep(Duration::from_secs(3));
    for name in ["one", "two"] {
        ensure!(bed.restarts("default", name)? == 0, "pod {name} found its memory written to");
    }
    bed.delete("default", "one")?;
    // Every page that the first one has written to is among these, or unused.
    let third = bed.run("default", "three", 192, ["use", "3"])?;
    holds(&bed.said(&third, 0)?, 192 * MIB, 0)?;
    ensure!(bed.restarts("default", "two")? == 0, "pod two found its memory written to");
    Ok(String::new())
}

/// One in the process namespace of all others, uid 0 as they are, keeps a descriptor of a claim
/// over its pod's end, and writes to every file that it can still open by it.
pub(super) fn thief(bed: &mut Bed) -> Result<String> {
    let mut pod = pod("default", "thief", "steal 66", None, &json!({}));
    pod["spec"]["hostPID"] = true.into();
    bed.kubectl.apply(&[pod])?;
    let thief = bed.runs("default", "thief")?;
    bed.run("default", "victim", 64, ["use", "1"])?;
    wait_for("the thief keeps it", || Ok(bed.said(&thief, 0)?.contains("kept ").then_some(())))?;
    bed.delete("default", "victim")?;
    bed.is_clean()?;
    gets_nothing(bed, &thief)
}

/// The same of one that shares its pod's process namespace with the container that has the claim,
/// and hands what it keeps to another pod before its own ends.
pub(super) fn smuggler(bed: &mut Bed) -> Result<String> {
    let shared = |pod: &mut Value, nth: usize| {
        pod["spec"]["containers"][nth]["volumeMounts"] =
            json!([{"name": "fence", "mountPath": "/fence"}]);
        pod["spec"]["volumes"] = json!([{
            "name": "fence", "hostPath": {"path": "/run/fence", "type": "DirectoryOrCreate"},
        }]);
    };
    let mut buyer = pod("default", "fence", "fence /fence/socket 66", None, &json!({}));
    shared(&mut buyer, 0);
    bed.kubectl.apply(&[buyer])?;
    let buyer = bed.runs("default", "fence")?;
    let mut pair = pod("default", "pair", "use 1", Some(64), &json!({}));
    pair["spec"]["shareProcessNamespace"] = true.into();
    let mut thief = pair["spec"]["containers"][0].clone();
    thief["name"] = "thief".into();
    thief["args"] = json!(["smuggle", "/fence/socket"]);
    thief["resources"].as_object_mut().context("resources")?.remove("claims");
    pair["spec"]["containers"].as_array_mut().context("containers")?.push(thief);
    shared(&mut pair, 1);
    bed.kubectl.apply(&[pair])?;
    bed.runs("default", "pair")?;
    wait_for("the other pod has it", || Ok(bed.said(&buyer, 0)?.contains("kept ").then_some(())))?;
    bed.delete("default", "pair")?;
    bed.is_clean()?;
    gets_nothing(bed, &buyer)
}

/// One that has kept descriptors of a claim which is returned now.
fn gets_nothing(bed: &Bed, thief: &Value) -> Result<String> {
    // Until then it was the pod's, and the thief has it: now all that was kept opens nothing.
    let before = wait_for("all that the thief has kept opens nothing", || {
        let said = bed.said(thief, 0)?;
        let count = |part: &str| said.matches(part).count();
        Ok((count("opens nothing") == count("kept ")).then_some(said))
    })?;
    // The next user of the memory finds zeros, and no other process writes there.
    for (name, mib) in [("one", 64), ("two", 64), ("three", 128)] {
        let next = bed.run("default", name, mib, ["use", "2"])?;
        holds(&bed.said(&next, 0)?, mib * MIB, 0)?;
    }
    std::thread::sleep(Duration::from_secs(3));
    for name in ["one", "two", "three"] {
        ensure!(bed.restarts("default", name)? == 0, "pod {name} found its memory written to");
    }
    let said = bed.said(thief, 0)?;
    ensure!(!said[before.len()..].contains("stolen"), "{said}");
    Ok(format!("{} descriptors were kept", before.matches("kept ").count()))
}
