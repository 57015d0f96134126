// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The benchmark comes to its end; its figures are free.

use std::process::Command;

use prezero_tests::Page;
use prezero_tests::daemon::binary;
use serde_json::Value;

/// Ratios that only loans back to back give.
const OF_CHURN: [&str; 4] = [
    "churn_cpu_over_populate",
    "churn_ready_at_twice",
    "end_of_loan_ms_p99",
    "pin_check_us_per_gib",
];

#[test]
fn loans_back_to_back_are_measured_and_every_page_is_restored() {
    let page = Page::Mib2;
    // The machine's lock: the benchmark reserves what it needs by itself.
    let Some(guard) = testkit::hugepages::reserve(page.size(), 1) else { return };
    let free = guard.free(page.size());
    let output = Command::new(binary())
        .args(["bench", "churn", "--quick", "--json"])
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for name in OF_CHURN {
        let ratio = &report["ratios"][name];
        assert!(ratio.as_f64().is_some_and(|ratio| ratio > 0.0), "{name} is {ratio}");
    }
    assert_eq!(guard.free(page.size()), free, "of the machine's pages");
}
