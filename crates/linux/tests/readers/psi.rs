// SPDX-License-Identifier: Apache-2.0 OR MIT
use linux::psi;
use testkit::tree;

#[test]
fn reads_the_machines_cpu_and_memory() {
    let tree = tree(&[
        (
            "proc/pressure/cpu",
            "some avg10=2.04 avg60=0.75 avg300=0.40 total=157622151\n\
             full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        ),
        ("proc/pressure/memory", "some avg10=7.50 avg60=0.75 avg300=0.40 total=1\n"),
    ]);
    let roots = tree.roots();
    let machine = psi::cpu(&roots).unwrap().unwrap();
    assert!((machine.some.avg10_percent - 2.04).abs() < 1e-9);
    assert!((machine.some.avg60_percent - 0.75).abs() < 1e-9);
    assert!((machine.some.avg300_percent - 0.40).abs() < 1e-9);
    assert_eq!(machine.some.total_us, 157_622_151);
    assert_eq!(machine.full.unwrap().total_us, 0);

    let memory = psi::memory(&roots).unwrap().unwrap();
    assert!((memory.some.avg10_percent - 7.5).abs() < 1e-9);
}

#[test]
fn before_linux_5_13_cpu_has_no_full_line() {
    let some = "some avg10=99.99 avg60=1.00 avg300=0.00 total=7\n";
    let pressure = psi::cpu(&tree(&[("proc/pressure/cpu", some)]).roots()).unwrap().unwrap();
    assert!((pressure.some.avg10_percent - 99.99).abs() < 1e-9);
    assert_eq!(pressure.full, None);
}

#[test]
fn a_kernel_without_pressure_has_none() {
    assert_eq!(psi::cpu(&tree(&[]).roots()).unwrap(), None);
    assert_eq!(psi::memory(&tree(&[]).roots()).unwrap(), None);
}

#[test]
fn a_missing_or_broken_field_is_an_error() {
    for text in [
        "",
        "full avg10=0.00\n",
        "some avg10=0.00 avg60=0.00 total=1\n",
        "some avg10=x avg60=0 avg300=0 total=1\n",
    ] {
        let tree = tree(&[("proc/pressure/cpu", text)]);
        assert!(psi::cpu(&tree.roots()).is_err(), "{text:?}");
    }
}
