// SPDX-License-Identifier: Apache-2.0 OR MIT
use linux::PageBytes;

#[test]
fn a_page_size_is_a_power_of_two_of_at_least_1_kib() {
    assert_eq!(PageBytes::new(0), None);
    assert_eq!(PageBytes::new(512), None);
    assert_eq!(PageBytes::new(3 << 20), None);
    assert_eq!(PageBytes::from_kib(u64::MAX), None);
    assert_eq!(PageBytes::from_kib(2048), PageBytes::new(2 << 20));
}

#[test]
fn prints_the_largest_unit() {
    let print = |bytes| PageBytes::new(bytes).map(|page| page.to_string());
    assert_eq!(print(4096).as_deref(), Some("4 KiB"));
    assert_eq!(print(64 << 10).as_deref(), Some("64 KiB"));
    assert_eq!(print(2 << 20).as_deref(), Some("2 MiB"));
    assert_eq!(print(512 << 20).as_deref(), Some("512 MiB"));
    assert_eq!(print(16 << 30).as_deref(), Some("16 GiB"));
}
