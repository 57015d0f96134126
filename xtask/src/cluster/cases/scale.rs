// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many nodes, which are objects alone: what the stock scheduler makes of what drivers publish.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{
    bed::Bed,
    kubectl::{text, wait_for},
};

const NODES: u64 = 1000;
/// In the ranked test, and beyond what the ready nodes of the ledger have.
const PODS: usize = 200;
const GIB: u64 = 1 << 30;
/// A block of these nodes, and so the size of a claim.
const BLOCK: u64 = 8;

/// A node without a kubelet, and the slice that its driver would publish.
fn fake(kind: &str, nth: u64, ready: u64, total: u64) -> [Value; 2] {
    let name = format!("{kind}-{nth}");
    let has = json!({"cpu": "64", "memory": "512Gi", "pods": "110"});
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"fake": kind}},
        "status": {
            "capacity": has, "allocatable": has,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Fake", "message": "nobody is there"}],
        },
    });
    let device = |state: &str, gib: u64| {
        let step = format!("{BLOCK}Gi");
        let bound = if state == "ready" { "max" } else { "step" };
        let range = json!({"min": step, bound: step});
        json!({
            "name": format!("node0-2048k-{state}"), "allowMultipleAllocations": true,
            "attributes": {"state": {"string": state}},
            "capacity": {"memory": {"value": format!("{gib}Gi"), "requestPolicy": {"default": step, "validRange": range}}},
        })
    };
    let all = [("ready", ready), ("rest", total - ready)];
    // The API wants room for two steps.
    let all = all.iter().filter(|(_, gib)| *gib >= 2 * BLOCK);
    let devices: Vec<_> = all.map(|(state, gib)| device(state, *gib)).collect();
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "prezero.io", "nodeName": name, "devices": devices,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        },
    });
    [node, slice]
}

fn template(name: &str, classes: &[&str]) -> Value {
    let one = |class: &&str| {
        let memory = format!("{BLOCK}Gi");
        json!({"name": class, "deviceClassName": class, "capacity": {"requests": {"memory": memory}}})
    };
    let ranked: Vec<_> = classes.iter().map(one).collect();
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [{"name": "mem", "firstAvailable": ranked}]}}},
    })
}

fn pods(kind: &str, template: &str, count: usize) -> Vec<Value> {
    let one = |nth| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{template}-{nth}"), "namespace": "default", "labels": {"fake": kind}},
            "spec": {
                "automountServiceAccountToken": false, "nodeSelector": {"fake": kind},
                // These nodes send no heartbeat.
                "tolerations": [{"operator": "Exists"}],
                "resourceClaims": [{"name": "memory", "resourceClaimTemplateName": template}],
                "containers": [{"name": "main", "image": "localhost/absent:1", "resources": {"claims": [{"name": "memory"}]}}],
            },
        })
    };
    (0..count).map(one).collect()
}

/// What claims have been given, as (node, device), of pods that `template` made.
fn given(bed: &Bed, template: &str) -> Result<Vec<(String, String)>> {
    let claims = bed.kubectl.list(&["resourceclaims", "-n", "default"])?;
    let ours = claims.iter().filter(|claim| {
        let annotations = &claim["metadata"]["ownerReferences"][0]["name"];
        text(annotations).starts_with(&format!("{template}-"))
    });
    let result = |claim: &Value| {
        let result = &claim["status"]["allocation"]["devices"]["results"][0];
        let (pool, device) = (text(&result["pool"]), text(&result["device"]));
        (!pool.is_empty()).then(|| (pool.to_owned(), device.to_owned()))
    };
    Ok(ours.filter_map(result).collect())
}

/// How many of the pods get ready memory, and how many a second.
fn hits(bed: &Bed, name: &str) -> Result<(usize, f64)> {
    let begun = Instant::now();
    bed.kubectl.create(&pods("many", name, PODS))?;
    let all = wait_for("all pods have memory", || {
        let all = given(bed, name)?;
        Ok((all.len() == PODS).then_some(all))
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    clear(bed, "many")?;
    let hits = all.iter().filter(|(_, device)| device.ends_with("-ready")).count();
    #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
    Ok((hits, PODS as f64 / seconds))
}

/// Pods that no kubelet ends.
fn clear(bed: &Bed, kind: &str) -> Result<()> {
    let label = format!("fake={kind}");
    let words = [
        "delete",
        "pods",
        "-n",
        "default",
        "-l",
        &label,
        "--force",
        "--grace-period=0",
        "--wait=true",
    ];
    bed.kubectl.run(&words)?;
    wait_for("their claims are gone", || {
        let claims = bed.kubectl.list(&["resourceclaims", "-n", "default"])?;
        Ok(claims.is_empty().then_some(()))
    })
}

fn remove(bed: &Bed, kind: &str, count: u64) -> Result<()> {
    let label = format!("fake={kind}");
    bed.kubectl.run(&["delete", "nodes", "-l", &label, "--wait=false"])?;
    let names: Vec<_> = (0..count).map(|nth| format!("{kind}-{nth}")).collect();
    let mut words = vec!["delete", "resourceslices", "--wait=false", "--ignore-not-found"];
    words.extend(names.iter().map(String::as_str));
    bed.kubectl.run(&words).map(drop)
}

pub(super) fn ranked(bed: &mut Bed) -> Result<String> {
    // Two in five have some: more than there are pods, none more than two.
    let ready = |nth: u64| [0, 16, 0, 0, 16][usize::try_from(nth % 5).unwrap_or(0)];
    let objects: Vec<_> = (0..NODES).flat_map(|nth| fake("many", nth, ready(nth), 256)).collect();
    bed.kubectl.create(&objects)?;
    let templates =
        [template("unranked", &["prezero"]), template("ranked", &["prezero-ready", "prezero"])];
    bed.kubectl.apply(&templates)?;
    let (without, without_rate) = hits(bed, "unranked")?;
    let (with, with_rate) = hits(bed, "ranked")?;
    remove(bed, "many", NODES)?;
    ensure!(with == PODS, "{with} of {PODS} pods that ask for ready memory first have it");
    ensure!(without < with, "all pods have ready memory without asking: this shows nothing");
    Ok(format!(
        "{NODES} nodes: ranked {with} of {PODS} on ready memory, {with_rate:.1} pods/s; \
         unranked {without}, {without_rate:.1} pods/s"
    ))
}

pub(super) fn ledger(bed: &mut Bed) -> Result<String> {
    const ALL: usize = 100;
    // 64 claims fit: four nodes of 16, with 4 ready on each.
    let (nodes, total, ready) = (4, 16 * BLOCK, 4 * BLOCK);
    let objects: Vec<_> = (0..nodes).flat_map(|nth| fake("few", nth, ready, total)).collect();
    bed.kubectl.create(&objects)?;
    bed.kubectl.apply(&[template("ledger", &["prezero-ready", "prezero"])])?;
    bed.kubectl.create(&pods("few", "ledger", ALL))?;
    let fit = usize::try_from(nodes * total / BLOCK)?;
    wait_for("as many pods as fit have memory", || {
        Ok((given(bed, "ledger")?.len() >= fit).then_some(()))
    })?;
    // The others have been looked at, and refused, too.
    wait_for("all others are known not to fit", || {
        let pods = bed.kubectl.list(&["pods", "-n", "default", "-l", "fake=few"])?;
        let is_refused = |pod: &&Value| {
            let conditions = pod["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(|c| c["reason"] == "Unschedulable"))
        };
        Ok((pods.iter().filter(is_refused).count() >= ALL - fit).then_some(()))
    })?;
    let mut taken: BTreeMap<(String, String), u64> = BTreeMap::new();
    for one in given(bed, "ledger")? {
        *taken.entry(one).or_default() += BLOCK;
    }
    clear(bed, "few")?;
    remove(bed, "few", nodes)?;
    let sum: u64 = taken.values().sum();
    ensure!(sum == nodes * total, "{sum} GiB of {} are given away", nodes * total);
    for ((node, device), gib) in &taken {
        let has = if device.ends_with("-ready") { ready } else { total - ready };
        ensure!(*gib <= has, "{device} of {node} has {has} GiB, and {gib} are given away");
    }
    Ok(format!("{fit} of {ALL} pods have all {} bytes of 8 devices, none twice", sum * GIB))
}
