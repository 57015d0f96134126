// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Open vSwitch with DPDK: a switch in user space between two ports that make packets by
//! themselves.
//!
//! It runs in namespaces of its own, where its bridge's network device is, and ends with the test.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use units::Pages;

use prezero_tests::{Daemon, Page};
use testkit::hugepages;

use super::{Program, assert_returned, assert_served, is_wanted, run, succeeded, until};

const PAGE: Page = Page::Mib2;
/// What it is to have at once, by `dpdk-socket-mem`.
const AT_ONCE: u64 = 32;
/// With what its ports take.
const PAGES: u64 = 150;
const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";

/// The database and its settings before the switch starts; then `"$@"`, the switch.
const SCENE: &str = r#"
set -eu
db=unix:$OVS_RUNDIR/db.sock
set_all() { ovs-vsctl --db=$db --no-wait -- set Open_vSwitch . "$@"; }
ovsdb-tool create $OVS_RUNDIR/conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server $OVS_RUNDIR/conf.db --remote=p$db --detach --no-chdir --pidfile
ovs-vsctl --db=$db --no-wait init
set_all other_config:dpdk-init=true other_config:per-port-memory=true \
  other_config:dpdk-socket-mem=64 other_config:pmd-cpu-mask=1 \
  other_config:dpdk-extra="--no-pci --no-telemetry --iova-mode=va"
"$@" $db --unixctl=$OVS_RUNDIR/switch.ctl
"#;

struct Switch {
    program: Program,
    dir: std::path::PathBuf,
}

impl Switch {
    fn start(daemon: &Daemon, log: &Path) -> Self {
        let dir = daemon.scratch().join("ovs");
        std::fs::create_dir(&dir).expect("our own directory");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--net", "--pid", "--fork"]);
        command.args(["--kill-child", "--mount-proc", "--", "sh", "-c", SCENE, "sh"]);
        let shim = run(daemon, log, &["--only", "ovs-vswitchd-dpdk"]);
        command.arg(shim.get_program()).args(shim.get_args()).arg(SWITCH);
        command.env("PREZERO_WAIT_MS", "5000");
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(name, &dir);
        }
        let program = Program::start(&mut command, &dir.join("log"));
        let mut switch = Self { program, dir };
        until("the switch has its memory", || {
            assert!(switch.program.is_running(), "it ended: {}", switch.said());
            let answer = switch.vsctl(&["get", "Open_vSwitch", ".", "dpdk_initialized"]);
            (answer.status.success() && answer.stdout == b"true\n").then_some(())
        });
        switch
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn vsctl(&self, arguments: &[&str]) -> std::process::Output {
        let socket = format!("--db=unix:{}", self.dir.join("db.sock").display());
        let mut command = Command::new("ovs-vsctl");
        command.env("OVS_LOGDIR", &self.dir).arg(socket).arg("--timeout=20").args(arguments);
        command.output().expect("ovs-vsctl runs")
    }

    /// Packets that have come in by a port.
    fn received(&self, port: &str) -> u64 {
        let said = self.vsctl(&["get", "Interface", port, "statistics:rx_packets"]);
        String::from_utf8_lossy(&said.stdout).trim().parse().unwrap_or(0)
    }

    fn stop(mut self) {
        let control = self.dir.join("switch.ctl");
        let mut command = Command::new("ovs-appctl");
        succeeded(&command.arg("-t").arg(control).arg("exit").output().expect("ovs-appctl runs"));
        until("the switch ends", || (!self.program.is_running()).then_some(()));
    }
}

// Promise P191 (programs): A switch of Open vSwitch with DPDK, as it is, forwards on lent memory
// and returns all of it.
#[test]
fn a_switch_of_dpdk_forwards_on_lent_pages_and_returns_them() {
    if is_wanted("ovs-vsctl", "openvswitch-switch-dpdk dpdk-dev").is_none() {
        return;
    }
    let Some(reserved) = hugepages::reserve(PAGE.size(), PAGES) else { return };
    let daemon = Daemon::start_with(Some(reserved), &PAGE.pool(""), &[]);
    daemon.zero("max");
    let log = daemon.scratch().join("shim.log");
    let switch = Switch::start(&daemon, &log);
    assert!(assert_served(&log).len() as u64 >= AT_ONCE);
    assert!(daemon.pool().lent_pages >= Pages(AT_ONCE), "{:?}", daemon.pool());
    succeeded(
        &switch.vsctl(
            &[
                &["add-br", "br0", "--", "set", "Bridge", "br0", "datapath_type=netdev"][..],
                &["--", "add-port", "br0", "p0", "--", "set", "Interface", "p0", "type=dpdk"],
                &["options:dpdk-devargs=net_null0"],
                &["--", "add-port", "br0", "p1", "--", "set", "Interface", "p1", "type=dpdk"],
                &["options:dpdk-devargs=net_null1"],
            ]
            .concat(),
        ),
    );
    for port in ["p0", "p1"] {
        until("packets come in", || {
            std::thread::sleep(Duration::from_millis(100));
            (switch.received(port) > 0).then_some(())
        });
    }
    assert!(daemon.pool().lent_pages > Pages(AT_ONCE), "the ports' packets lie in lent pages");
    switch.stop();
    assert_returned(&daemon);
}
