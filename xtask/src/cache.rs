// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where large things that can be made again are kept, and what names them.
//!
//! Kernels are cached by the hash of everything they are made from, outside
//! the checkout, so that a fresh clone of the same commit builds nothing:
//! `$PREZERO_CACHE`, else `$XDG_CACHE_HOME/prezero`, else `~/.cache/prezero`.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

/// The root of the checkout.
pub(crate) fn repo() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Logs and results of this checkout: `target/NAME`, made if absent.
pub(crate) fn target(name: &str) -> Result<PathBuf> {
    let base = env::var_os("CARGO_TARGET_DIR").map_or_else(|| repo().join("target"), PathBuf::from);
    made(base.join(name))
}

/// A directory of the cache shared by all checkouts of this user.
pub(crate) fn shared(name: &str) -> Result<PathBuf> {
    let base = if let Some(own) = env::var_os("PREZERO_CACHE") {
        PathBuf::from(own)
    } else if let Some(xdg) = env::var_os("XDG_CACHE_HOME") {
        PathBuf::from(xdg).join("prezero")
    } else {
        let home = env::var_os("HOME").context("neither PREZERO_CACHE nor HOME is set")?;
        PathBuf::from(home).join(".cache/prezero")
    };
    made(base.join(name))
}

fn made(dir: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(dir)
}

/// A SHA-256 over labelled parts; moving bytes from one part to the next
/// changes it.
#[derive(Debug, Default)]
pub(crate) struct Key(Sha256);

impl Key {
    /// Adds one part.
    pub(crate) fn add(&mut self, label: &str, bytes: &[u8]) {
        for part in [label.as_bytes(), bytes] {
            self.0.update(part.len().to_le_bytes());
            self.0.update(part);
        }
    }

    /// The first 16 hex digits: 64 bits tell apart every kernel ever built.
    pub(crate) fn name(self) -> String {
        let mut name = String::new();
        for byte in &self.0.finalize()[..8] {
            // Writing to a String cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        name
    }
}
