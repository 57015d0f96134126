// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many instructions `hugetlb_lock` is held for, and the series' KUnit tests, without booting
//! a kernel.
//!
//! The series' own C files are compiled for user space, with the headers that they include left
//! empty and `twin.h` in front. One program single-steps each hold of the lock, another runs the
//! tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use super::{linux, overlay, series::make_parent};
use crate::{apt, command};

/// What is compiled of the series.
const FILES: [&str; 7] = [
    "hugetlb_zero.c",
    "hugetlb_zero.h",
    "hugetlb_zero_internal.h",
    "hugetlb_zero_job.c",
    "hugetlb_zero_kunit.c",
    "hugetlb_zero_list.c",
    "hugetlb_zero_notify.c",
];

/// Instructions under `hugetlb_lock`, by the state of the free list.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) without: BTreeMap<String, u64>,
    pub(crate) with: BTreeMap<String, u64>,
}

/// The series' files, ready to be compiled with `twin.h`.
pub(crate) struct Twin {
    dir: TempDir,
    sources: Vec<PathBuf>,
}

impl Twin {
    pub(crate) fn new() -> Result<Self> {
        apt::need(&["gcc"])?;
        let dir = tempfile::tempdir()?;
        let include = dir.path().join("include");
        let mut sources = Vec::new();
        let mut headers = BTreeSet::from(["mm/internal.h".to_owned()]);
        for file in FILES {
            let text = fs::read_to_string(overlay::shared().join("mm").join(file))
                .with_context(|| format!("cannot read mm/{file} of the overlay"))?;
            let included =
                text.lines().filter_map(|line| line.strip_prefix("#include <")?.split_once('>'));
            headers.extend(included.map(|(header, _)| header.to_owned()));
            let to = include.join("mm").join(file);
            make_parent(&to)?;
            fs::write(&to, text)?;
            // `kunit.c` includes the tests.
            if file.ends_with(".c") && !file.ends_with("_kunit.c") {
                sources.push(to);
            }
        }
        for header in headers {
            let to = include.join(header);
            make_parent(&to)?;
            fs::write(&to, "")?;
        }
        Ok(Self { dir, sources })
    }

    /// Compiles `bench/hot_path/PROGRAM.c` with the series or without it.
    pub(crate) fn compile(
        &self,
        program: &str,
        with: bool,
        arguments: &[&OsStr],
    ) -> Result<PathBuf> {
        let home = linux::home().join("bench/hot_path");
        let to = self.dir.path().join(if with { "with" } else { "without" });
        let mut gcc = command::new(
            self.dir.path(),
            "gcc",
            ["-O2", "-fno-strict-aliasing", "-fcf-protection=none", "-Wall", "-Werror"],
        );
        gcc.arg("-I").arg(self.dir.path().join("include"));
        gcc.arg("-include").arg(home.join("twin.h"));
        gcc.arg(home.join(format!("{program}.c"))).arg("-o").arg(&to);
        if with {
            gcc.arg("-DCONFIG_HUGETLB_ZEROED").args(&self.sources);
        }
        command::run(gcc.args(arguments))?;
        Ok(to)
    }
}

/// Compiles and runs the twin. It counts instructions of x86-64.
pub(crate) fn count() -> Result<Counts> {
    let twin = Twin::new()?;
    Ok(Counts {
        without: run(&twin.compile("hot_path", false, &[])?)?,
        with: run(&twin.compile("hot_path", true, &[])?)?,
    })
}

/// Runs a twin and reads its lines.
fn run(program: &Path) -> Result<BTreeMap<String, u64>> {
    let text = command::stdout(&mut Command::new(program))?;
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let (name, number) = line.split_once(' ').context("the twin prints NAME NUMBER")?;
        counts.insert(name.to_owned(), number.parse()?);
    }
    Ok(counts)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::{ffi::OsStr, fs, process::Command};

    use super::{Twin, count};
    use crate::kernel::overlay;

    /// What one dequeue and one enqueue may cost where no task zeroes.
    const MAX_INSTRUCTIONS: u64 = 70;
    /// What one hold of a zeroer, or the free of a page beside zeroers, may cost.
    const MAX_HELD: u64 = 300;

    #[test]
    fn kunit_tests_of_the_series_pass_in_user_space() {
        let twin = Twin::new().unwrap();
        let program = twin.compile("kunit", true, &[OsStr::new("-DBENCH_KUNIT")]).unwrap();
        let output = Command::new(program).output().unwrap();
        let tap = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{tap}");
        let suite = overlay::shared().join("mm/hugetlb_zero_kunit.c");
        let cases = fs::read_to_string(suite).unwrap().matches("\tKUNIT_CASE(").count();
        let passed = tap.lines().filter(|line| line.starts_with("ok ")).count();
        assert!(cases > 0 && passed == cases, "{passed} of {cases} passed:\n{tap}");
    }

    #[test]
    fn lists_of_dirty_pages_cost_what_plain_lists_cost() {
        let counts = count().unwrap();
        // Before the first zeroed page, and after the last one was handed out.
        for state in ["never-zeroed", "used-up"] {
            let with = counts.with[state];
            assert!(with <= MAX_INSTRUCTIONS, "{state}: {with} of {MAX_INSTRUCTIONS}");
        }
        // The processor does count, and the other states are others.
        let without = counts.without["never-zeroed"];
        assert!((20..MAX_INSTRUCTIONS).contains(&without), "{counts:?}");
        assert!(counts.with["zeroed"] > MAX_INSTRUCTIONS, "{counts:?}");
        assert!(counts.with["awaited"] > MAX_INSTRUCTIONS, "{counts:?}");
    }

    // Promise P410 (kernel): A zeroer between two pages, and a process that frees or takes a page,
    // hold hugetlb_lock for no more instructions beside 64 zeroers than beside one, and for 300 at
    // most.
    #[test]
    fn zeroers_hold_the_lock_equally_long_in_any_number() {
        let counts = count().unwrap();
        for hold in ["freed-zeroers", "zeroer", "taken-zeroers"] {
            let [one, many] = [1, 64].map(|nr| counts.with[&format!("{hold}-{nr}")]);
            assert!(many <= one, "{hold}: {one} with 1 zeroer, {many} with 64");
            assert!(many <= MAX_HELD, "{hold}: {many} of {MAX_HELD}");
            assert!(many > counts.without["freed"], "{hold}: {counts:?}");
        }
    }
}
