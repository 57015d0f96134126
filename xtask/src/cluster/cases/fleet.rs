// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two nodes, by the Go tests of `kubernetes/test/e2e`; and control planes that lack a feature.

use std::{
    fs::{self, OpenOptions},
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    cache,
    cluster::{
        bed::Bed,
        config,
        kubectl::{text, wait_for},
        node::HERE,
    },
    command,
};

fn e2e() -> Result<PathBuf> {
    Ok(cache::target("image")?.join("e2e.test"))
}

/// Builds the Go tests, while there is a network.
pub(in crate::cluster) fn build_e2e() -> Result<()> {
    let source = cache::repo().join("kubernetes/test/e2e");
    // The flags of the driver's image, which compiles most of it.
    let mut make = command::new(&source, "go", ["test", "-c", "-trimpath", "-buildvcs=false"]);
    command::run(make.arg("-o").arg(e2e()?).arg(".").env("CGO_ENABLED", "0"))
}

/// Runs the Go tests that have this in their names; how they ended, each in a line of its own.
fn run(bed: &Bed, only: &str) -> Result<String> {
    let log = bed.logs.join("e2e.log");
    let out = OpenOptions::new().create(true).append(true).open(&log)?;
    let mut tests = Command::new(e2e()?);
    tests
        .args(["-test.v", "-test.timeout=30m", "-test.run", only])
        .current_dir(HERE)
        .env("PATH", &bed.node.path)
        .env("HOME", HERE)
        .env("KUBECONFIG", &bed.kubectl.config)
        .env("PREZERO_E2E_HERE", HERE)
        .env("PREZERO_E2E_LOGS", &bed.logs)
        .env("PREZERO_E2E_IMAGES", cache::target("image")?)
        .env("PREZERO_E2E_CHART", cache::repo().join("kubernetes"))
        .env("PREZERO_E2E_CGROUP", config::CGROUP)
        .env("PREZERO_BIN", cache::target("debug")?.join("prezero"))
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out);
    let status = tests.status().context("cannot start the Go tests")?;
    let said = fs::read_to_string(&log)?;
    let ends: Vec<_> = said
        .lines()
        // The tests themselves, without their steps.
        .filter(|line| line.starts_with("--- ") || line.contains("FIGURE"))
        .map(str::trim_start)
        .collect();
    let ends = ends.join("; ");
    ensure!(status.success(), "{ends}; see {}", log.display());
    Ok(ends)
}

pub(super) fn two_nodes(bed: &mut Bed) -> Result<String> {
    let said = run(bed, "^TestTwoNodes");
    bed.install(&[])?;
    bed.driver_is_ready()?;
    said
}

pub(super) fn storm(bed: &mut Bed) -> Result<String> {
    run(bed, "^TestScale")
}

/// What Kubernetes 1.34 and 1.35 are like: the API server takes devices, and drops what they say.
pub(super) fn gate(bed: &mut Bed) -> Result<String> {
    let with = |bed: &mut Bed, gates: &str| -> Result<()> {
        for name in ["apiserver", "controllers", "scheduler"] {
            bed.node.kill(name)?;
        }
        bed.node.start_apiserver(gates)?;
        wait_for("the API server answers", || {
            bed.kubectl.run(&["get", "--raw", "/readyz"]).map(Some)
        })?;
        bed.node.start_controllers(gates)?;
        // Published anew, and read back.
        bed.kubectl.run(&["delete", "resourceslices", "--all"])?;
        bed.kubectl.run(&["delete", "pods", "-n", "prezero", "--all", "--wait=true"]).map(drop)
    };
    with(bed, config::FEWER_GATES)?;
    let said = wait_for("the node has an event that says so", || {
        let field = "reason=PrezeroFeatureDisabled";
        let events = bed.kubectl.list(&["events", "-n", "default", "--field-selector", field])?;
        let about = |event: &&serde_json::Value| event["involvedObject"]["name"] == config::NODE;
        Ok(events.iter().find(about).map(|event| text(&event["message"]).to_owned()))
    });
    let unready = wait_for("the driver's pod is not ready", || {
        let set = bed.kubectl.get(&["daemonset", "-n", "prezero", "prezero-dra"])?;
        Ok((set["status"]["numberReady"] == 0).then_some(()))
    });
    with(bed, config::GATES)?;
    bed.driver_is_ready()?;
    unready?;
    let said = said?;
    ensure!(said.contains("DRAConsumableCapacity"), "the event says {said}");
    Ok(said)
}
