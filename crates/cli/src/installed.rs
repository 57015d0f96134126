// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The other parts of prezero, where they are installed.

use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure};

/// The place of programs that packages install and no user starts by name.
const LIBRARY: &str = "/usr/lib/prezero";
const SHIM: &str = "libprezero_preload.so";
const LAB: &str = "prezero-lab";

/// Where packages and operators put units of systemd.
const UNIT_DIRS: [&str; 3] =
    ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
const UNIT: &str = "prezero.service";

/// Whether a unit of systemd's is for the daemon of a socket.
pub(crate) fn has_unit(socket: &Path) -> bool {
    let is_there = || UNIT_DIRS.iter().any(|dir| Path::new(dir).join(UNIT).exists());
    socket == Path::new(client::DEFAULT_SOCKET) && is_there()
}

/// How to start the daemon of a socket: the packaged unit, where there is one for it.
pub(crate) fn start_advice(socket: &Path) -> &'static str {
    match has_unit(socket) {
        true => "start it by `systemctl start prezero`",
        false => "start one with `prezero serve`",
    }
}

/// The preload shim.
///
/// # Errors
/// [`Exit::Failed`] if it is nowhere.
pub fn shim() -> Result<PathBuf, Failure> {
    find(SHIM).map_err(|missing| {
        Failure::failed(format!("{missing}: install it, or name it with --preload"))
    })
}

/// The laboratory, which measures and shows.
///
/// # Errors
/// [`Exit::NoCommand`] if it is nowhere.
pub(crate) fn lab() -> Result<PathBuf, Failure> {
    find(LAB).map_err(|missing| {
        Failure::new(Exit::NoCommand, format!("{missing}: install the package prezero-lab"))
    })
}

/// The file beside this binary, in the library directory that belongs to it, or where packages put
/// it; else a line with the places that were looked at.
fn find(name: &str) -> Result<PathBuf, String> {
    let binary = std::env::current_exe().unwrap_or_default();
    let beside = binary.parent().map(PathBuf::from).unwrap_or_default();
    let places = [beside.clone(), beside.join("../lib/prezero"), PathBuf::from(LIBRARY)];
    let found = places.iter().map(|place| place.join(name)).find(|path| path.exists());
    found.ok_or_else(|| {
        let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        format!("{name} is not in {}", places.join(", "))
    })
}
