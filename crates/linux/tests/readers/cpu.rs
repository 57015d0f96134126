// SPDX-License-Identifier: Apache-2.0 OR MIT
use linux::cpu::{self, CpuModel};
use testkit::tree;

#[test]
fn describes_an_x86_host() {
    let tree = tree(&[
        (
            "proc/cpuinfo",
            "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t\t: 17\n\
             model name\t: AMD EPYC 9R14\nflags\t\t: fpu clzero hypervisor\n\nprocessor\t: 1\n",
        ),
        ("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
    ]);
    let expected = CpuModel {
        vendor: "AuthenticAMD".into(),
        model: "AMD EPYC 9R14".into(),
        governor: Some("performance".into()),
        is_virtual: true,
        kernel_release: "6.1.0-18-amd64".into(),
    };
    assert_eq!(cpu::describe(&tree.roots()).unwrap(), expected);
}

#[test]
fn describes_an_arm_host_by_its_numbers() {
    let tree = tree(&[
        ("proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"),
        ("proc/sys/kernel/osrelease", "6.12.0\n"),
    ]);
    let machine = cpu::describe(&tree.roots()).unwrap();
    assert_eq!(
        (machine.vendor.as_str(), machine.model.as_str()),
        ("implementer 0x41", "part 0xd0c")
    );
    assert_eq!((machine.governor, machine.is_virtual), (None, false));
}
