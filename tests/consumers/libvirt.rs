// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libvirtd and virsh, as `docs/guides/libvirt.md` has it: what that page says to write is read
//! from it, and only paths are exchanged.
//!
//! libvirtd runs in namespaces of its own: its files, the user that it gives to QEMU, and the
//! directory of huge pages are there alone, and nothing of it outlives the test. The guest finds
//! its memory zero, writes all of it and reads it back.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use units::Uid;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prezero_tests::daemon::binary;
use prezero_tests::{Daemon, Page, c};
use testkit::hugepages;

use super::{Program, assert_returned, assert_served, installed, is_wanted, succeeded, until};

const PAGE: Page = Page::Mib2;
/// As the domain's memory.
const PAGES: u64 = 64;
/// As Debian's package makes the user; the group `kvm` has no number of its own.
const LIBVIRT_QEMU: u32 = 64055;
const KVM: u32 = 64056;

/// What `unshare` runs as the first process of its namespaces: the directories that Debian's
/// packages make, users and groups as they make them, a hugetlbfs, and libvirtd. The shell is its
/// parent and waits for what libvirtd detaches.
const SCENE: &str = r#"
set -eu
umount -R -l /sys/fs/cgroup || :
for dir in /run /etc/libvirt /var/lib /var/log /var/cache; do mount -t tmpfs none $dir; done
{ grep -v -e ^libvirt-qemu: -e ^kvm: /etc/group; echo "kvm:x:$KVM:"
  echo "libvirt-qemu:x:$LIBVIRT_QEMU:libvirt-qemu"; } > /run/group
{ grep -v ^libvirt-qemu: /etc/passwd
  echo "libvirt-qemu:x:$LIBVIRT_QEMU:$KVM::/var/lib/libvirt:/usr/sbin/nologin"; } > /run/passwd
mount --bind /run/group /etc/group
mount --bind /run/passwd /etc/passwd
mkdir /run/hugepages
mount -t hugetlbfs -o pagesize=2M none /run/hugepages
cp "$1/qemu.conf" /etc/libvirt/qemu.conf
/usr/sbin/libvirtd --config "$1/libvirtd.conf" &
wait $!
"#;

/// The indented lines of the page that begin with one that has `first`, up to the next text.
fn page_says(first: &str) -> String {
    let page = include_str!("../../docs/guides/libvirt.md");
    let mut lines = page.lines().skip_while(|line| !line.contains(first));
    let block: Vec<_> = lines.by_ref().map_while(|line| line.strip_prefix("    ")).collect();
    assert!(!block.is_empty(), "the page has no block that begins with {first}");
    block.join("\n")
}

struct Stage {
    daemon: Daemon,
    libvirtd: Program,
    dir: PathBuf,
}

impl Stage {
    /// A daemon with the domain's memory ready, `blocks` of it, and libvirtd.
    fn set(blocks: u64) -> Option<Self> {
        is_wanted("libvirtd", "libvirt-daemon libvirt-daemon-driver-qemu")?;
        installed("virsh", "libvirt-clients")?;
        installed("qemu-system-x86_64", "qemu-system-x86")?;
        let reserved = hugepages::reserve(PAGE.size(), PAGES)?;
        let group = page_says("lend_group").replace("\"kvm\"", &format!("\"{KVM}\""));
        let pool = PAGE.pool(&format!("pages_per_block = {}", PAGES / blocks));
        let daemon = Daemon::start_with(Some(reserved), &format!("{group}\n{pool}"), &[]);
        let dir = daemon.scratch().join("libvirt");
        std::fs::create_dir(&dir).expect("our own directory");
        let _guest = c::compile_with("guest", &dir, c::GUEST);
        let write = |name: &str, text: &str| {
            std::fs::write(dir.join(name), text).expect("our own directory");
        };
        let open = |name: &str, mode: u32| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(dir.join(name), mode).expect("our own file");
        };
        let configured = page_says("hugetlbfs_mount").replace("/dev/hugepages", "/run/hugepages");
        // There is no virtlogd.
        write("qemu.conf", &format!("{configured}\nstdio_handler = \"file\"\n"));
        write("libvirtd.conf", &format!("unix_sock_dir = \"{}\"\n", dir.display()));
        write("shim.log", "");
        open("shim.log", 0o666);
        // libvirt gives the emulator an environment of its own.
        let wrapper = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/prezero-qemu");
        let emulator = format!(
            "#!/bin/sh\nexport PREZERO={} PREZERO_SOCKET={} PREZERO_SHIM_LOG={} PREZERO_WAIT_MS=5000\n\
             exec sh {} \"$@\"\n",
            binary().display(),
            daemon.socket().display(),
            dir.join("shim.log").display(),
            wrapper.canonicalize().expect("it is there").display(),
        );
        write("emulator", &emulator);
        open("emulator", 0o755);
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]);
        command.args(["--mount-proc", "--", "sh", "-c", SCENE, "sh"]).arg(&dir);
        command.env("KVM", KVM.to_string()).env("LIBVIRT_QEMU", LIBVIRT_QEMU.to_string());
        let libvirtd = Program::start(&mut command, &dir.join("libvirtd.log"));
        let mut stage = Self { daemon, libvirtd, dir };
        until("libvirtd answers", || {
            assert!(stage.libvirtd.is_running(), "libvirtd ended: {}", stage.said("libvirtd.log"));
            stage.try_virsh(&["list"]).status.success().then_some(())
        });
        Some(stage)
    }

    fn said(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.join(name)).unwrap_or_default()
    }

    fn try_virsh(&self, arguments: &[&str]) -> Output {
        let socket = self.dir.join("libvirt-sock");
        let uri = format!("qemu+unix:///system?socket={}", socket.display());
        let mut command = Command::new("timeout");
        command.args(["300", "virsh", "-q", "-c", &uri]).args(arguments);
        command.output().expect("virsh runs")
    }

    #[track_caller]
    fn virsh(&self, arguments: &[&str]) -> String {
        let output = self.try_virsh(arguments);
        let log = self.said("shim.log") + &self.said("libvirtd.log");
        assert!(output.status.success(), "{arguments:?}: {output:?}\n{log}");
        succeeded(&output).trim().to_owned()
    }

    /// Defines a domain with its memory as the page says, with `memory` made of that, and `more`.
    fn define(&self, memory: impl Fn(String) -> String, more: &str) {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let console = format!(
            "<serial type='file'><source path='{}'/><target type='isa-debug' port='0'>\
             <model name='isa-debugcon'/></target></serial></devices>",
            path("console")
        );
        let said = memory(page_says("<memoryBacking>"))
            .replace("/usr/lib/prezero/prezero-qemu", &path("emulator"))
            .replace("</devices>", &console);
        let mebibytes = PAGE.times(PAGES).0 >> 20;
        let domain = format!(
            "<domain type='qemu'><name>guest</name><memory unit='MiB'>{mebibytes}</memory>\
             <vcpu>2</vcpu><os><type arch='x86_64' machine='q35'>hvm</type>\
             <kernel>{}</kernel></os>{more}{said}</domain>",
            path("guest")
        );
        std::fs::write(self.dir.join("guest.xml"), domain).expect("our own directory");
        self.virsh(&["define", &path("guest.xml")]);
    }

    /// Starts the domain and waits for what its guest says; checks that all of its memory is lent,
    /// in this number of loans. The process that has them is QEMU's.
    #[track_caller]
    fn start(&self, loans: usize) -> Pid {
        self.daemon.zero("max");
        let _ = std::fs::remove_file(self.dir.join("console"));
        self.virsh(&["start", "guest"]);
        let log = || self.said("shim.log") + &self.said("libvirtd.log");
        let verdict = until("the guest's verdict", || {
            let said = self.said("console");
            said.ends_with('\n').then_some(said)
        });
        assert_eq!(verdict.trim(), "zero kept", "{}", log());
        assert_served(&self.dir.join("shim.log"));
        let lent = self.daemon.status().loans;
        let pages: u64 = lent.iter().map(|loan| loan.ready_pages.0).sum();
        assert_eq!((pages, lent.len()), (PAGES, loans), "{lent:?}\n{}", log());
        assert!(lent.iter().all(|loan| loan.uid == Uid(LIBVIRT_QEMU)), "{lent:?}");
        let pid = lent[0].pid.expect("a loan of now");
        assert!(lent.iter().all(|loan| loan.pid == Some(pid)), "{lent:?}");
        Pid::from_raw(i32::try_from(pid).expect("a pid"))
    }

    /// The domain is shut off, for this reason, and nothing of it is left.
    fn is_gone(&self, reason: &str) {
        let state = || self.virsh(&["domstate", "--reason", "guest"]);
        let wanted = format!("shut off ({reason})");
        until(&wanted, || (state() == wanted).then_some(()));
        assert_returned(&self.daemon);
        assert!(self.daemon.status().loans.is_empty());
        let inside = std::fs::read_dir(format!("/proc/{}/root/run/hugepages", self.first_pid()));
        let left = inside.expect("root looks").map(|entry| entry.expect("an entry").path());
        let below = |path: PathBuf| path.join("qemu").join("guest").exists();
        assert!(left.into_iter().all(|path| !below(path)), "a file of the domain's is left");
    }

    /// The first process of libvirtd's namespaces.
    fn first_pid(&self) -> String {
        let of = self.libvirtd.pid();
        let children = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children"));
        children.expect("our own child").trim().to_owned()
    }
}

/// Starts the domain as it was defined: destroyed, and with its emulator killed.
fn starts_and_ends(stage: &Stage, loans: usize) {
    stage.start(loans);
    stage.virsh(&["destroy", "guest"]);
    stage.is_gone("destroyed");
    let qemu = stage.start(loans);
    kill(qemu, Signal::SIGKILL).expect("root");
    stage.is_gone("crashed");
    stage.virsh(&["undefine", "guest"]);
}

// Promise P190 (programs): A domain of libvirt's, defined as the page says, starts on lent memory
// and returns all of it, destroyed or with its emulator killed: memfds of two guest nodes, files
// in a directory, shared or private.
#[test]
fn two_node_domain_has_lent_memfds_and_returns_them_at_any_end() {
    let Some(stage) = Stage::set(2) else { return };
    let half = (PAGE.times(PAGES).0 >> 20) / 2;
    let more = format!(
        "<numatune><memory mode='strict' nodeset='0'/></numatune>\
         <cpu><numa><cell id='0' cpus='0' memory='{half}' unit='MiB'/>\
         <cell id='1' cpus='1' memory='{half}' unit='MiB'/></numa></cpu>"
    );
    stage.define(|memory| memory, &more);
    starts_and_ends(&stage, 2);
}

// Promise P190.
#[test]
fn domain_with_directory_files_returns_lent_memory_at_any_end() {
    let Some(stage) = Stage::set(1) else { return };
    for shared in [true, false] {
        let directory = |memory: String| {
            let source = "<source type='memfd'/>";
            assert!(memory.contains(source), "{memory}");
            let memory = memory.replace(source, "");
            if shared { memory } else { memory.replace("<access mode='shared'/>", "") }
        };
        stage.define(directory, "");
        starts_and_ends(&stage, 1);
    }
}

// Promise P190.
/// AppArmor's parser takes the rules that the package brings; no kernel is asked to enforce them.
#[test]
fn the_rules_for_apparmor_are_rules() {
    if is_wanted("apparmor_parser", "apparmor").is_none() {
        return;
    }
    // Its lines are what echo writes, and where to.
    let page = page_says("abstractions/prezero");
    let rules: Vec<_> = page.lines().filter_map(|line| line.split('\'').nth(1)).collect();
    let [included, started] = rules[..] else { panic!("{page}") };
    let brought = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/apparmor/prezero");
    let brought = std::fs::read_to_string(brought).expect("our own file");
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("abstractions")).expect("our own directory");
    let parse = |brought: &str| {
        std::fs::write(dir.path().join("abstractions/prezero"), brought).expect("our own file");
        let profiles = format!(
            "#include <tunables/global>\n\
             profile domain flags=(attach_disconnected) {{\n{included}\n}}\n\
             profile libvirtd {{\n{started}\n}}\n"
        );
        std::fs::write(dir.path().join("profiles"), profiles).expect("our own file");
        let mut command = Command::new("apparmor_parser");
        command.args(["--skip-kernel-load", "--skip-cache", "-I"]).arg(dir.path());
        command.args(["-I", "/etc/apparmor.d"]).arg(dir.path().join("profiles"));
        command.output().expect("the parser runs")
    };
    succeeded(&parse(&brought));
    assert!(!parse(&brought.replace(" rix,", " rix")).status.success(), "the parser looks");
}
