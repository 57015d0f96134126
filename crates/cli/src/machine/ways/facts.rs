// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a host has of all that the kernel module needs, read from the running kernel and from the
//! files of its packages. Nothing is decided here.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use flate2::read::GzDecoder;
use linux::{Result, Roots, kernel::module};

/// Options that the module cannot do without; one of each line is enough.
const OPTIONS: [&[&str]; 6] = [
    &["CONFIG_MODULES"],
    &["CONFIG_HUGETLBFS"],
    &["CONFIG_NUMA"],
    &["CONFIG_KPROBES"],
    &["CONFIG_KALLSYMS_ALL"],
    &["CONFIG_DYNAMIC_FTRACE_WITH_ARGS", "CONFIG_DYNAMIC_FTRACE_WITH_REGS"],
];

/// The functions and objects that it looks up by name; one of each line is enough. The sources
/// below kernel/module have the same names.
const SYMBOLS: [&[&str]; 11] = [
    &["folio_zero_user", "clear_huge_page"],
    &["free_huge_folio", "free_huge_page"],
    &["alloc_hugetlb_folio", "alloc_huge_page"],
    &["dequeue_hugetlb_folio_nodemask", "dequeue_huge_page_nodemask"],
    &["enqueue_hugetlb_folio", "enqueue_huge_page"],
    &["remove_hugetlb_folio", "__remove_hugetlb_page"],
    &["remove_pool_hugetlb_folio", "remove_pool_huge_page"],
    &["hstates"],
    &["hugetlb_max_hstate"],
    &["hugetlb_lock"],
    &["node_devices"],
];

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// `uname -r`.
    pub(super) release: String,
    /// The processor's architecture, as Rust names it.
    pub(super) arch: &'static str,
    /// An option that the kernel was built without; `None` also where no usual place has its
    /// configuration.
    pub(super) missing_option: Option<&'static str>,
    /// A name that the kernel's table of symbols lacks; `None` also where that cannot be read.
    pub(super) missing_symbol: Option<&'static str>,
    /// Why the kernel takes signed modules alone, if it does.
    pub(super) signed_only: Option<String>,
    /// Whether modules can be built for this kernel.
    pub(super) headers: bool,
    /// Whether `modprobe` finds the module.
    pub(super) built: bool,
    /// The version of the sources that are installed for DKMS.
    pub(super) sources: Option<String>,
}

/// Reads all of it. Takes some 50 ms, most of it for the table of symbols.
///
/// # Errors
/// A release that cannot be read.
pub(super) fn look(roots: &Roots) -> Result<Facts> {
    let release = linux::cpu::release(roots)?;
    let modules = roots.root.join("lib/modules").join(&release);
    Ok(Facts {
        arch: std::env::consts::ARCH,
        missing_option: config(roots, &release).as_deref().and_then(missing_option),
        missing_symbol: missing_symbol(&roots.proc.join("kallsyms")),
        signed_only: signed_only(roots),
        headers: modules.join("build/include").exists(),
        built: is_built(&modules.join("modules.dep")),
        sources: sources(&roots.root.join("usr/src")),
        release,
    })
}

/// The kernel's configuration: its own, or as its packages install it.
fn config(roots: &Roots, release: &str) -> Option<String> {
    let packed = File::open(roots.proc.join("config.gz")).ok().and_then(|file| {
        let mut text = String::new();
        GzDecoder::new(file).read_to_string(&mut text).ok()?;
        Some(text)
    });
    let modules = roots.root.join("lib/modules").join(release);
    let installed = [
        roots.root.join("boot").join(format!("config-{release}")),
        modules.join("config"),
        modules.join("build/.config"),
    ];
    packed.or_else(|| installed.iter().find_map(|path| fs::read_to_string(path).ok()))
}

fn missing_option(config: &str) -> Option<&'static str> {
    let is_on = |option: &&str| {
        config
            .lines()
            .any(|line| line.strip_prefix(option).is_some_and(|value| matches!(value, "=y" | "=m")))
    };
    OPTIONS.iter().find(|options| !options.iter().any(is_on)).map(|options| options[0])
}

fn missing_symbol(table: &Path) -> Option<&'static str> {
    let mut missing: Vec<_> = SYMBOLS.to_vec();
    let lines = BufReader::new(File::open(table).ok()?).lines().map_while(std::io::Result::ok);
    let mut any = false;
    // `ffffffff81000000 T name`, and of modules `name [module]` behind all of the kernel's own.
    for line in lines {
        any = true;
        let mut fields = line.split_ascii_whitespace().skip(2);
        let (Some(name), None) = (fields.next(), fields.next()) else { continue };
        missing.retain(|names| !names.contains(&name));
        if missing.is_empty() {
            return None;
        }
    }
    missing.first().filter(|_| any).map(|names| names[0])
}

fn signed_only(roots: &Roots) -> Option<String> {
    let lockdown = fs::read_to_string(roots.sys.join("kernel/security/lockdown")).ok();
    let level = lockdown.as_deref().and_then(|text| text.split(['[', ']']).nth(1));
    if let Some(level) = level.filter(|level| *level != "none") {
        return Some(format!("lockdown={level}"));
    }
    let enforced = roots.sys.join("module/module/parameters/sig_enforce");
    let is_on = fs::read_to_string(enforced).is_ok_and(|text| text.trim() == "Y");
    is_on.then(|| "module.sig_enforce=1".to_owned())
}

/// `modules.dep` is what `modprobe` goes by: `updates/dkms/prezero.ko.xz:` on a line of its own.
fn is_built(dependencies: &Path) -> bool {
    let name = format!("{}.ko", module::NAME);
    fs::read_to_string(dependencies).is_ok_and(|text| {
        text.lines().filter_map(|line| line.split_once(':')).any(|(path, _)| {
            Path::new(path).file_name().and_then(|file| file.to_str()).is_some_and(|file| {
                file.strip_prefix(&name).is_some_and(|end| end.is_empty() || end.starts_with('.'))
            })
        })
    })
}

/// The newest by name of `usr/src/prezero-VERSION` that DKMS can build.
fn sources(dir: &Path) -> Option<String> {
    let entries = fs::read_dir(dir).ok()?.flatten();
    let version = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let version = name.strip_prefix(module::NAME)?.strip_prefix('-')?;
        entry.path().join("dkms.conf").exists().then(|| version.to_owned())
    };
    entries.filter_map(version).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_those_that_the_module_looks_up() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/module");
        let sources: String = fs::read_dir(&dir)
            .expect("the module's sources")
            .flatten()
            .filter_map(|entry| fs::read_to_string(entry.path()).ok())
            .collect();
        for name in SYMBOLS.iter().copied().flatten() {
            assert!(sources.contains(&format!("\"{name}\"")), "no source names {name}");
        }
    }
}
