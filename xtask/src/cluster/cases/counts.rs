// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may have how much: quotas, and huge pages that pods request natively.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::holds;
use crate::cluster::{
    bed::{Bed, MIB, pod},
    config::{self, TIGHT},
    kubectl::{text, wait_for},
};

const RESOURCE: &str = "hugepages-2Mi";
/// Its pool, as a quantity.
const POOL_MIB: u64 = config::PAGES * 2;

pub(super) fn quota(bed: &mut Bed) -> Result<String> {
    bed.ask(TIGHT, "greedy", 128, ["use", "1"])?;
    let event = bed.event(TIGHT, "greedy", "quota of namespace \"tight\" exceeded")?;
    ensure!(bed.loans()?.is_empty(), "a claim that was refused holds {:?}", bed.loans()?);
    bed.delete(TIGHT, "greedy")?;
    bed.run(TIGHT, "modest", 64, ["use", "1"])?;
    // What one namespace may not have is there for another.
    bed.run("default", "other", 128, ["use", "1"])?;
    let from = event.find("quota of").unwrap_or(0);
    Ok(event[from..].to_owned())
}

/// Huge pages that the kubelet counts on the node, in MiB.
fn capacity(bed: &Bed) -> Result<u64> {
    let node = bed.kubectl.get(&["node", config::NODE])?;
    let quantity = text(&node["status"]["allocatable"][RESOURCE]).to_owned();
    if let Some(gib) = quantity.strip_suffix("Gi") {
        return Ok(gib.parse::<u64>()? * 1024);
    }
    quantity.strip_suffix("Mi").context(quantity.clone())?.parse().context("a quantity")
}

/// A pod that requests huge pages of its own and touches none of them; no container ever starts,
/// since the image of that name is nowhere.
fn native(name: &str, mib: u64) -> Value {
    let pages = format!("{mib}Mi");
    let limits = json!({RESOURCE: pages, "memory": "32Mi"});
    let mut pod = pod("default", name, "use", None, &limits);
    pod["spec"]["containers"][0]["resources"]["requests"][RESOURCE] = pages.into();
    pod["spec"]["containers"][0]["image"] = "localhost/absent:1".into();
    pod["spec"]["containers"][0]["imagePullPolicy"] = "Never".into();
    pod
}

fn is_bound(bed: &Bed, name: &str) -> Result<bool> {
    let pod = bed.kubectl.get(&["pod", "-n", "default", name])?;
    Ok(pod["spec"]["nodeName"] == config::NODE)
}

/// That a native pod of all but `taken` MiB is bound, and one page more is refused.
fn refuses_beyond(bed: &Bed, taken: u64) -> Result<String> {
    let most = capacity(bed)? - taken;
    bed.kubectl.apply(&[native("too-large", most + 2)])?;
    let event = bed.event("default", "too-large", &format!("Insufficient {RESOURCE}"))?;
    ensure!(!is_bound(bed, "too-large")?, "a pod of {} MiB was bound, after {event}", most + 2);
    bed.delete("default", "too-large")?;
    if most > 0 {
        bed.kubectl.apply(&[native("fits", most)])?;
        wait_for("a native pod that fits is bound", || Ok(is_bound(bed, "fits")?.then_some(())))?;
        bed.delete("default", "fits")?;
    }
    Ok(format!("{most} MiB fit, {} do not: {event}", most + 2))
}

/// Without a counter-measure the pod is bound: the reason for all this.
fn binds_all(bed: &Bed) -> Result<()> {
    bed.kubectl.apply(&[native("all", capacity(bed)?)])?;
    wait_for(
        "a native pod of all huge pages is bound",
        || Ok(is_bound(bed, "all")?.then_some(())),
    )?;
    bed.delete("default", "all")
}

pub(super) fn placeholder(bed: &mut Bed) -> Result<String> {
    binds_all(bed)?;
    bed.install(&[&format!("placeholder.{RESOURCE}={POOL_MIB}Mi")])?;
    let is_up = |bed: &Bed| -> Result<bool> {
        let set = bed.kubectl.get(&["daemonset", "-n", "prezero", "prezero-placeholder"])?;
        Ok(set["status"]["numberReady"] == 1)
    };
    wait_for("the placeholder runs", || Ok(is_up(bed)?.then_some(())))?;
    let refused = refuses_beyond(bed, POOL_MIB);
    // Claims are served beside it.
    let claimed = bed.run("default", "claims", 64, ["use", "1"]);
    bed.install(&[])?;
    wait_for("the placeholder is gone", || {
        let pods = bed.kubectl.list(&[
            "pods",
            "-n",
            "prezero",
            "-l",
            "app.kubernetes.io/component=prezero-placeholder",
        ])?;
        Ok(pods.is_empty().then_some(()))
    })?;
    claimed?;
    refused
}

/// Has the devices say which pages of the node they take, for as long as something is looked at.
fn while_mapped<T>(bed: &Bed, look: impl FnOnce() -> Result<T>) -> Result<T> {
    let mapped = |wanted: bool| {
        bed.driver_is_ready()?;
        wait_for("devices say which pages they take", || {
            let devices = bed.devices()?;
            // As 1.36 calls it, and 1.37.
            let has = |d: &Value| {
                d["nodeAllocatableResourceMappings"][RESOURCE].is_object()
                    || d["nodeAllocatableResources"][RESOURCE]["mapping"].is_object()
            };
            Ok(devices.iter().all(|device| has(device) == wanted).then_some(()))
        })
    };
    bed.install(&["nodeAllocatable=true"])?;
    let found = mapped(true).and_then(|()| look());
    bed.install(&[])?;
    mapped(false)?;
    found
}

pub(super) fn mapping(bed: &mut Bed) -> Result<String> {
    while_mapped(bed, || {
        bed.run("default", "claims", 128, ["use", "1"])?;
        refuses_beyond(bed, 128)
    })
}

pub(super) fn shared(bed: &mut Bed) -> Result<String> {
    let of_template = ["resourceclaimtemplate", "-n", "default", "zeroed-64m"];
    let spec = bed.kubectl.get(&of_template)?["spec"]["spec"].take();
    bed.kubectl.apply(&[json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "shared", "namespace": "default"}, "spec": spec,
    })])?;
    let asks = |name: &str| {
        let mut pod = pod("default", name, "use 3", Some(64), &json!({}));
        let claim = json!([{"name": "memory", "resourceClaimName": "shared"}]);
        pod["spec"]["resourceClaims"] = claim;
        bed.kubectl.apply(&[pod])
    };
    let finds = |name: &str, byte: u8| {
        let pod = bed.runs("default", name)?;
        holds(&bed.said(&pod, 0)?, 64 * MIB, byte)
    };
    // Without the mapping pods share it, whichever the version.
    for (name, byte) in [("first", 0), ("second", 3)] {
        asks(name)?;
        finds(name, byte)?;
    }
    for name in ["first", "second"] {
        bed.delete("default", name)?;
    }
    bed.is_clean()?;
    let said = while_mapped(bed, || {
        asks("first")?;
        finds("first", 0)?;
        asks("second")?;
        let event = bed.event("default", "second", "FailedScheduling")?;
        ensure!(!is_bound(bed, "second")?, "it was bound, after {event}");
        for name in ["first", "second"] {
            bed.delete("default", name)?;
        }
        bed.is_clean()?;
        Ok(event)
    });
    // Where something was wrong, pods have it still.
    let words = ["delete", "resourceclaim", "-n", "default", "shared", "--wait=false"];
    bed.kubectl.run(&words)?;
    said
}
