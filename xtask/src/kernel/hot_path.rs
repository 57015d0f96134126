// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many instructions `hugetlb_lock` is held for, without booting a kernel.
//!
//! The series' own C files are compiled for user space, with the headers that they include left
//! empty and `twin.h` in front. The program single-steps one dequeue and one enqueue of a page.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{linux, overlay, series::make_parent};
use crate::{apt, command};

/// What is compiled of the series.
const FILES: [&str; 6] = [
    "hugetlb_zero.c",
    "hugetlb_zero.h",
    "hugetlb_zero_internal.h",
    "hugetlb_zero_job.c",
    "hugetlb_zero_list.c",
    "hugetlb_zero_notify.c",
];

/// Instructions of one dequeue and one enqueue.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Without the series.
    pub(crate) without: u64,
    /// With it, by the state of the free list.
    pub(crate) with: BTreeMap<String, u64>,
}

/// Compiles and runs the twin. It counts instructions of x86-64.
pub(crate) fn count() -> Result<Counts> {
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
        if file.ends_with(".c") {
            sources.push(to);
        }
    }
    for header in headers {
        let to = include.join(header);
        make_parent(&to)?;
        fs::write(&to, "")?;
    }
    let compile = |name: &str, with: bool| {
        let home = linux::home().join("bench/hot_path");
        let program = dir.path().join(name);
        let mut gcc = command::new(
            dir.path(),
            "gcc",
            ["-O2", "-fno-strict-aliasing", "-fcf-protection=none", "-Wall", "-Werror"],
        );
        gcc.arg("-I").arg(&include).arg("-include").arg(home.join("twin.h"));
        gcc.arg(home.join("hot_path.c")).arg("-o").arg(&program);
        if with {
            gcc.arg("-DCONFIG_HUGETLB_ZEROED").args(&sources);
        }
        command::run(&mut gcc)?;
        run(&program)
    };
    let without = compile("without", false)?;
    let without = *without.get("never-zeroed").context("the twin counts nothing")?;
    Ok(Counts { without, with: compile("with", true)? })
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
    use super::count;

    /// What a page may cost under `hugetlb_lock` where no task zeroes.
    const MAX_INSTRUCTIONS: u64 = 70;

    #[test]
    fn lists_of_dirty_pages_cost_what_plain_lists_cost() {
        let counts = count().unwrap();
        println!("{counts:?}");
        // Before the first zeroed page, and after the last one was handed out.
        for state in ["never-zeroed", "used-up"] {
            let with = counts.with[state];
            assert!(with <= MAX_INSTRUCTIONS, "{state}: {with} of {MAX_INSTRUCTIONS}");
        }
        // The processor does count, and the other states are others.
        assert!((20..MAX_INSTRUCTIONS).contains(&counts.without), "{counts:?}");
        assert!(counts.with["zeroed"] > MAX_INSTRUCTIONS, "{counts:?}");
        assert!(counts.with["awaited"] > MAX_INSTRUCTIONS, "{counts:?}");
    }
}
