// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whatever is killed, a running pod keeps its memory, and unused memory comes back.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};

use super::{holds, same};
use crate::cluster::{
    bed::{Bed, MIB},
    kubectl::wait_for,
};

pub(super) fn forced(bed: &mut Bed) -> Result<String> {
    bed.run("default", "forced", 64, ["use", "1"])?;
    bed.loan()?;
    let words = ["delete", "pod", "-n", "default", "forced", "--force", "--grace-period=0"];
    bed.kubectl.run(&words)?;
    bed.is_clean()?;
    Ok(String::new())
}

pub(super) fn kubelet(bed: &mut Bed) -> Result<String> {
    bed.run("default", "stays", 64, ["use", "1"])?;
    let loan = bed.loan()?;
    let before = bed.slices()?;
    bed.node.kill("kubelet")?;
    bed.node.start_kubelet()?;
    // It begins by wiping its node's devices, and the driver publishes them anew: other objects.
    wait_for("devices are published again", || {
        let now = bed.slices()?;
        let is_new = !now.is_empty() && before.iter().all(|slice| !now.contains(slice));
        Ok(is_new.then_some(()))
    })?;
    // It has the driver registered again when it can prepare another claim.
    let pod = bed.run("default", "next", 64, ["use", "2"])?;
    holds(&bed.said(&pod, 0)?, 64 * MIB, 0)?;
    bed.delete("default", "next")?;
    wait_for("one loan is left", || Ok((bed.loans()?.len() == 1).then_some(())))?;
    same(&loan, &bed.loan()?)?;
    ensure!(bed.restarts("default", "stays")? == 0, "the container was restarted");
    bed.node_is_ready()?;
    Ok(String::new())
}

pub(super) fn daemon(bed: &mut Bed) -> Result<String> {
    bed.run("default", "stays", 64, ["use", "1"])?;
    let loan = bed.loan()?;
    let is_tainted = |bed: &Bed| -> Result<bool> {
        let devices = bed.devices()?;
        Ok(devices.iter().all(|device| device["taints"][0]["key"] == "prezero.io/daemon-down"))
    };
    ensure!(!is_tainted(bed)?, "the devices of a daemon that answers are tainted");
    bed.node.kill("prezero")?;
    wait_for("its devices are tainted", || Ok(is_tainted(bed)?.then_some(())))?;
    ensure!(!bed.devices()?.is_empty(), "its devices are gone");
    bed.node.start_daemon()?;
    wait_for("its devices are good again", || Ok((!is_tainted(bed)?).then_some(())))?;
    same(&loan, &bed.loan()?)?;
    let pod = bed.run("default", "next", 64, ["use", "2"])?;
    holds(&bed.said(&pod, 0)?, 64 * MIB, 0)?;
    ensure!(bed.restarts("default", "stays")? == 0, "the container was restarted");
    Ok(String::new())
}

pub(super) fn driver(bed: &mut Bed) -> Result<String> {
    let pod = bed.run("default", "stays", 64, ["use", "9"])?;
    let loan = bed.loan()?;
    let killed = bed.kill_all("prezero-dra")?;
    ensure!(killed == 1, "{killed} drivers ran on one node");
    // At once: whether the next driver is up yet, a container on a claim that is prepared starts
    // again.
    crash(bed)?;
    let said = bed.restarted(&pod, 1)?;
    holds(&said, 64 * MIB, 9)?;
    bed.driver_is_ready()?;
    same(&loan, &bed.loan()?)?;
    let next = bed.run("default", "next", 64, ["use", "2"])?;
    holds(&bed.said(&next, 0)?, 64 * MIB, 0)?;
    bed.delete("default", "stays")?;
    wait_for("its loan is returned", || Ok((bed.loans()?.len() == 1).then_some(())))?;
    Ok(String::new())
}

/// Kills the tenants that use memory, and not what holds pods' namespaces.
fn crash(bed: &Bed) -> Result<()> {
    let mut killed = 0;
    for (pid, name) in crate::cluster::node::processes()? {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if name == "tenant" && line.contains("\0use\0") {
            crate::cluster::node::kill(pid)?;
            killed += 1;
        }
    }
    ensure!(killed > 0, "no tenant uses memory; {:?}", bed.loans()?);
    Ok(())
}

pub(super) fn update(bed: &mut Bed) -> Result<String> {
    let pod = bed.run("default", "stays", 64, ["use", "5"])?;
    let loan = bed.loan()?;
    let name = |bed: &Bed| -> Result<Vec<String>> {
        let pods = bed.kubectl.list(&[
            "pods",
            "-n",
            "prezero",
            "-l",
            "app.kubernetes.io/component=driver",
        ])?;
        Ok(pods.iter().map(|pod| pod["metadata"]["name"].to_string()).collect())
    };
    let before = name(bed)?;
    bed.kubectl.run(&["rollout", "restart", "-n", "prezero", "daemonset/prezero-dra"])?;
    bed.driver_is_ready()?;
    wait_for("the old pod is gone", || {
        let now = name(bed)?;
        Ok((now.len() == 1 && now != before).then_some(()))
    })?;
    same(&loan, &bed.loan()?)?;
    crash(bed)?;
    holds(&bed.restarted(&pod, 1)?, 64 * MIB, 5)?;
    bed.delete("default", "stays")?;
    bed.is_clean()?;
    Ok(String::new())
}

pub(super) fn power(bed: &mut Bed) -> Result<String> {
    let pod = bed.run("default", "stays", 64, ["use", "4"])?;
    let loan = bed.loan()?;
    bed.node.lose_power()?;
    // The daemon last: earlier requests must ask again.
    bed.node.start_containerd()?;
    bed.node.start_kubelet()?;
    thread::sleep(Duration::from_secs(2));
    bed.node.start_daemon()?;
    bed.node_is_ready()?;
    let said = bed.restarted(&pod, 1)?;
    holds(&said, 64 * MIB, 0)?;
    let again = bed.loan()?;
    ensure!(loan["name"] == again["name"], "the loan {loan} is now {again}");
    bed.driver_is_ready()?;
    Ok(String::new())
}
