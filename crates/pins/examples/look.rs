// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one look at a file of 512 pages of 2 MiB costs: `cargo run --release --example look`.

use std::time::Instant;

use linux::BlockDir;
use prezero_pins::{Holder, PinProbe};
use testkit::hugepages::{MIB_2, mounted, reserve};

#[expect(clippy::print_stdout, reason = "its purpose")]
fn main() {
    let begin = Instant::now();
    let probe = PinProbe::load().expect("the probe");
    println!("load: {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    let _guard = reserve(MIB_2, 512).expect("512 pages");
    let mount = mounted(MIB_2).expect("a mount");
    let dir = BlockDir::open(mount.path(), &["ready"], 0o700).expect("a directory");
    let own = dir.create("ready", "rest").expect("a file");
    let rest = probe.measure(&own, MIB_2).expect("a measure");
    println!("{rest:?}");
    own.set_len(0).expect("its page goes back");
    let file = dir.create("ready", "a").expect("a file");
    file.allocate(0, 1 << 30).expect("1 GiB");
    let mut times: Vec<_> = (0..1000)
        .map(|_| {
            let begin = Instant::now();
            let holder = probe.prove(&file, rest, None, None).expect("a proof");
            assert!(matches!(holder, Holder::Nobody(_)));
            begin.elapsed()
        })
        .collect();
    times.sort();
    println!("1 GiB: median {:?}, p99 {:?}", times[500], times[990]);
}
