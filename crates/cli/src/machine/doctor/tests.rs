// SPDX-License-Identifier: Apache-2.0 OR MIT

use super::*;
use std::fs;

fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let roots = Roots {
        sys: dir.path().join("sys"),
        proc: dir.path().join("proc"),
        cgroup: dir.path().join("cgroup"),
        dev: dir.path().join("dev"),
        root: dir.path().to_owned(),
    };
    (dir, roots)
}

const POOL: &str = "sys/devices/system/node/node0/hugepages/hugepages-2048kB";

#[test]
fn an_old_kernel_is_bad_and_a_new_one_is_not() {
    for (release, level) in [
        ("5.13.19-generic", Severity::Bad),
        ("5.14.0", Severity::Ok),
        ("6.18.5+deb13", Severity::Ok),
    ] {
        let (_dir, roots) = tree(&[
            ("proc/cpuinfo", "model name : x\n"),
            ("proc/sys/kernel/osrelease", release),
            ("sys/devices/system/node/has_memory", "0\n"),
        ]);
        assert_eq!(kernel(&roots).unwrap()[0].level, level, "{release}");
    }
}

#[test]
fn a_kernel_that_loses_pages_is_warned_of_where_it_does() {
    for (release, on, level) in [
        ("6.12.117+deb13-amd64", "1\n", Severity::Warn),
        ("6.12.117+deb13-amd64", "0\n", Severity::Ok),
        ("6.18.5", "1\n", Severity::Ok),
    ] {
        let (_dir, roots) = tree(&[
            ("proc/cpuinfo", "model name : x\n"),
            ("proc/sys/kernel/osrelease", release),
            ("proc/sys/vm/hugetlb_optimize_vmemmap", on),
        ]);
        assert_eq!(struct_pages(&roots).unwrap()[0].level, level, "{release} {on}");
    }
    let (_dir, roots) =
        tree(&[("proc/cpuinfo", "model name : x\n"), ("proc/sys/kernel/osrelease", "6.12.117")]);
    assert_eq!(struct_pages(&roots).unwrap()[0].level, Severity::Ok, "not built in");
}

#[test]
fn an_empty_pool_is_bad_and_names_the_command_that_fills_it() {
    let (_dir, roots) = tree(&[
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0"),
        ("sys/devices/system/node/has_memory", "0\n"),
        (&format!("{POOL}/nr_hugepages"), "0"),
        (&format!("{POOL}/free_hugepages"), "0"),
        (&format!("{POOL}/surplus_hugepages"), "0"),
    ]);
    let findings = pools(&roots).unwrap();
    let bad = findings.iter().find(|f| f.level == Severity::Bad).unwrap();
    let command = bad.command.as_deref().unwrap();
    assert!(command.starts_with("echo 512 | sudo tee "), "{command}");
    assert!(command.ends_with("node0/hugepages/hugepages-2048kB/nr_hugepages"), "{command}");
}

// Promise P265 (operator): `prezero doctor` says of promised pages when no process maps any.
#[test]
fn unmapped_promises_are_reported_separately() {
    for (maps, says) in [
        ("KernelPageSize:     2048 kB\n", "promised to programs that have mapped them"),
        ("KernelPageSize:        4 kB\n", "promised, and no process maps any"),
    ] {
        let all = "sys/kernel/mm/hugepages/hugepages-2048kB";
        let mut files = vec![("sys/devices/system/node/has_memory".to_owned(), "0\n")];
        for pool in [all, POOL] {
            for name in ["nr", "free", "resv"] {
                files.push((format!("{pool}/{name}_hugepages"), "8"));
            }
            files.push((format!("{pool}/surplus_hugepages"), "0"));
        }
        files.push(("proc/7/smaps".to_owned(), maps));
        let files: Vec<_> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        let (_dir, roots) = tree(&files);
        let findings = pools(&roots).unwrap();
        assert!(findings[0].found.contains(says), "{findings:?}");
        assert_eq!(findings[0].level, Severity::Warn, "none of the eight is free");
    }
}

#[test]
fn fragmented_memory_is_warned_about() {
    let line = |counts: &str| format!("Node 0, zone   Normal {counts}\n");
    for (counts, level) in [
        ("512 0 0 0 0 0 0 0 0 512 512", Severity::Ok),
        ("262144 0 0 0 0 0 0 0 0 1 0", Severity::Warn),
    ] {
        let (_dir, roots) = tree(&[
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0"),
            ("proc/buddyinfo", &line(counts)),
        ]);
        assert_eq!(fragmentation(&roots).unwrap()[0].level, level, "{counts}");
    }
}

#[test]
fn a_check_that_fails_is_a_finding() {
    let (dir, roots) = tree(&[("proc/self/mountinfo", "nonsense")]);
    let findings = examine(&roots, dir.path());
    let kernel = findings.iter().find(|f| f.subject == "kernel").unwrap();
    assert_eq!(kernel.level, Severity::Warn);
    assert!(kernel.found.contains("cpuinfo"), "{}", kernel.found);
}

#[test]
fn huge_pages_are_charged_where_version_2_is_mounted() {
    let files = |controllers: &'static str| {
        tree(&[
            ("proc/self/cgroup", "4:cpu:/a\n0::/system.slice/x.service\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0"),
            ("cgroup/cpu/cgroup.procs", ""),
            ("cgroup/unified/cgroup.controllers", controllers),
            ("cgroup/unified/system.slice/hugetlb.2MB.max", "max\n"),
            ("cgroup/unified/system.slice/hugetlb.2MB.rsvd.max", "1073741824\n"),
            ("cgroup/unified/system.slice/x.service/hugetlb.2MB.max", "4294967296\n"),
        ])
    };
    let (_dir, roots) = files("cpu hugetlb\n");
    let found = &groups(&roots).unwrap()[0].found;
    assert!(found.contains("huge pages are charged, 2M pages up to 1G ("), "{found}");
    assert!(found.contains("system.slice/hugetlb.2MB.rsvd.max"), "{found}");
    let (_dir, roots) = files("cpu\n");
    assert!(groups(&roots).unwrap()[0].found.contains("not charged"), "no controller");
}
