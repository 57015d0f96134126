// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::collections::BTreeSet;

use linux::CpuSet;
use proptest::prelude::*;

#[test]
fn reads_what_the_kernel_prints() {
    let cpus: CpuSet = "0-3,8\n".parse().unwrap();
    assert_eq!(cpus.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 8]);
    assert_eq!(cpus.to_string(), "0-3,8");
    assert!(cpus.contains(8) && !cpus.contains(4));
    assert!("\n".parse::<CpuSet>().unwrap().is_empty(), "a node of memory only has no cpu");
}

#[test]
fn non_list_is_refused() {
    for text in
        ["a", "1,", ",1", "3-1", "1-", "-1", "+1", "0-8:2/4", "1 2", "65536", "0-4294967295"]
    {
        let error = text.parse::<CpuSet>().unwrap_err().to_string();
        assert_eq!(error, format!("list {text:?} is not of the form 0-3,8"));
    }
}

proptest! {
    #[test]
    fn printed_set_reads_back(cpus: BTreeSet<u16>) {
        let set: CpuSet = cpus.iter().copied().map(u32::from).collect();
        prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
    }

    #[test]
    fn no_text_panics(text in "[-0-9, ]{0,40}") {
        let _ = text.parse::<CpuSet>();
    }
}
