// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the parts of the cluster are configured: one node, no secrets, and where this kernel or
//! cgroup version wants something unusual, the reason.

use std::{fs, path::Path};

use anyhow::Result;
use serde_json::json;

use super::node::HERE;
use crate::command;

pub(super) const NODE: &str = "node-1";
/// The node's address, its way out (an unused address), and the API server's as a service.
pub(super) const ADDRESS: &str = "10.99.0.1";
pub(super) const ROUTER: &str = "10.99.0.254";
pub(super) const SERVICE: &str = "10.98.0.1";
/// Of pods, by host-local: one for each node.
const PODS: [&str; 2] = ["10.97.0.0/24", "10.97.1.0/24"];
/// Below which all containers are, so that they can be found and taken away.
pub(super) const CGROUP: &str = "/prezero-cluster";
/// The pools of the node's daemon: 2 MiB pages of both, and pages of a block of the first; blocks
/// of the other are twice as large.
pub(super) const PAGES: u64 = 256;
pub(super) const BLOCK_PAGES: u64 = 32;
/// The pages of the second node's daemon, all wanted ready, in blocks of [`BLOCK_PAGES`].
pub(super) const SECOND_PAGES: u64 = 64;
/// The namespace with a quota of one block.
pub(super) const TIGHT: &str = "tight";

/// What pods run: kubernetes/cluster/tenant.
pub(super) const TENANT: &str = "localhost/tenant:1";

/// Feature gates of API server, controllers and scheduler.
pub(super) const GATES: &str = "DRANodeAllocatableResources=true";
/// The same, without what Kubernetes 1.34 and 1.35 lack.
pub(super) const FEWER_GATES: &str = "DRANodeAllocatableResources=true,DRAConsumableCapacity=false";
const ETCD: &str = "http://127.0.0.1:2379";

/// Writes all files into `dir`.
pub(super) fn write(dir: &Path) -> Result<()> {
    let put = |name: &str, text: String| fs::write(dir.join(name), text);
    // The network is ours alone: a token need not be a secret.
    put(
        "tokens.csv",
        format!(
            "admin,admin,admin,system:masters\nnode,system:node:{NODE},node,system:nodes\n\
             second,system:node:node-2,second,system:nodes\n"
        ),
    )?;
    for user in ["admin", "node", "second"] {
        put(&format!("{user}.conf"), kubeconfig(user).to_string())?;
    }
    let key = dir.join("accounts.key").display().to_string();
    command::stdout(&mut command::new(dir, "openssl", ["genrsa", "-out", &key, "2048"]))?;
    // kubernetes/test/e2e starts the second node, in mounts of its own.
    for (node, pods) in ["first", "second"].iter().zip(PODS) {
        fs::create_dir_all(dir.join(node).join("cni"))?;
        put(&format!("{node}/kubelet.json"), kubelet_file(node).to_string())?;
        put(&format!("{node}/containerd.toml"), containerd_file(node))?;
        put(&format!("{node}/cni/10-pods.conflist"), cni(pods).to_string())?;
    }
    put(
        "second/prezero.toml",
        format!(
            "[tree]\nenabled = false\n[metrics]\nlisten = \"/run/prezero/metrics\"\n{}",
            pool(BLOCK_PAGES, SECOND_PAGES, SECOND_PAGES)
        ),
    )?;
    put(
        "prezero.toml",
        format!(
            "[tree]\nenabled = false\n[agent]\nquota_of = {{ {TIGHT} = \"{}M\" }}\n{}{}",
            BLOCK_PAGES * 2,
            pool(BLOCK_PAGES, PAGES / 2, PAGES / 4),
            pool(2 * BLOCK_PAGES, PAGES / 2, PAGES / 4),
        ),
    )?;
    Ok(())
}

/// At most so many pages, and of those wanted ready, in blocks of this size.
fn pool(block: u64, max: u64, ready: u64) -> String {
    format!(
        "[[pool]]\npage_size = \"2M\"\npages_per_block = {block}\n\
         ready_low = {ready}\nready_high = {ready}\nmax = {max}\nleave_free = 0\n"
    )
}

fn kubeconfig(token: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:443", "insecure-skip-tls-verify": true}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    })
}

pub(super) fn etcd() -> Vec<String> {
    // A cluster that ends with its process needs nothing written down.
    words(&[
        &format!("--listen-client-urls={ETCD}"),
        &format!("--advertise-client-urls={ETCD}"),
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--data-dir=/var/lib/etcd",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ])
}

pub(super) fn apiserver(gates: &str) -> Vec<String> {
    words(&[
        "kube-apiserver",
        &format!("--etcd-servers={ETCD}"),
        // Equal to a service's port, since no proxy translates.
        "--secure-port=443",
        &format!("--advertise-address={ADDRESS}"),
        "--service-cluster-ip-range=10.98.0.0/24",
        &format!("--cert-dir={HERE}/certs"),
        &format!("--token-auth-file={HERE}/tokens.csv"),
        "--service-account-issuer=https://kubernetes.default.svc",
        &format!("--service-account-key-file={HERE}/accounts.key"),
        &format!("--service-account-signing-key-file={HERE}/accounts.key"),
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--kubelet-preferred-address-types=InternalIP",
        &format!("--feature-gates={gates}"),
    ])
}

pub(super) fn controllers(gates: &str) -> Vec<String> {
    words(&[
        "kube-controller-manager",
        &format!("--kubeconfig={HERE}/admin.conf"),
        "--leader-elect=false",
        &format!("--service-account-private-key-file={HERE}/accounts.key"),
        // What the API server has made for itself; pods find it beside their token.
        &format!("--root-ca-file={HERE}/certs/apiserver.crt"),
        &format!("--cert-dir={HERE}/certs"),
        &format!("--feature-gates={gates}"),
    ])
}

pub(super) fn scheduler(gates: &str) -> Vec<String> {
    words(&[
        "kube-scheduler",
        &format!("--kubeconfig={HERE}/admin.conf"),
        // For those that read its metrics.
        &format!("--authentication-kubeconfig={HERE}/admin.conf"),
        &format!("--authorization-kubeconfig={HERE}/admin.conf"),
        "--leader-elect=false",
        &format!("--feature-gates={gates}"),
    ])
}

pub(super) fn kubelet() -> Vec<String> {
    words(&[
        "kubelet",
        &format!("--kubeconfig={HERE}/node.conf"),
        &format!("--config={HERE}/first/kubelet.json"),
        &format!("--hostname-override={NODE}"),
        &format!("--node-ip={ADDRESS}"),
        &format!("--cert-dir={HERE}/certs"),
        "--v=2",
    ])
}

fn kubelet_file(node: &str) -> serde_json::Value {
    let mut file = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        // The node's network has only the test on it.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        // A machine under systemd or with cgroup v1 is as good for this.
        "cgroupDriver": "cgroupfs", "failCgroupV1": false, "cgroupsPerQOS": true,
        "cgroupRoot": CGROUP, "enforceNodeAllocatable": [],
        "failSwapOn": false, "resolvConf": "",
        // What else is on this machine is no reason to evict.
        "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "0%", "nodefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "5s", "syncFrequency": "10s",
        "featureGates": {"DRANodeAllocatableResources": true},
    });
    if node == "second" {
        file["port"] = 10_251.into();
        file["healthzPort"] = 10_252.into();
        file["cgroupRoot"] = format!("{CGROUP}/second").into();
    }
    file
}

fn containerd_file(node: &str) -> String {
    let cri = "plugins.\"io.containerd.cri.v1";
    format!(
        "version = 3\n\
         disabled_plugins = [\"io.containerd.nri.v1.nri\"]\n\
         [{cri}.images\".pinned_images]\nsandbox = \"{pause}\"\n\
         [{cri}.runtime\"]\nenable_cdi = true\ncdi_spec_dirs = [\"/run/cdi\"]\n\
         # Not every sandbox may lower a process's oom_score_adj, and runc fails where it cannot.\n\
         restrict_oom_score_adj = true\n\
         [{cri}.runtime\".cni]\nconf_dir = \"{HERE}/{node}/cni\"\nbin_dirs = [\"/usr/lib/cni\"]\n\
         [{cri}.runtime\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
         [{cri}.runtime\".containerd.runtimes.runc.options]\nSystemdCgroup = false\n",
        pause = TENANT,
    )
}

fn cni(pods: &str) -> serde_json::Value {
    // Of the plugins the one that needs neither a bridge nor a packet filter.
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    ]})
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}
