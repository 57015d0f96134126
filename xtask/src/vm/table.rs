// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of VM tests: all of `tests/vm/*.toml`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::{
    matrix::Cell,
    requirements::{Kernel, Requirements},
};
use crate::{
    cache,
    kernel::{Arch, Linux},
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    vm: Vec<Case>,
}

/// One boot of one machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// One sentence: what it shows.
    pub(crate) why: String,
    /// Besides `all`, to which every test belongs.
    #[serde(default)]
    pub(crate) sets: Vec<String>,
    /// Run on this kernel too: a program passes if it ends with the same result on both, success or
    /// failure.
    #[serde(default)]
    pub(crate) same_as: Option<Kernel>,
    /// Which trees it is for: on every one but 6.12 its name ends with the tree's, and it is in
    /// the set of that name instead of its own.
    #[serde(default = "on_default")]
    pub(crate) on: Vec<Linux>,
    /// Which kernels of Debian's it is for: its name ends with the version on each, and so do its
    /// sets besides. The set `fast` is for 6.12 alone.
    #[serde(default)]
    pub(crate) on_stock: Vec<Kernel>,
    /// Run on arm64 as well, as `NAME-arm64`.
    #[serde(default)]
    pub(crate) on_arm64: bool,
    #[serde(rename = "needs")]
    pub(crate) requirements: Requirements,
    #[serde(default, rename = "program")]
    pub(crate) programs: Vec<Program>,
}

/// Something to run there.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Program {
    #[serde(rename = "run")]
    pub(crate) origin: Origin,
    #[serde(default)]
    pub(crate) args: Vec<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Packages of this workspace with binaries that it starts or loads; they lie at the same
    /// absolute path in the guest, and for a shell line in `/bin`.
    #[serde(default)]
    pub(crate) binaries: Vec<String>,
    /// Files of the checkout that it reads, by path from the root; they lie at
    /// the same absolute path in the guest.
    #[serde(default)]
    pub(crate) files: Vec<String>,
    /// Programs that it runs, in `/bin`: `NAME` of C, `musl:NAME` of C as `NAME-musl`, `go:NAME` of
    /// `tests/vm/programs` as `NAME-go`, `guest:NAME` of C for a machine without a kernel.
    #[serde(default)]
    pub(crate) with: Vec<String>,
    /// C programs of `tests/c` that its tests run and cannot compile there, linked
    /// dynamically.
    #[serde(default)]
    pub(crate) dynamic: Vec<String>,
    /// Its TAP cases are shown beside those of other providers.
    #[serde(default)]
    pub(crate) matrix: Option<Cell>,
    #[serde(default = "two_minutes")]
    pub(crate) timeout_s: u64,
}

/// Where it comes from: `KIND:NAME` in the table.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Origin {
    /// `c:NAME`: `NAME.c` of the series' selftests or of `tests/c`, built statically.
    C(String),
    /// `c32:NAME`: the same built for i386, to run on the 64-bit kernel.
    C32(String),
    /// `selftest:NAME`: a selftest that the kernel source already has in `selftests/mm`.
    Selftest(String),
    /// `kunit:SUITE`: the results of a `KUnit` suite that ran at boot.
    Kunit(String),
    /// `cargo:PACKAGE` or `cargo:PACKAGE/TARGET`: the test programs of a package
    /// of this workspace, or one of them.
    CargoTests(String),
    /// `host:PATH`: a program of this host.
    Host(String),
    /// `shell:LINE`: a line for the guest's shell.
    Shell(String),
}

impl TryFrom<String> for Origin {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let Some((kind, name)) = text.split_once(':') else {
            return Err(format!("`{text}` is not KIND:NAME"));
        };
        let name = name.to_owned();
        Ok(match kind {
            "c" => Self::C(name),
            "c32" => Self::C32(name),
            "selftest" => Self::Selftest(name),
            "kunit" => Self::Kunit(name),
            "cargo" => Self::CargoTests(name),
            "host" => Self::Host(name),
            "shell" => Self::Shell(name),
            _ => {
                let kinds = "c, c32, selftest, kunit, cargo, host, shell";
                return Err(format!("`{text}`: no kind `{kind}`, there are {kinds}"));
            }
        })
    }
}

/// The set of `make test`.
const FAST: &str = "fast";

fn on_default() -> Vec<Linux> {
    vec![Linux::default()]
}

fn two_minutes() -> u64 {
    120
}

impl Case {
    /// The case once for each tree that it is for.
    fn on_each_tree(&self) -> impl Iterator<Item = Self> {
        self.on.iter().map(|&linux| {
            let mut case = self.clone();
            case.requirements.linux = linux;
            if linux != Linux::default() {
                case.name += &format!("-{linux}");
                case.sets = vec![linux.name().to_owned()];
                for cell in case.programs.iter_mut().filter_map(|one| one.matrix.as_mut()) {
                    cell.provider += &format!("-{linux}");
                }
            }
            case
        })
    }

    /// The case once for each kernel of Debian's that it is for; itself if it names none.
    fn on_each_stock(self) -> Result<Vec<Self>> {
        if self.on_stock.is_empty() {
            return Ok(vec![self]);
        }
        let each = self.on_stock.iter().map(|&kernel| {
            let mut case = self.clone();
            let version = kernel.of_debian().context("on_stock names Debian's own kernels")?;
            case.requirements.kernel = kernel;
            case.name += &format!("-{version}");
            case.sets.retain(|set| set != FAST || kernel == Kernel::Stock);
            let with_version = |set: &String| (set != FAST).then(|| format!("{set}-{version}"));
            case.sets.extend(self.sets.iter().filter_map(with_version));
            for cell in case.programs.iter_mut().filter_map(|one| one.matrix.as_mut()) {
                cell.provider += &format!("-{version}");
            }
            Ok(case)
        });
        each.collect()
    }

    /// The same on arm64, if it is for that: in no set, and without a word about features of
    /// another processor.
    fn for_arm64(&self) -> Option<Self> {
        let mut case = self.on_arm64.then(|| self.clone())?;
        case.name += "-arm64";
        case.sets.clear();
        case.requirements.arch = Arch::Arm64;
        case.requirements.cpu_without.clear();
        Some(case)
    }
}

impl Program {
    /// A host's program with its arguments, with an hour to run.
    pub(crate) fn from_host(argv: &[String]) -> Self {
        let (path, arguments) = argv.split_first().map_or(("", &[][..]), |(p, a)| (p.as_str(), a));
        Self {
            origin: Origin::Host(path.to_owned()),
            args: arguments.to_vec(),
            env: BTreeMap::new(),
            binaries: Vec::new(),
            files: Vec::new(),
            with: Vec::new(),
            dynamic: Vec::new(),
            matrix: None,
            timeout_s: 3600,
        }
    }
}

/// Reads all files of the table, in the order of their names.
pub(crate) fn read() -> Result<Vec<Case>> {
    read_from(&cache::repo().join("tests/vm"))
}

fn read_from(dir: &Path) -> Result<Vec<Case>> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.insert(path);
        }
    }
    let mut cases: Vec<Case> = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path)?;
        let file: File =
            toml::from_str(&text).with_context(|| format!("cannot use {}", path.display()))?;
        let mut each = Vec::new();
        for case in file.vm.iter().flat_map(|case| case.on_each_tree().chain(case.for_arm64())) {
            each.extend(
                case.on_each_stock().with_context(|| format!("cannot use {}", path.display()))?,
            );
        }
        for case in each {
            if cases.iter().any(|other| other.name == case.name) {
                bail!("{}: a second test named {}", path.display(), case.name);
            }
            cases.push(case);
        }
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::{Case, FAST, Kernel, cache};

    #[test]
    fn the_table_in_the_repository_can_be_read() {
        let cases = super::read().unwrap();
        for case in &cases {
            assert!(!case.programs.is_empty(), "{} runs nothing", case.name);
            assert!(case.requirements.memory_mib() <= 4096, "{} is too large", case.name);
        }
        assert!(cases.iter().any(|case| case.sets.iter().any(|set| set == FAST)));
    }

    #[test]
    fn debian_case_is_one_per_kernel_and_fast_on_6_12_alone() {
        let text = "name = 'a'\nwhy = 'b'\non_stock = ['stock-6.1', 'stock']\nsets = ['fast', 'm']\n\
                    [needs]\nkernel = 'stock'\n";
        let case: Case = toml::from_str(text).unwrap();
        let each = case.clone().on_each_stock().unwrap();
        let names: Vec<&str> = each.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["a-6.1", "a-6.12"]);
        assert_eq!(each[0].requirements.kernel, Kernel::Stock61);
        assert_eq!(each[0].sets, ["m", "m-6.1"]);
        assert_eq!(each[1].sets, ["fast", "m", "m-6.12"]);
        let patched = Case { on_stock: vec![Kernel::Patched], ..case };
        assert!(patched.on_each_stock().is_err());
    }

    /// The words in backticks of a line.
    fn quoted(line: &str) -> Vec<&str> {
        line.split('`').skip(1).step_by(2).collect()
    }

    #[test]
    fn each_kernel_claim_names_a_machine_and_each_machine_a_claim() {
        let readme = fs::read_to_string(cache::repo().join("kernel/README.md")).unwrap();
        let (_, rest) = readme.split_once("\n## What is claimed, and what shows it\n").unwrap();
        let section = rest.split("\n##").next().unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
        let cases = super::read().unwrap();
        let mut named = BTreeSet::new();
        for row in rows {
            let by = row.trim_matches('|').rsplit(" | ").next().unwrap();
            let names = quoted(by);
            assert!(!names.is_empty(), "nothing shows it: {row}");
            for name in names {
                let is_machine = cases.iter().any(|case| case.name == name);
                let is_command = ["cargo xtask kernel ", "cargo test -p xtask "]
                    .iter()
                    .any(|verb| name.starts_with(verb));
                assert!(is_machine || is_command, "{name}: {row}");
                named.insert(name);
            }
        }
        let loads_ours = |case: &Case| {
            case.requirements.modules.iter().any(|module| module.starts_with("prezero"))
        };
        let ours =
            |case: &&Case| case.requirements.kernel.of_debian().is_none() || loads_ours(case);
        for case in cases.iter().filter(ours) {
            assert!(named.contains(case.name.as_str()), "{} shows no claim", case.name);
        }
    }
}
