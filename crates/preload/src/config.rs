// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the environment says, read once.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::DEFAULT_SOCKET;

use crate::{say, seccomp};

/// How long a daemon may take to accept and to answer.
const DAEMON_TIMEOUT: Duration = Duration::from_millis(100);

/// The configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) enabled: bool,
    pub(crate) socket: PathBuf,
    pub(crate) wait: Duration,
    /// Whether private memory is served.
    pub(crate) private: bool,
    pub(crate) segments: bool,
    /// The page size of a call that names none, in bytes.
    pub(crate) default_page: u64,
}

static CONFIG: OnceLock<Config> = OnceLock::new();
/// Set once the configuration excludes this program.
static OFF: AtomicBool = AtomicBool::new(false);

/// The configuration, read at the first call. The caller has the guard.
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

/// The longest timeout that can be set: all other threads that allocate wait behind it.
const MAX_DAEMON_TIMEOUT_MS: u64 = 60_000;

impl Config {
    /// A value that is not understood is logged, and the default is taken.
    fn from_environment() -> Self {
        say::open(std::env::var_os("PREZERO_SHIM_LOG"));
        let is_meant = is_meant(std::env::var_os("PREZERO_ONLY"));
        let as_started = is_meant && seccomp::has_filters_of_start();
        let config = Self {
            enabled: as_started,
            socket: std::env::var_os("PREZERO_SOCKET")
                .map_or_else(|| PathBuf::from(DEFAULT_SOCKET), PathBuf::from),
            wait: read("PREZERO_WAIT_MS", "1 to 60000", DAEMON_TIMEOUT, |text| {
                let wait = text.parse().ok().filter(|ms| (1..=MAX_DAEMON_TIMEOUT_MS).contains(ms));
                wait.map(Duration::from_millis)
            }),
            private: read("PREZERO_PRIVATE", "0 or 1", false, zero_or_one),
            segments: read("PREZERO_SHM", "0 or 1", false, zero_or_one),
            default_page: default_page().unwrap_or(2 << 20),
        };
        if !is_meant {
            say::say(format_args!("this program is not in PREZERO_ONLY: it is left alone"));
        }
        if is_meant && !as_started {
            say::say(format_args!(
                "a seccomp filter limits this program's calls: it is left alone"
            ));
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

/// What the operator wants beside calls for huge pages. It is read at the start, as any call of the
/// program may be meant.
#[derive(Debug)]
pub(crate) struct Wishes {
    /// Serve plain shared mappings of at least that size.
    pub(crate) anonymous: Option<u64>,
    /// Count ready pages in `MemAvailable`.
    pub(crate) count_ready: bool,
}

impl Wishes {
    /// Whether the operator has any.
    pub(crate) fn are_any() -> bool {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        is_set("PREZERO_ANONYMOUS") || is_set("PREZERO_COUNT_READY")
    }

    /// The caller has the guard.
    pub(crate) fn from_environment() -> Self {
        if !is_meant(std::env::var_os("PREZERO_ONLY")) {
            return Self { anonymous: None, count_ready: false };
        }
        say::open(std::env::var_os("PREZERO_SHIM_LOG"));
        let bytes = |text: &str| text.parse().ok().filter(|bytes| *bytes > 0).map(Some);
        Self {
            anonymous: read("PREZERO_ANONYMOUS", "bytes", None, bytes),
            count_ready: read("PREZERO_COUNT_READY", "0 or 1", false, zero_or_one),
        }
    }
}

fn zero_or_one(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// A variable's value, or the default where it is unset, empty, or unlike `expected`. The last is
/// logged.
fn read<T>(name: &str, expected: &str, default: T, parse: impl FnOnce(&str) -> Option<T>) -> T {
    let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else {
        return default;
    };
    value.to_str().and_then(parse).unwrap_or_else(|| {
        say::say(format_args!("{name} is {value:?} and not {expected}: it is ignored"));
        default
    })
}

/// The variable that tells the C library how to allocate.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// Whether the C library was told to allocate huge pages. Its `malloc` maps them by internal calls,
/// so that perhaps no other call ever comes here to log it.
pub(crate) fn is_malloc_told() -> bool {
    std::env::var_os(TUNABLES).is_some_and(|value| has_own_pages(value.as_bytes()))
}

/// Whether tunables ask for huge pages: `glibc.malloc.hugetlb` is 2, or a page size in bytes.
fn has_own_pages(tunables: &[u8]) -> bool {
    tunables.split(|byte| *byte == b':').any(|one| {
        let value = one.strip_prefix(b"glibc.malloc.hugetlb=");
        value.is_some_and(|value| !matches!(value, b"" | b"0" | b"1"))
    })
}

/// Whether this program is named, or the variable names none.
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
