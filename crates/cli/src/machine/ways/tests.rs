// SPDX-License-Identifier: Apache-2.0 OR MIT

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use linux::kernel::{Origin, Support, offer};
use testkit::{Tree, tree};

use super::*;

const RELEASE: &str = "6.12.117+deb12-amd64";
const CONFIG: &str = "CONFIG_MODULES=y\nCONFIG_HUGETLBFS=y\nCONFIG_NUMA=y\nCONFIG_KPROBES=y\n\
                      CONFIG_KALLSYMS_ALL=y\nCONFIG_DYNAMIC_FTRACE_WITH_ARGS=y\n";
const KALLSYMS: &str = "\
0000000000000000 T folio_zero_user
0000000000000000 T free_huge_folio
0000000000000000 T alloc_hugetlb_folio
0000000000000000 D hstates
0000000000000000 D hugetlb_max_hstate
0000000000000000 D hugetlb_lock
0000000000000000 t dequeue_hugetlb_folio_nodemask
0000000000000000 t enqueue_hugetlb_folio
0000000000000000 t remove_hugetlb_folio
0000000000000000 t remove_pool_hugetlb_folio
0000000000000000 D node_devices
";
/// A path of this kernel's modules.
fn of_modules(below: &str) -> String {
    format!("lib/modules/{RELEASE}/{below}")
}

/// A stock host that can have the module, with more files or others.
fn host(more: &[(&str, &str)]) -> Tree {
    let config = format!("boot/config-{RELEASE}");
    let headers = of_modules("build/include/linux.h");
    let mut files = vec![
        ("proc/sys/kernel/osrelease", RELEASE),
        ("proc/kallsyms", KALLSYMS),
        (config.as_str(), CONFIG),
        (headers.as_str(), ""),
        ("sys/kernel/security/lockdown", "[none] integrity confidentiality\n"),
    ];
    files.extend(more);
    tree(&files)
}

fn ways(tree: &Tree) -> Ways {
    find(&tree.roots(), &offer::probe(&tree.roots()).unwrap_or_else(|_| stock())).unwrap()
}

fn stock() -> Offer {
    let kernel = Support::Stock;
    Offer {
        kernel,
        query_bytes: None,
        files: false,
        watch_zeroable: None,
        missing: None,
        origin: None,
    }
}

/// The finding's words of a host with these files.
fn finding(more: &[(&str, &str)]) -> (Severity, String, String) {
    let Finding { level, found, command, .. } = ways(&host(more)).finding();
    (level, found, command.unwrap_or_default())
}

// Promise P294 (operator): `prezero doctor` says which of stock, module and series a host uses and
// can have, with the reason where not and one command.
#[test]
fn stock_host_that_can_have_it_gets_the_package() {
    let (level, found, command) = finding(&[]);
    assert_eq!((level, found.as_str()), (Severity::Ok, "stock; this kernel can have the module"));
    assert_eq!(command, "sudo apt install prezero-dkms && sudo prezero module load");
}

// Promise P294.
#[test]
fn missing_headers_are_named_for_the_distribution() {
    let gone = host(&[("usr/src/prezero-0.1.0/dkms.conf", "")]);
    std::fs::remove_dir_all(gone.roots().root.join(of_modules("build"))).unwrap();
    let unbuilt = ways(&gone);
    assert_eq!(unbuilt.module, Stage::Unbuilt);
    assert_eq!(unbuilt.because.as_deref(), Some("the headers of 6.12.117+deb12-amd64 are missing"));
    let apt = "sudo apt install linux-headers-6.12.117+deb12-amd64";
    assert_eq!(unbuilt.command.as_deref(), Some(apt));
    std::fs::create_dir_all(gone.roots().root.join("usr/bin/dnf")).unwrap();
    let dnf = "sudo dnf install kernel-devel-6.12.117+deb12-amd64";
    assert_eq!(ways(&gone).command.as_deref(), Some(dnf));
}

// Promise P294.
#[test]
fn failed_build_names_the_log_and_the_command() {
    let (level, found, command) = finding(&[("usr/src/prezero-0.1.0/dkms.conf", "")]);
    assert_eq!(level, Severity::Warn);
    assert!(found.contains("DKMS has not built prezero-dkms 0.1.0"), "{found}");
    assert_eq!(command, "sudo dkms install prezero/0.1.0 -k 6.12.117+deb12-amd64");
}

// Promise P294.
#[test]
fn built_module_should_be_loaded() {
    for built in ["updates/dkms/prezero.ko.xz: kernel/a.ko\n", "extra/prezero.ko:\n"] {
        let (level, found, command) = finding(&[(&of_modules("modules.dep"), built)]);
        assert_eq!(level, Severity::Warn, "{built}");
        assert_eq!(found, "stock; the module is built and not loaded");
        assert_eq!(command, "sudo prezero module load");
    }
    let other = finding(&[(&of_modules("modules.dep"), "extra/prezero.koala: prezero.ko\n")]);
    assert_eq!(other.0, Severity::Ok, "{other:?}");
}

// Promise P294.
#[test]
fn kernel_that_takes_signed_modules_alone_says_so() {
    let dependencies = of_modules("modules.dep");
    let built = (dependencies.as_str(), "updates/dkms/prezero.ko:\n");
    let lockdown = ("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
    let enforced = ("sys/module/module/parameters/sig_enforce", "Y\n");
    let (_, found, _) = finding(&[built, lockdown]);
    assert!(found.ends_with("(lockdown=integrity: signed modules alone)"), "{found}");
    let (_, found, _) = finding(&[built, enforced]);
    assert!(found.ends_with("(module.sig_enforce=1: signed modules alone)"), "{found}");
}

// Promise P294.
#[test]
fn kernel_without_an_option_or_a_symbol_cannot_have_it() {
    for option in ["CONFIG_MODULES", "CONFIG_KPROBES", "CONFIG_DYNAMIC_FTRACE_WITH_ARGS"] {
        let config = CONFIG.replace(&format!("{option}=y"), &format!("# {option} is not set"));
        let (level, found, command) = finding(&[(&format!("boot/config-{RELEASE}"), &config)]);
        assert_eq!((level, command.as_str()), (Severity::Ok, ""), "{option}");
        assert!(found.ends_with(&format!("was built without {option})")), "{found}");
    }
    let with_regs = CONFIG.replace("WITH_ARGS", "WITH_REGS");
    assert_eq!(finding(&[(&format!("boot/config-{RELEASE}"), &with_regs)]), finding(&[]));
    let older = KALLSYMS.replace("folio_zero_user", "clear_huge_page");
    assert_eq!(finding(&[("proc/kallsyms", &older)]), finding(&[]));
    // What another module has by that name is no symbol of the kernel's.
    let of_another = KALLSYMS.replace("hstates\n", "hstates [other]\n");
    let (_, found, _) = finding(&[("proc/kallsyms", &of_another)]);
    assert!(found.contains("has no hstates in /proc/kallsyms"), "{found}");
}

#[test]
fn configuration_of_the_kernel_itself_is_read_first() {
    let host = host(&[]);
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(b"CONFIG_MODULES=y\nCONFIG_HUGETLBFS=y\nCONFIG_NUMA=y\n").unwrap();
    std::fs::write(host.roots().proc.join("config.gz"), packed.finish().unwrap()).unwrap();
    let because = ways(&host).because.unwrap();
    assert!(because.ends_with("was built without CONFIG_KPROBES"), "{because}");
}

#[test]
fn host_without_configuration_or_symbols_may_try() {
    let bare = tree(&[("proc/sys/kernel/osrelease", "6.12.1"), ("proc/kallsyms", "")]);
    let ways = ways(&bare);
    assert_eq!(ways.module, Stage::Possible);
    let command = "sudo apt install linux-headers-6.12.1 prezero-dkms && sudo prezero module load";
    assert_eq!(ways.command.as_deref(), Some(command));
}

#[test]
fn other_machines_cannot_have_it() {
    let facts = Facts { arch: "riscv64", ..facts::look(&host(&[]).roots()).unwrap() };
    let ways = of_stock(&facts, Installer::Apt);
    assert_eq!(ways.module, Stage::Impossible);
    assert_eq!(
        ways.because.as_deref(),
        Some("the module is for x86_64 and aarch64, this is riscv64")
    );
}

#[test]
fn module_and_series_in_use_ask_for_nothing() {
    let host = host(&[]);
    for (implementation, uses, stage) in [
        (Implementation::Module(Some("0.1.0".into())), Way::Module, Stage::Loaded),
        (Implementation::Series, Way::Series, Stage::Needless),
    ] {
        let origin = Origin { implementation, release: RELEASE.into() };
        let offer = Offer { kernel: Support::OURS, origin: Some(origin), ..stock() };
        let ways = find(&host.roots(), &offer).unwrap();
        assert_eq!((ways.uses, ways.module), (uses, stage));
        let Finding { level, command, change, .. } = ways.finding();
        assert_eq!((level, command, change), (Severity::Ok, None, None));
    }
}

#[test]
fn json_has_the_way_the_stage_the_reason_and_the_command() {
    let host = host(&[("usr/src/prezero-0.1.0/dkms.conf", "")]);
    let json = serde_json::to_value(ways(&host)).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "uses": "stock", "kernel": RELEASE, "module": "unbuilt",
            "because": format!("DKMS has not built prezero-dkms 0.1.0 for {RELEASE}"),
            "command": format!("sudo dkms install prezero/0.1.0 -k {RELEASE}"),
        })
    );
}
