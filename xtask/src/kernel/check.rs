// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask kernel check`: what a reviewer's machines would say.
//!
//! `apply`: Debian's newest source takes every patch. `checkpatch`: no error,
//! warning or check but those excused below. `bisect`: after each commit, the
//! objects that the series changes compile on x86-64 without a warning. Each
//! target: so they do at the end, and with `W=1` and, on x86-64, sparse there is
//! no warning on a line that the series wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::ExitCode,
};

use anyhow::{Result, bail};

use super::{
    build::{Base, Tree},
    export,
    linux::Linux,
    series::{self, Files, Series},
    source::Source,
};
use crate::{apt, cache, command, say};

/// Findings of checkpatch that are no faults of this series: below which path,
/// which kind, and why.
const EXCUSED: [(&str, &str, &str); 11] = [
    ("", "UNKNOWN_COMMIT_ID", "Debian's source has no history to look a commit up in"),
    ("", "FILE_PATH_CHANGES", "MAINTAINERS has globs for all of them, from the first on"),
    (
        "arch/x86/lib/clear_streaming.c",
        "UNNECESSARY_KERN_LEVEL",
        "printk_deferred() takes a level and has no shorter form",
    ),
    ("tools/testing/", "VOLATILE", "a byte is touched, and the compiler shall not elide it"),
    ("mm/", "ALLOC_WITH_SIZEOF", "6.12, which shares the file, has no kzalloc_obj()"),
    ("arch/x86/lib/", "UNNECESSARY_KERN_LEVEL", "printk_deferred() has no level of its own"),
    ("include/linux/hugetlb.h", "CAMELCASE", "every HPAGEFLAG() has two names"),
    ("mm/hugetlb_zero.h", "MACRO_ARG_REUSE", "a loop over a list names its cursor more than once"),
    ("mm/hugetlb_zero.h", "MACRO_ARG_UNUSED", "a plain loop, where the option is off"),
    ("include/trace/events/", "OPEN_ENDED_LINE", "every trace header has TP_STRUCT__entry("),
    ("include/trace/events/", "PARENTHESIS_ALIGNMENT", "every trace header has TRACE_EVENT(name,"),
];

/// A kernel to compile the changed objects for.
struct Target {
    name: &'static str,
    arch: &'static str,
    prefix: &'static str,
    packages: &'static [&'static str],
    base: &'static str,
    fragment: &'static str,
    /// What one tree has, or names, and the other does not.
    own: fn(Linux) -> &'static str,
    sparse: bool,
}

const HUGE: &str = "CONFIG_HUGETLBFS=y\nCONFIG_TRANSPARENT_HUGEPAGE=y\nCONFIG_KUNIT=y\n\
                    CONFIG_HUGETLB_ZEROED=y\n\
                    CONFIG_HUGETLB_ZEROED_KUNIT_TEST=y\nCONFIG_MEMORY_FAILURE=y\n\
                    CONFIG_WERROR=n\n";
const NO_HUGE: &str = "CONFIG_KUNIT=y\nCONFIG_WERROR=n\n";

const TARGETS: [Target; 5] = [
    Target {
        name: "x86_64",
        arch: "x86_64",
        prefix: "",
        packages: &["sparse"],
        base: "defconfig",
        fragment: HUGE,
        own: kunit,
        sparse: true,
    },
    Target {
        name: "i386-highmem",
        arch: "i386",
        prefix: "",
        packages: &[],
        base: "i386_defconfig",
        fragment: "CONFIG_HUGETLBFS=y\nCONFIG_TRANSPARENT_HUGEPAGE=y\n\
                   CONFIG_KUNIT=y\nCONFIG_HUGETLB_ZEROED=y\n\
                   CONFIG_HUGETLB_ZEROED_KUNIT_TEST=y\nCONFIG_WERROR=n\n",
        own: highmem,
        sparse: false,
    },
    Target {
        // clear_user_highpage is a macro here, and highmem is on.
        name: "arm-multi_v7",
        arch: "arm",
        prefix: "arm-linux-gnueabihf-",
        packages: &["gcc-arm-linux-gnueabihf"],
        base: "multi_v7_defconfig",
        fragment: NO_HUGE,
        own: |_| "",
        sparse: false,
    },
    Target {
        // Huge pages need LPAE, which multi_v7 leaves off. HUGETLB_ZEROED is not for arm: its
        // caches may alias.
        name: "arm-lpae",
        arch: "arm",
        prefix: "arm-linux-gnueabihf-",
        packages: &["gcc-arm-linux-gnueabihf"],
        base: "multi_v7_defconfig",
        fragment: "CONFIG_ARCH_MULTI_V7=y\nCONFIG_ARM_LPAE=y\nCONFIG_HIGHMEM=y\n\
                   CONFIG_HUGETLBFS=y\nCONFIG_TRANSPARENT_HUGEPAGE=y\nCONFIG_KUNIT=y\nCONFIG_WERROR=n\n",
        own: kunit,
        sparse: false,
    },
    Target {
        name: "arm64",
        arch: "arm64",
        prefix: "aarch64-linux-gnu-",
        packages: &["gcc-aarch64-linux-gnu"],
        base: "defconfig",
        fragment: HUGE,
        own: kunit,
        sparse: false,
    },
];

/// Tests of what mainline has merged since.
fn kunit(linux: Linux) -> &'static str {
    match linux {
        Linux::V6_12 => "CONFIG_FOLIO_ZERO_KUNIT_TEST=y\n",
        Linux::V7_3 => "",
    }
}

/// The same, and more memory than 32 bits address.
fn highmem(linux: Linux) -> &'static str {
    match linux {
        Linux::V6_12 => "CONFIG_HIGHMEM64G=y\nCONFIG_FOLIO_ZERO_KUNIT_TEST=y\n",
        Linux::V7_3 => "CONFIG_HIGHMEM4G=y\nCONFIG_X86_PAE=y\n",
    }
}

/// Objects that include a header which the series changes and use what it adds.
const USERS: [&str; 7] = [
    "fs/hugetlbfs/inode.o",
    "mm/huge_memory.o",
    "mm/hugetlb.o",
    "mm/memfd.o",
    "mm/memory.o",
    "mm/page_alloc.o",
    "mm/userfaultfd.o",
];

pub(crate) fn run(trees: &[Linux], only: &[String]) -> Result<ExitCode> {
    let known = ["apply", "checkpatch", "bisect"].into_iter().chain(TARGETS.iter().map(|t| t.name));
    let known: BTreeSet<&str> = known.collect();
    if let Some(name) = only.iter().find(|name| !known.contains(name.as_str())) {
        let list = known.into_iter().collect::<Vec<_>>().join(", ");
        bail!("no check {name}; there are {list}");
    }
    let mut findings = 0;
    for linux in Linux::ALL {
        if trees.is_empty() || trees.contains(&linux) {
            findings += check(linux, only)?;
        }
    }
    say::result(format_args!("{findings} findings"));
    Ok(if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks the series of one tree; returns the number of findings.
fn check(linux: Linux, only: &[String]) -> Result<usize> {
    let chosen = |name: &str| only.is_empty() || only.iter().any(|other| other == name);
    if chosen("apply") {
        Source::refresh(linux)?;
    }
    let source = Source::get(linux)?;
    let series = Series::read(linux)?;
    let files = series.result(&source)?;
    let mut findings = 0;
    if chosen("apply") {
        say::result(format_args!("apply: {} patches on {source}", series.commits.len()));
    }
    if chosen("checkpatch") {
        findings += checkpatch(&source)?;
    }
    if chosen("bisect") {
        findings += bisect(&source, &series)?;
    }
    let written = written_lines(&source, &files)?;
    for target in TARGETS.iter().filter(|target| chosen(target.name)) {
        findings += target.check(&source, &files, &written)?;
    }
    Ok(findings)
}

fn checkpatch(source: &Source) -> Result<usize> {
    apt::need(&["perl"])?;
    let dir = cache::target("kernel")?.join(format!("checkpatch-{}", source.linux));
    let mails = export::write(source.linux, &dir)?;
    let mut findings = 0;
    let mut excused = 0;
    let is_patch = |mail: &String| !mail.starts_with("0000-");
    for mail in series::files_below(&dir)?.into_iter().filter(is_patch) {
        let mut check = command::new(&source.dir, "perl", ["scripts/checkpatch.pl", "--strict"]);
        check.args(["--no-summary", "--terse", "--showfile", "--show-types", "--color=never"]);
        let output = command::output(check.arg(dir.join(&mail)))?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if EXCUSED.iter().any(|(below, kind, _)| {
                line.starts_with(below) && line.contains(&format!(":{kind}:"))
            }) {
                excused += 1;
            } else if ["ERROR:", "WARNING:", "CHECK:"].iter().any(|word| line.contains(word)) {
                findings += 1;
                say::result(format_args!("checkpatch: {line}"));
            }
        }
    }
    for (below, kind, reason) in EXCUSED {
        say::step(format_args!("checkpatch: {kind} below `{below}` is excused: {reason}"));
    }
    say::result(format_args!("checkpatch: {mails} mails, {findings} findings, {excused} excused"));
    Ok(findings)
}

/// Compiles after every commit, on x86-64.
fn bisect(source: &Source, series: &Series) -> Result<usize> {
    let [target, ..] = &TARGETS;
    let steps = series.steps(source)?;
    let all = steps.last().map(symbols).unwrap_or_default();
    let mut findings = 0;
    for (commit, files) in series.commits.iter().zip(steps) {
        say::step(format_args!("bisect: {}", commit.patch));
        let tree = Tree::prepare(source, &format!("check-{}", target.name), &files)?;
        // Symbols that a later commit adds are unknown yet.
        let now = symbols(&files);
        let later: Vec<&String> = all.iter().filter(|name| !now.contains(*name)).collect();
        let known =
            |line: &&str| !later.iter().any(|name| line.starts_with(&format!("CONFIG_{name}=")));
        let whole = target.fragment(source.linux);
        let fragment: Vec<&str> = whole.lines().filter(known).collect();
        tree.configure(Base::Target(target.base), &(fragment.join("\n") + "\n"))?;
        tree.make(&["prepare"])?;
        findings += compile(&tree, target.name, &target.objects(&tree, &files))?;
    }
    let commits = series.commits.len();
    say::result(format_args!("bisect: {commits} commits compiled, {findings} findings"));
    Ok(findings)
}

/// The symbols that changed Kconfig files define.
fn symbols(files: &Files) -> BTreeSet<String> {
    let kconfigs = files.iter().filter(|(path, _)| path.contains("Kconfig"));
    kconfigs
        .flat_map(|(_, content)| {
            String::from_utf8_lossy(content)
                .into_owned()
                .lines()
                .filter_map(|line| line.strip_prefix("config ").map(|name| name.trim().to_owned()))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Compiles anew; every warning counts.
fn compile(tree: &Tree, name: &str, objects: &BTreeSet<String>) -> Result<usize> {
    let (fine, text) = make_objects(tree, &[], objects)?;
    let mut findings = 0;
    for line in text.lines().filter(|line| !fine || is_warning(line)) {
        findings += 1;
        say::result(format_args!("{name}: {line}"));
    }
    Ok(if fine { findings } else { findings.max(1) })
}

/// Makes the objects, and returns whether that worked and the compiler's output.
fn make_objects(
    tree: &Tree,
    options: &[&str],
    objects: &BTreeSet<String>,
) -> Result<(bool, String)> {
    let (arch, common): (Vec<&str>, Vec<&str>) =
        objects.iter().map(String::as_str).partition(|object| object.starts_with("arch/"));
    let (mut fine, mut text) = (true, String::new());
    // Asked for objects below arch/x86/lib, kbuild enters that directory by two
    // ways at once, and they delete each other's files: one job there.
    for (names, jobs) in [(common, &[][..]), (arch, &["-j1"][..])] {
        if names.is_empty() {
            continue;
        }
        for object in &names {
            // So that old warnings are seen again; absent before the first build.
            let _ = fs::remove_file(tree.dir.join(object));
        }
        let output = command::output(tree.make_command(jobs).args(options).args(&names))?;
        fine &= output.status.success();
        text += &String::from_utf8_lossy(&output.stderr);
    }
    Ok((fine, text))
}

/// The lines that differ from the source, by file.
type Written = BTreeMap<String, BTreeSet<usize>>;

fn written_lines(source: &Source, files: &Files) -> Result<Written> {
    let scratch = tempfile::tempdir()?;
    let mut written = Written::new();
    for (file, content) in files {
        let new = scratch.path().join("new");
        fs::write(&new, content)?;
        let old = source.dir.join(file);
        let old = if old.exists() { old } else { Path::new("/dev/null").to_path_buf() };
        let mut diff = command::new(scratch.path(), "diff", ["-U0"]);
        let output = command::output(diff.arg(old).arg(&new))?;
        let lines = written.entry(file.clone()).or_default();
        for hunk in String::from_utf8_lossy(&output.stdout).lines() {
            // @@ -a,b +first,count @@
            let Some(hunk) = hunk.strip_prefix("@@ ") else { continue };
            let Some(place) = hunk.split(' ').nth(1).and_then(|p| p.strip_prefix('+')) else {
                continue;
            };
            let (first, count) = place.split_once(',').unwrap_or((place, "1"));
            if let (Ok(first), Ok(count)) = (first.parse::<usize>(), count.parse::<usize>()) {
                lines.extend(first..first + count);
            }
        }
    }
    Ok(written)
}

impl Target {
    fn fragment(&self, linux: Linux) -> String {
        self.fragment.to_owned() + (self.own)(linux)
    }

    /// The objects to compile: of changed C files, and users of changed headers.
    fn objects(&self, tree: &Tree, files: &Files) -> BTreeSet<String> {
        let arch = if self.arch == "i386" || self.arch == "x86_64" { "x86" } else { self.arch };
        let ours = format!("arch/{arch}/");
        let sources = files.keys().filter(|file| {
            let other_arch = file.starts_with("arch/") && !file.starts_with(&ours);
            let program = file.starts_with("tools/");
            // 64-bit code of x86 is not for i386.
            let too_wide = self.arch == "i386" && file.starts_with("arch/x86/lib/");
            !other_arch && !program && !too_wide
        });
        let mut objects: BTreeSet<String> = USERS.iter().map(|&user| user.to_owned()).collect();
        for file in sources {
            let stem = file.strip_suffix(".c").or_else(|| file.strip_suffix(".S"));
            objects.extend(stem.map(|stem| format!("{stem}.o")));
        }
        // What this configuration leaves out cannot be asked for by name.
        let config = fs::read_to_string(tree.dir.join(".config")).unwrap_or_default();
        objects.retain(|object| is_built(&tree.dir, &config, object));
        objects
    }

    fn check(&self, source: &Source, files: &Files, written: &Written) -> Result<usize> {
        apt::need(self.packages)?;
        let tree = Tree::prepare(source, &format!("check-{}", self.name), files)?
            .cross(self.arch, self.prefix);
        tree.configure(Base::Target(self.base), &self.fragment(source.linux))?;
        say::step(format_args!("{}: preparing", self.name));
        tree.make(&["prepare"])?;
        let objects = self.objects(&tree, files);
        let names: Vec<&str> = objects.iter().map(String::as_str).collect();
        say::step(format_args!("{}: compiling {}", self.name, names.join(" ")));
        let mut findings = compile(&tree, self.name, &objects)?;
        if findings > 0 {
            return Ok(findings);
        }
        let strict = if self.sparse { &["W=1", "C=2"][..] } else { &["W=1"] };
        let (fine, text) = make_objects(&tree, strict, &objects)?;
        let ours = |line: &&str| is_warning(line) && on_written_line(line, written);
        for line in text.lines().filter(ours) {
            findings += 1;
            say::result(format_args!("{}: W=1: {line}", self.name));
        }
        if !fine {
            findings += 1;
            say::result(format_args!("{}: W=1 build failed:\n{text}", self.name));
        }
        let with = if self.sparse { "W=1 and sparse" } else { "W=1" };
        say::result(format_args!(
            "{}: {} objects with {with}, {findings} findings: {}",
            self.name,
            names.len(),
            names.join(" ")
        ));
        Ok(findings)
    }
}

/// Whether the Makefiles build `object` with this configuration: the variable
/// that lists it, and its directory, must not hang on a symbol that is off.
fn is_built(tree: &Path, config: &str, object: &str) -> bool {
    let (dir, file) = object.rsplit_once('/').unwrap_or((".", object));
    let (above, below) = dir.rsplit_once('/').unwrap_or((".", dir));
    let listed = |dir: &str, name: &str| {
        let text = fs::read_to_string(tree.join(dir).join("Makefile")).unwrap_or_default();
        // A backslash at the end of a line goes on with the next.
        let text = text.replace("\\\n", " ");
        let line = text.lines().find(|line| line.split_whitespace().any(|word| word == name));
        let variable = line.and_then(|line| line.split_once('=')).map(|(name, _)| name);
        let symbol = variable.and_then(|name| name.split_once("$(")?.1.split_once(')'));
        symbol.is_none_or(|(symbol, _)| config.lines().any(|line| line == format!("{symbol}=y")))
    };
    listed(dir, file) && listed(above, &format!("{below}/"))
}

fn is_warning(line: &str) -> bool {
    line.contains("warning:") || line.contains("error:")
}

/// `FILE:LINE:COLUMN: warning: ...` on a line that the series wrote.
fn on_written_line(line: &str, written: &Written) -> bool {
    let mut parts = line.split(':');
    let (Some(file), Some(number)) = (parts.next(), parts.next()) else { return false };
    let file = file.trim_start_matches("./");
    let lines = written.get(file);
    number.parse().is_ok_and(|number| lines.is_some_and(|lines| lines.contains(&number)))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::{is_built, on_written_line};

    #[test]
    fn objects_hang_on_the_symbol_of_their_list() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("mm")).unwrap();
        let makefile = "obj-y := a.o\nobj-$(CONFIG_B) += b.o \\\n\tc.o\n";
        std::fs::write(tree.path().join("mm/Makefile"), makefile).unwrap();
        let built = |config: &str, object: &str| is_built(tree.path(), config, object);
        assert!(built("", "mm/a.o"));
        assert!(!built("# CONFIG_B is not set\n", "mm/c.o"));
        assert!(built("CONFIG_B=y\n", "mm/c.o"));
    }

    #[test]
    fn only_lines_of_the_series_count() {
        let written = BTreeMap::from([("mm/memory.c".to_owned(), BTreeSet::from([7, 8]))]);
        assert!(on_written_line("./mm/memory.c:8:3: warning: x", &written));
        assert!(on_written_line("mm/memory.c:7:1: warning: x", &written));
        assert!(!on_written_line("mm/memory.c:9:1: warning: x", &written));
        assert!(!on_written_line("mm/hugetlb.c:7:1: warning: x", &written));
        assert!(!on_written_line("In file included from mm/memory.c:8,", &written));
    }
}
