// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the environment says, read once.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::DEFAULT_SOCKET;

use crate::say;

/// How long a daemon may take to accept and to answer.
const WAIT: Duration = Duration::from_millis(100);

/// What becomes of private memory when the program forks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtFork {
    /// The child gets a copy, made before the fork.
    Copy,
    /// The child does not have the memory.
    Drop,
}

/// The configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) enabled: bool,
    pub(crate) socket: PathBuf,
    pub(crate) wait: Duration,
    /// `None`: private memory is not served.
    pub(crate) private: Option<AtFork>,
    pub(crate) segments: bool,
    /// The page size of a call that names none, in bytes.
    pub(crate) default_page: u64,
}

static CONFIG: OnceLock<Config> = OnceLock::new();
/// Whether anything could be served: set once the configuration says no.
static OFF: AtomicBool = AtomicBool::new(false);

/// The configuration, read at the first call. For those who have the guard.
pub(crate) fn config() -> &'static Config {
    CONFIG.get_or_init(|| {
        let config = Config::from_environment();
        OFF.store(!config.enabled, Ordering::Relaxed);
        config
    })
}

/// Whether the operator excluded this program, once that is known.
pub(crate) fn is_off() -> bool {
    OFF.load(Ordering::Relaxed)
}

/// The longest patience that can be set: everybody else who allocates waits behind it.
const LONGEST_WAIT_MS: u64 = 60_000;

impl Config {
    /// What a variable says that cannot be understood is said in the log, and the default is taken.
    fn from_environment() -> Self {
        say::open(std::env::var_os("PREZERO_SHIM_LOG"));
        let config = Self {
            enabled: is_meant(std::env::var_os("PREZERO_ONLY")),
            socket: std::env::var_os("PREZERO_SOCKET")
                .map_or_else(|| PathBuf::from(DEFAULT_SOCKET), PathBuf::from),
            wait: read("PREZERO_WAIT_MS", "1 to 60000", WAIT, |text| {
                let wait = text.parse().ok().filter(|ms| (1..=LONGEST_WAIT_MS).contains(ms));
                wait.map(Duration::from_millis)
            }),
            private: read("PREZERO_PRIVATE", "copy, drop or no", Some(AtFork::Copy), |text| {
                match text {
                    "copy" => Some(Some(AtFork::Copy)),
                    "drop" => Some(Some(AtFork::Drop)),
                    "no" => Some(None),
                    _ => None,
                }
            }),
            segments: read("PREZERO_SHM", "0 or 1", false, |text| match text {
                "0" => Some(false),
                "1" => Some(true),
                _ => None,
            }),
            default_page: default_page().unwrap_or(2 << 20),
        };
        if !config.enabled {
            say::say(format_args!("this program is not in PREZERO_ONLY: it is left alone"));
        }
        if is_malloc_told() {
            say::say(format_args!(
                "malloc takes huge pages by itself ({TUNABLES}), past this library: those are not \
                 lent"
            ));
        }
        config
    }
}

/// A variable's value, or the default: where it is unset or empty, and where it is none of
/// `expected`, which is said.
fn read<T>(name: &str, expected: &str, default: T, parse: impl FnOnce(&str) -> Option<T>) -> T {
    let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else {
        return default;
    };
    value.to_str().and_then(parse).unwrap_or_else(|| {
        say::say(format_args!("{name} is {value:?} and not {expected}: it is not heeded"));
        default
    })
}

/// What tells the C library how to allocate.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// Whether the C library was told so. Its `malloc` then maps huge pages by calls that nobody stands
/// before, so that no other call may ever come here to say it at.
pub(crate) fn is_malloc_told() -> bool {
    std::env::var_os(TUNABLES).is_some_and(|value| has_own_pages(value.as_bytes()))
}

/// Whether tunables say so: `glibc.malloc.hugetlb` is 2, or a page size in bytes.
fn has_own_pages(tunables: &[u8]) -> bool {
    tunables.split(|byte| *byte == b':').any(|one| {
        let value = one.strip_prefix(b"glibc.malloc.hugetlb=");
        value.is_some_and(|value| !matches!(value, b"" | b"0" | b"1"))
    })
}

/// Whether this program is one of those named, or none is.
fn is_meant(only: Option<OsString>) -> bool {
    let Some(only) = only.filter(|names| !names.is_empty()) else { return true };
    let Ok(program) = std::fs::read_link("/proc/self/exe") else { return false };
    let name = program.file_name().unwrap_or_default();
    let mut names = only.as_bytes().split(|byte| *byte == b',');
    names.any(|wanted| wanted == name.as_bytes())
}

/// The kernel's default huge page size.
fn default_page() -> Option<u64> {
    let text = std::fs::read_to_string(Path::new("/proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}
