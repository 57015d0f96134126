// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cluster that is up, and what tests do with it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{
    config::{self, TIGHT},
    kubectl::{Kubectl, text, wait_for},
    node::{self, HERE, Node},
    programs::Programs,
};
use crate::{cache, command, say};

/// Namespaces that tests put pods into.
const NAMESPACES: [&str; 2] = ["default", TIGHT];
pub(super) const MIB: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Bed {
    pub(super) node: Node,
    pub(super) kubectl: Kubectl,
    pub(super) logs: PathBuf,
    /// The machine, for readers of figures.
    pub(super) machine: String,
}

impl Bed {
    /// A cluster of one node that is ready, with the chart installed and the driver's first devices
    /// published.
    pub(super) fn new(programs: &Programs, logs: &Path) -> Result<Self> {
        let mut node = Node::new(programs, logs.to_path_buf())?;
        let kubectl =
            Kubectl { path: node.path.clone(), config: Path::new(HERE).join("admin.conf") };
        let begun = Instant::now();
        let say =
            |what: &str| say::step(format_args!("{:.1} s: {what}", begun.elapsed().as_secs_f64()));
        node.start_daemon()?;
        node.start_containerd()?;
        let images = cache::target("image")?;
        let driver = concat!("prezero-dra_", env!("CARGO_PKG_VERSION"), ".tar");
        for image in ["tenant.tar", driver] {
            node.import(&images.join(image))?;
        }
        say("containerd has the images");
        node.start_apiserver(config::GATES)?;
        wait_for("the API server answers", || kubectl.run(&["get", "--raw", "/readyz"]).map(Some))?;
        say("the API server answers");
        node.start_controllers(config::GATES)?;
        node.start_kubelet()?;
        let mut bed = Self { node, kubectl, logs: logs.to_path_buf(), machine: machine()? };
        bed.node_is_ready()?;
        say("the node is ready");
        bed.kubectl.apply(&[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TIGHT}}),
        ])?;
        for namespace in NAMESPACES {
            let templates = [64, 128, 192].map(|mib| template(namespace, mib));
            bed.kubectl.apply(&templates)?;
        }
        let label = ["label", "--overwrite", "node", config::NODE, "prezero.io/daemon=true"];
        bed.kubectl.run(&label)?;
        bed.install(&[])?;
        bed.driver_is_ready()?;
        say("the driver is ready");
        Ok(bed)
    }

    pub(super) fn node_is_ready(&mut self) -> Result<()> {
        wait_for("the node is ready", || {
            self.node.check()?;
            let node = self.kubectl.get(&["node", config::NODE])?;
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is_ready = conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
            Ok(is_ready.then_some(()))
        })
    }

    /// The chart, as docs/guides/kubernetes.md says, with values.
    pub(super) fn install(&self, values: &[&str]) -> Result<()> {
        let chart = cache::repo().join("kubernetes/chart").display().to_string();
        let mut helm = Command::new("helm");
        helm.env("PATH", &self.node.path).env("HOME", HERE).arg("--kubeconfig");
        helm.arg(&self.kubectl.config).args(["upgrade", "--install", "prezero", &chart]);
        // Without values helm would take the last ones.
        helm.args(["--namespace", "prezero", "--create-namespace", "--reset-values"]);
        // Tests wait for devices.
        helm.args(["--set", "publish.interval=1s,publish.settle=1s"]);
        for value in values {
            helm.args(["--set", value]);
        }
        command::stdout(&mut helm).map(drop)
    }

    /// The driver's pods that are ready and of the chart's latest form.
    pub(super) fn driver_is_ready(&self) -> Result<()> {
        wait_for("the driver's pod is ready", || {
            let set = self.kubectl.get(&["daemonset", "-n", "prezero", "prezero-dra"])?;
            let (status, made) = (&set["status"], &set["metadata"]["generation"]);
            let is_seen = status["observedGeneration"] == *made;
            let ready = ["numberReady", "updatedNumberScheduled", "currentNumberScheduled"];
            Ok((is_seen && ready.iter().all(|&field| status[field] == 1)).then_some(()))
        })?;
        wait_for("devices are published", || Ok((!self.devices()?.is_empty()).then_some(())))
    }

    /// The devices of the node, as the scheduler sees them.
    pub(super) fn devices(&self) -> Result<Vec<Value>> {
        let slices = self.kubectl.list(&["resourceslices"])?;
        let ours = slices.iter().filter(|s| s["spec"]["nodeName"] == config::NODE);
        Ok(ours
            .flat_map(|s| s["spec"]["devices"].as_array().cloned().unwrap_or_default())
            .collect())
    }

    /// The slices that the node's devices are in, by their numbers.
    pub(super) fn slices(&self) -> Result<Vec<Value>> {
        let slices = self.kubectl.list(&["resourceslices"])?;
        let ours = slices.iter().filter(|s| s["spec"]["nodeName"] == config::NODE);
        Ok(ours.map(|slice| slice["metadata"]["uid"].clone()).collect())
    }

    /// Waits until the target of both sizes of blocks is ready, and published.
    pub(super) fn wait_for_ready_pages(&self) -> Result<()> {
        let wanted = format!("{}Mi", config::PAGES / 4 * 2);
        wait_for("all blocks are ready and published", || {
            let devices = self.devices()?;
            let ready = devices.iter().filter(|d| d["attributes"]["state"]["string"] == "ready");
            let full = ready.filter(|d| d["capacity"]["memory"]["value"] == wanted.as_str());
            Ok((full.count() == 2).then_some(()))
        })
    }

    /// What the driver's pods have said, since they are there.
    pub(super) fn driver_log(&self) -> Result<String> {
        let mut said = String::new();
        for pod in fs::read_dir("/var/log/pods")? {
            let pod = pod?;
            if pod.file_name().to_string_lossy().starts_with("prezero_prezero-dra-") {
                for log in fs::read_dir(pod.path().join("driver"))? {
                    said += &fs::read_to_string(log?.path())?;
                }
            }
        }
        Ok(said)
    }

    /// What prezero says to these words.
    pub(super) fn prezero(&self, words: &[&str]) -> Result<String> {
        command::stdout(Command::new(cache::target("debug")?.join("prezero")).args(words))
    }

    /// The loans by name of the node's daemon.
    pub(super) fn loans(&self) -> Result<Vec<Value>> {
        let all = self.prezero(&["loans", "--json"])?;
        let mut all: Value = serde_json::from_str(&all)?;
        match all["loans"].take() {
            Value::Array(loans) => Ok(loans),
            other => bail!("prezero loans --json has no loans but {other}"),
        }
    }

    /// The one loan.
    pub(super) fn loan(&self) -> Result<Value> {
        let mut loans = self.loans()?;
        match (loans.pop(), loans.len()) {
            (Some(loan), 0) => Ok(loan),
            (_, more) => bail!("there is not one loan but {}", more + usize::from(more > 0)),
        }
    }

    /// Waits until all loans are returned and their devices are withdrawn.
    pub(super) fn is_clean(&self) -> Result<()> {
        wait_for("all loans are returned", || {
            let specs = fs::read_dir("/run/cdi").map_or(0, |dir| dir.flatten().count());
            Ok((specs == 0 && self.loans()?.is_empty()).then_some(()))
        })
    }

    /// Makes a pod that uses a claim, and waits until it runs.
    pub(super) fn run(
        &self,
        namespace: &str,
        name: &str,
        mib: u64,
        words: [&str; 2],
    ) -> Result<Value> {
        self.ask(namespace, name, mib, words)?;
        self.runs(namespace, name)
    }

    /// Makes the pod only.
    pub(super) fn ask(
        &self,
        namespace: &str,
        name: &str,
        mib: u64,
        words: [&str; 2],
    ) -> Result<()> {
        let pod = pod(namespace, name, &words.join(" "), Some(mib), &json!({}));
        // The namespace's service account comes a moment after it.
        wait_for("the pod is taken", || self.kubectl.apply(std::slice::from_ref(&pod)).map(Some))
    }

    /// Waits until the pod runs and has said what it found.
    pub(super) fn runs(&self, namespace: &str, name: &str) -> Result<Value> {
        let what = format!("pod {name} runs");
        wait_for(&what, || {
            let pod = self.kubectl.get(&["pod", "-n", namespace, name])?;
            let is_running = pod["status"]["phase"] == "Running";
            Ok((is_running && !self.said(&pod, 0)?.is_empty()).then_some(pod))
        })
        .with_context(|| self.kubectl.events(namespace, name).unwrap_or_default().join("; "))
    }

    /// What the container's nth life said.
    pub(super) fn said(&self, pod: &Value, nth: u32) -> Result<String> {
        self.said_in(pod, "main", nth)
    }

    /// The same of a container that is called so.
    pub(super) fn said_in(&self, pod: &Value, container: &str, nth: u32) -> Result<String> {
        let about = &pod["metadata"];
        let name = ["namespace", "name", "uid"].map(|field| text(&about[field])).join("_");
        let log = PathBuf::from(format!("/var/log/pods/{name}/{container}/{nth}.log"));
        let Ok(log) = fs::read_to_string(log) else { return Ok(String::new()) };
        // TIME stdout F TEXT
        let said = log.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
        Ok(said.collect::<Vec<_>>().join("\n"))
    }

    pub(super) fn restarts(&self, namespace: &str, name: &str) -> Result<u64> {
        let pod = self.kubectl.get(&["pod", "-n", namespace, name])?;
        let count = pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
        count.with_context(|| format!("pod {name} has no container"))
    }

    /// Waits until the container has been started that often again, and has said something.
    pub(super) fn restarted(&self, pod: &Value, times: u32) -> Result<String> {
        wait_for("the container has restarted", || {
            let said = self.said(pod, times)?;
            Ok((!said.is_empty()).then_some(said))
        })
        .with_context(|| {
            let [namespace, name] =
                ["namespace", "name"].map(|field| text(&pod["metadata"][field]));
            self.kubectl.events(namespace, name).unwrap_or_default().join("; ")
        })
    }

    pub(super) fn delete(&self, namespace: &str, name: &str) -> Result<()> {
        self.kubectl.run(&["delete", "pod", "-n", namespace, name]).map(drop)
    }

    /// Waits for an event about a pod that has this in it.
    pub(super) fn event(&self, namespace: &str, name: &str, part: &str) -> Result<String> {
        wait_for(&format!("an event about pod {name} with {part:?}"), || {
            let events = self.kubectl.events(namespace, name)?;
            Ok(events.into_iter().find(|event| event.contains(part)))
        })
    }

    /// After a test: no pod is left, and every loan has been returned.
    pub(super) fn tidy(&mut self) -> Result<()> {
        self.node.check()?;
        for namespace in NAMESPACES {
            self.kubectl.run(&["delete", "pods", "-n", namespace, "--all", "--wait=true"])?;
        }
        self.is_clean()
    }

    /// For a person who looks for why a test failed.
    pub(super) fn explain(&self) {
        for words in [
            &["get", "pods", "-A", "-o", "wide"][..],
            &["get", "events", "-A", "--sort-by=.lastTimestamp"],
        ] {
            let said = self.kubectl.run(words).unwrap_or_else(|error| format!("{error:#}"));
            let lines: Vec<_> = said.lines().collect();
            for line in &lines[lines.len().saturating_sub(12)..] {
                say::result(format_args!("#   {line}"));
            }
        }
        say::result(format_args!("#   loans: {:?}", self.loans()));
    }

    /// SIGKILL to the program of all containers that is called so; how many there were.
    pub(super) fn kill_all(&self, program: &str) -> Result<usize> {
        let mut killed = 0;
        for (pid, name) in node::processes()? {
            if name == program {
                node::kill(pid)?;
                killed += 1;
            }
        }
        Ok(killed)
    }
}

/// CPU, cores and kernel: figures are worth nothing without.
fn machine() -> Result<String> {
    let about = fs::read_to_string("/proc/cpuinfo")?;
    let model = about.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("a CPU without a name", |(_, model)| model);
    let cores = about.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(format!("{cores} cores of {model}, Linux {}", kernel.trim()))
}

/// A claim of this number of MiB: where a block of that size is ready, if anywhere.
fn template(namespace: &str, mib: u64) -> Value {
    let one = |name: &str, class: &str, is_meant: String| {
        let memory = format!("{mib}Mi");
        let selectors = json!([{"cel": {"expression": is_meant}}]);
        json!({
            "name": name, "deviceClassName": class, "selectors": selectors,
            "capacity": {"requests": {"memory": memory}},
        })
    };
    let ours = "device.attributes[\"prezero.io\"]";
    let exact = format!("{ours}.blockBytes == {}", mib * MIB);
    let ranked = [
        one("ready", "prezero-ready", exact),
        one("any", "prezero", format!("{ours}.state == \"rest\"")),
    ];
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": format!("zeroed-{mib}m"), "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [{"name": "mem", "firstAvailable": ranked}]}}},
    })
}

/// A pod of one container; with a claim it maps that, and `words` says how.
pub(super) fn pod(
    namespace: &str,
    name: &str,
    words: &str,
    mib: Option<u64>,
    limits: &Value,
) -> Value {
    let mut words: Vec<_> = words.split(' ').collect();
    let mut resources = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": limits});
    let mut spec =
        json!({"terminationGracePeriodSeconds": 2, "automountServiceAccountToken": false});
    if let Some(mib) = mib {
        words.insert(1, "/dev/prezero/mem");
        resources["claims"] = json!([{"name": "memory"}]);
        let template = format!("zeroed-{mib}m");
        spec["resourceClaims"] = json!([{"name": "memory", "resourceClaimTemplateName": template}]);
    }
    spec["containers"] =
        json!([{"name": "main", "image": config::TENANT, "args": words, "resources": resources}]);
    let about = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
}
