// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles `pins.bpf.c` by clang.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source = "src/pins.bpf.c";
    println!("cargo:rerun-if-changed={source}");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    // Its type information names the source file: by a path that is the same on every machine.
    let here = std::env::var("CARGO_MANIFEST_DIR")?;
    libbpf_cargo::SkeletonBuilder::new()
        .source(source)
        .obj(out.join("pins.bpf.o"))
        .clang_args([format!("-ffile-prefix-map={here}=.")])
        .build()?;
    Ok(())
}
