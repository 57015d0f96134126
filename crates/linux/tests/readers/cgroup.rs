// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::time::Duration;

use linux::cgroup::{self, Group, Kind};
use testkit::tree;

#[test]
fn a_unified_host_has_one_group() {
    let tree = tree(&[
        ("cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids\n"),
        ("cgroup/system.slice/w/cpu.stat", "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\n"),
        ("proc/self/cgroup", "0::/system.slice/w\n"),
    ]);
    let own = cgroup::own(&tree.roots()).unwrap();
    let [group] = own.as_slice() else { panic!("{own:?}") };
    assert_eq!((group.kind(), group.path()), (Kind::V2, "/system.slice/w"));
    assert_eq!(group.dir(), tree.roots().cgroup.join("system.slice/w"));
    assert_eq!(group.cpu_time().unwrap(), Some(Duration::from_millis(1500)));
}

#[test]
fn a_hybrid_host_has_one_group_per_hierarchy() {
    let tree = tree(&[
        ("cgroup/unified/cgroup.controllers", "\n"),
        ("cgroup/cpu/cgroup.procs", ""),
        ("cgroup/cpuacct/cgroup.procs", ""),
        ("cgroup/cpuacct/a/cpuacct.usage", "2000000000\n"),
        ("proc/self/cgroup", "7:blkio:/\n2:cpu,cpuacct:/a\n1:name=systemd:/init\n0::/b\n"),
    ]);
    let roots = tree.roots();
    assert_eq!(cgroup::mounted(&roots), [Kind::V2, Kind::V1Cpu, Kind::V1Cpuacct]);
    let own = cgroup::own(&roots).unwrap();
    let seen: Vec<_> = own.iter().map(|group| (group.kind(), group.path())).collect();
    assert_eq!(seen, [(Kind::V2, "/b"), (Kind::V1Cpu, "/a"), (Kind::V1Cpuacct, "/a")]);
    assert_eq!(own[0].dir(), roots.cgroup.join("unified/b"));
    assert_eq!(own[1].cpu_time().unwrap(), None, "the cpu controller counts no time");
    assert_eq!(own[2].cpu_time().unwrap(), Some(Duration::from_secs(2)));
}

#[test]
fn a_hierarchy_that_is_not_mounted_is_left_out() {
    let tree = tree(&[("proc/self/cgroup", "4:hugetlb:/x\n0::/x\n")]);
    assert_eq!(cgroup::own(&tree.roots()).unwrap(), []);
    assert_eq!(Group::at(&tree.roots(), Kind::V1Hugetlb, "/x").unwrap(), None);
}

#[test]
fn joining_writes_to_the_group_of_that_path_everywhere() {
    let tree = tree(&[
        ("cgroup/unified/cgroup.controllers", ""),
        ("cgroup/unified/w/cgroup.procs", "17\n18\n"),
        ("cgroup/cpuacct/cgroup.procs", ""),
        ("cgroup/cpuacct/w/cgroup.procs", ""),
    ]);
    let groups = cgroup::everywhere(&tree.roots(), "/w").unwrap();
    assert_eq!(groups[0].pids().unwrap(), [17, 18]);
    groups[1].add(42).unwrap();
    assert_eq!(tree.content("cgroup/cpuacct/w/cgroup.procs"), "42");
    let missing = cgroup::everywhere(&tree.roots(), "/none").unwrap();
    let error = missing[0].join().unwrap_err().to_string();
    assert!(error.ends_with("(no such file or directory): the group does not exist"), "{error}");
}

#[test]
fn a_path_cannot_leave_the_hierarchy() {
    let tree = tree(&[("cgroup/cgroup.controllers", "")]);
    for path in ["", "relative", "/a/../../etc", "/.."] {
        let error = cgroup::everywhere(&tree.roots(), path).unwrap_err().to_string();
        assert_eq!(error, format!("cgroup {path:?} is not an absolute path without .."));
    }
}

#[test]
fn a_line_of_another_form_is_an_error() {
    let tree = tree(&[("proc/self/cgroup", "0:/\n")]);
    let error = cgroup::own(&tree.roots()).unwrap_err().to_string();
    assert!(error.ends_with("expected ID:CONTROLLERS:PATH, found \"0:/\""), "{error}");
}

#[test]
fn any_process_has_its_own_groups() {
    let tree = tree(&[
        ("cgroup/cgroup.controllers", "cpu\n"),
        ("proc/self/cgroup", "0::/me\n"),
        ("proc/17/cgroup", "0::/them\n"),
    ]);
    let them = cgroup::of_process(&tree.roots(), 17).unwrap();
    assert_eq!(them[0].path(), "/them");
    assert!(cgroup::of_process(&tree.roots(), 18).unwrap_err().is_not_found());
}
