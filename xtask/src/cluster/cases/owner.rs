// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Content that stays for an owner, over pods.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::holds;
use crate::{
    cache,
    cluster::{
        bed::{Bed, MIB, pod},
        config::TIGHT,
        kubectl::wait_for,
    },
};

/// What the claim of the manifest asks for.
const BYTES: u64 = 64 * MIB;
/// What its pods leave there.
const LEFT: u8 = 7;

/// The claim as docs/guides/kubernetes.md says, by somebody in that namespace.
fn make(bed: &Bed, namespace: &str) -> Result<()> {
    let manifest = cache::repo().join("kubernetes/deploy/owner.yaml").display().to_string();
    bed.kubectl.run(&["apply", "-n", namespace, "-f", &manifest]).map(drop)
}

fn unmake(bed: &Bed, namespace: &str) -> Result<()> {
    bed.kubectl.run(&["delete", "resourceclaim", "-n", namespace, "cache"]).map(drop)
}

/// A pod on it finds all of it like that, leaves its own, and ends. Returns the scope of its loan.
fn finds(bed: &Bed, namespace: &str, name: &str, byte: u8) -> Result<String> {
    let mut pod = pod(namespace, name, &format!("use {LEFT}"), Some(64), &json!({}));
    pod["spec"]["resourceClaims"] = json!([{"name": "memory", "resourceClaimName": "cache"}]);
    bed.kubectl.apply(&[pod])?;
    let pod = bed.runs(namespace, name)?;
    holds(&bed.said(&pod, 0)?, BYTES, byte)
        .with_context(|| format!("pod {name} of namespace {namespace}"))?;
    let loan = bed.loan()?;
    let scope = loan["name"].as_str().and_then(|name| name.split('/').next());
    let scope = scope.context("the loan's scope")?.to_owned();
    bed.delete(namespace, name)?;
    bed.is_clean()?;
    Ok(scope)
}

/// How much is kept, once nothing is draining.
fn kept(bed: &Bed) -> Result<u64> {
    wait_for("nothing is draining", || {
        let status: Value = serde_json::from_str(&bed.prezero(&["status", "--json"])?)?;
        let pools = status["pools"].as_array().context("pools")?;
        let pages = |field| pools.iter().filter_map(|pool| pool[field].as_u64()).sum::<u64>();
        Ok((pages("draining_pages") == 0).then_some(pages("kept_pages") * 2 * MIB))
    })
}

pub(super) fn found(bed: &mut Bed) -> Result<String> {
    bed.wait_for_ready_pages()?;
    for namespace in ["default", TIGHT] {
        make(bed, namespace)?;
    }
    finds(bed, "default", "first", 0)?;
    let left = kept(bed)?;
    ensure!(left == BYTES, "{left} bytes are kept for it");
    // The same pod again, another namespace, another pod; and one on another claim of that owner.
    finds(bed, "default", "first", LEFT)?;
    let strangers = finds(bed, TIGHT, "stranger", 0)?;
    finds(bed, "default", "second", LEFT)?;
    unmake(bed, "default")?;
    make(bed, "default")?;
    let own = finds(bed, "default", "third", LEFT)?;
    let all = kept(bed)?;
    ensure!(all == 2 * BYTES, "{all} bytes are kept for the owners of two namespaces");
    let why = template(bed)?;
    for (namespace, scope) in [("default", own), (TIGHT, strangers)] {
        unmake(bed, namespace)?;
        discard(bed, &scope)?;
    }
    let left = kept(bed)?;
    ensure!(left == 0, "{left} bytes are kept for nobody");
    Ok(why)
}

/// What ends with its pod has no owner. Returns what the pod's events say.
fn template(bed: &Bed) -> Result<String> {
    let claim = bed.kubectl.get(&["resourceclaim", "-n", "default", "cache"])?;
    bed.kubectl.apply(&[json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "owned", "namespace": "default"}, "spec": {"spec": claim["spec"]},
    })])?;
    let mut pod = pod("default", "template", "use 1", Some(64), &json!({}));
    pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "owned".into();
    bed.kubectl.apply(&[pod])?;
    let event = bed.event("default", "template", "is made from a template")?;
    bed.delete("default", "template")?;
    bed.is_clean()?;
    let from = event.find("owner").unwrap_or(0);
    Ok(event[from..].to_owned())
}

/// The node's own agent lends it in the owner's name, and keeps nothing of it.
fn discard(bed: &Bed, scope: &str) -> Result<()> {
    let name = format!("{scope}/discard");
    let words = ["lend", "64M", "--name", &name, "--whole", "--owner", "cache.mem", "--json"];
    let lent: Value = serde_json::from_str(&bed.prezero(&words)?)?;
    ensure!(lent["kept"] == true, "what was kept for {scope} is not found: {lent}");
    bed.prezero(&["return", &name, "--discard"]).map(drop)
}
