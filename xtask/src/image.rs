// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask image`: the image of the driver for Kubernetes, as an OCI archive.
//!
//! One static program is all of it, so the code needs no tool for images: an archive is a tar of
//! JSON and one layer, which is a tar, too. The layer is not compressed (a push does that), and no
//! time or place of its making is in it: the same program is the same image.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{cache, command, say};

/// The name that the chart asks for: a cluster without a registry finds it imported.
pub(crate) const DRIVER: &str = concat!("localhost/prezero-dra:", env!("CARGO_PKG_VERSION"));

/// Builds the driver and prints the path of its image.
pub(crate) fn run() -> Result<ExitCode> {
    say::result(driver()?.display());
    Ok(ExitCode::SUCCESS)
}

/// The driver's image: `target/image/prezero-dra_VERSION.tar`.
pub(crate) fn driver() -> Result<PathBuf> {
    let to = concat!("prezero-dra_", env!("CARGO_PKG_VERSION"), ".tar");
    of_go(".", "prezero-dra", DRIVER, to)
}

/// The image `name` of a program of `kubernetes/`, written below `target/image`.
pub(crate) fn of_go(package: &str, program: &str, name: &str, to: &str) -> Result<PathBuf> {
    let dir = cache::target("image")?;
    let binary = dir.join(program);
    // Static, and without what differs between two machines' builds of it.
    let mut make = command::new(
        &cache::repo().join("kubernetes"),
        "go",
        ["build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid=", "-o"],
    );
    command::run(make.arg(&binary).arg(package).env("CGO_ENABLED", "0"))
        .context("cannot build with Go 1.26; see https://go.dev/doc/install")?;
    let to = dir.join(to);
    let content = fs::read(&binary)?;
    write(File::create(&to)?, name, program, &content)
        .with_context(|| format!("cannot write {}", to.display()))?;
    Ok(to)
}

/// Writes the image `name` that runs `/program`.
fn write(to: impl Write, name: &str, program: &str, content: &[u8]) -> Result<()> {
    let mut layer = tar::Builder::new(Vec::new());
    add(&mut layer, program, 0o755, content)?;
    let layer = layer.into_inner()?;
    let layer_digest = digest(&layer);
    let config = json!({
        "architecture": architecture(), "os": "linux",
        "config": {"Entrypoint": [format!("/{program}")]},
        "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
    });
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": media("manifest.v1+json"),
        "config": described("config.v1+json", &config),
        "layers": [{"mediaType": media("layer.v1.tar"), "digest": layer_digest, "size": layer.len()}],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut entry = described("manifest.v1+json", &manifest);
    entry["platform"] = json!({"architecture": architecture(), "os": "linux"});
    let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    entry["annotations"] =
        json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag});
    let index =
        json!({"schemaVersion": 2, "mediaType": media("index.v1+json"), "manifests": [entry]});

    let mut archive = tar::Builder::new(to);
    add(&mut archive, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    add(&mut archive, "index.json", 0o644, index.to_string().as_bytes())?;
    for blob in [&manifest, &config, &layer] {
        add(&mut archive, &digest(blob).replace("sha256:", "blobs/sha256/"), 0o644, blob)?;
    }
    archive.into_inner()?.flush()?;
    Ok(())
}

fn add(to: &mut tar::Builder<impl Write>, path: &str, mode: u32, content: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len().try_into()?);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    Ok(to.append_data(&mut header, path, content)?)
}

/// Go's name, and so an image's, of what we run on and build for.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn media(kind: &str) -> String {
    format!("application/vnd.oci.image.{kind}")
}

fn described(kind: &str, blob: &[u8]) -> Value {
    json!({"mediaType": media(kind), "digest": digest(blob), "size": blob.len()})
}

fn digest(blob: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(blob))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io::Read as _};

    use super::*;

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut all = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            assert_eq!(entry.header().mtime().unwrap(), 0);
            let path = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            all.insert(path, content);
        }
        all
    }

    fn blob<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
        let named = descriptor["digest"].as_str().unwrap();
        let content = &files[&named.replace(':', "/").replace("sha256/", "blobs/sha256/")];
        assert_eq!(descriptor["size"], content.len());
        assert_eq!(named, digest(content));
        content
    }

    #[test]
    fn the_chart_asks_for_the_image_that_is_written() {
        let chart = cache::repo().join("kubernetes/chart");
        let read = |name: &str| fs::read_to_string(chart.join(name)).unwrap();
        let (name, version) = DRIVER.split_once(':').unwrap();
        assert!(read("values.yaml").contains(&format!("\n  name: {name}\n")));
        assert!(read("Chart.yaml").contains(&format!("\nappVersion: {version}\n")));
    }

    #[test]
    fn an_image_leads_from_its_index_to_its_one_program_and_is_the_same_each_time() {
        let made = || {
            let mut archive = Vec::new();
            write(&mut archive, "localhost/a/b:1.2", "program", b"#!").unwrap();
            archive
        };
        let archive = made();
        assert_eq!(archive, made());
        let files = files(&archive);
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        let entry = &index["manifests"][0];
        assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], "1.2");
        let manifest: Value = serde_json::from_slice(blob(&files, entry)).unwrap();
        let config: Value = serde_json::from_slice(blob(&files, &manifest["config"])).unwrap();
        assert_eq!(config["config"]["Entrypoint"], json!(["/program"]));
        let layer = blob(&files, &manifest["layers"][0]);
        assert_eq!(config["rootfs"]["diff_ids"][0], digest(layer));
        assert_eq!(self::files(layer), BTreeMap::from([("program".to_owned(), b"#!".to_vec())]));
    }
}
