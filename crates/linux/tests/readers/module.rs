// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::os::unix::fs::symlink;

use linux::kernel::{Implementation, LoadedModule, Origin, module};
use testkit::tree;

#[test]
fn module_that_is_loaded_is_read_with_its_parameters() {
    let tree = tree(&[
        ("sys/module/prezero/initstate", "live\n"),
        ("sys/module/prezero/version", "0.1.0\n"),
        ("sys/module/prezero/refcnt", "2\n"),
        ("sys/module/prezero/parameters/verify", "Y\n"),
        ("sys/module/prezero/parameters/ranges", "N\n"),
    ]);
    let module = module::loaded(&tree.roots()).unwrap().unwrap();
    assert_eq!((module.version.as_deref(), module.references), (Some("0.1.0"), 2));
    let parameters: Vec<_> = module.parameters.iter().map(|(n, v)| format!("{n}={v}")).collect();
    assert_eq!(parameters, ["ranges=N", "verify=Y"]);
}

#[test]
fn module_that_comes_or_goes_is_not_loaded() {
    for state in ["coming\n", "going\n"] {
        let tree = tree(&[("sys/module/prezero/initstate", state)]);
        assert_eq!(module::loaded(&tree.roots()).unwrap(), None, "{state}");
    }
    assert_eq!(module::loaded(&tree(&[]).roots()).unwrap(), None);
    let bare = tree(&[("sys/module/prezero/initstate", "live\n")]);
    assert_eq!(module::loaded(&bare.roots()).unwrap(), Some(LoadedModule::default()));
}

#[test]
fn processes_with_the_device_open_are_found() {
    let tree = tree(&[("proc/7/fd/none", ""), ("proc/12/fd/none", ""), ("proc/self/fd/none", "")]);
    let link = |at: &str, to: &str| symlink(to, tree.roots().proc.join(at)).unwrap();
    link("12/fd/3", "/dev/hugepagectl");
    link("12/fd/4", "/dev/hugepagectl");
    link("7/fd/3", "/dev/hugepagectl2");
    link("self/fd/3", "/dev/hugepagectl");
    assert_eq!(module::openers(&tree.roots()), [12]);
}

#[test]
fn origin_is_one_line() {
    let line = |implementation, release: &str| {
        Origin { implementation, release: release.to_owned() }.to_string()
    };
    let module = || Implementation::Module(Some("0.1.0".into()));
    assert_eq!(line(module(), "6.12.117+deb12-amd64"), "module 0.1.0, Linux 6.12.117");
    assert_eq!(line(Implementation::Module(None), "7.3.4"), "module, Linux 7.3.4");
    assert_eq!(line(Implementation::Series, "6.12.57-prezero"), "series, Linux 6.12.57");
    assert_eq!(line(Implementation::Series, "next"), "series, Linux next");
}
