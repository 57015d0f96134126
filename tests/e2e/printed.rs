// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each command that a page prints in a block is run, or stands in [`ELSEWHERE`] with its test or
//! the reason against it. `docs/evidence/commands.md` is written from that list.
//!
//! Each block is run in a shell of its own, as it is printed, with five changes. Sizes in G are in
//! M. Paths of an installed daemon are those of the test's. `...` is filled in. NUMBER is the
//! number of a loan. `prezero serve` runs on plain memory beside the daemon.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use prezero_tests::daemon::binary;
use prezero_tests::{Daemon, Page};

const PAGE: Page = Page::Mib2;
const PAGES: u64 = 90;
/// The slowest block starts QEMU on a busy machine.
const BLOCK_TIMEOUT: &str = "120";

/// Programs by which a block of code is one for a shell.
const PROGRAMS: &[&str] = &[
    "apparmor_parser",
    "apt",
    "cargo",
    "cat",
    "cd",
    "ctr",
    "curl",
    "echo",
    "editor",
    "export",
    "gcc",
    "go",
    "helm",
    "kubectl",
    "make",
    "mokutil",
    "openstack",
    "pip",
    "prezero",
    "reboot",
    "rm",
    "rpm",
    "skopeo",
    "srun",
    "sudo",
    "systemctl",
    "taskset",
    "varlinkctl",
    "(cd",
    "dir=$(mktemp",
];

/// Where a command is run that is not run here.
#[derive(Clone, Copy)]
enum Elsewhere {
    /// By this test: file and function.
    Test(&'static str, &'static str),
    /// By nothing that runs here.
    Nowhere(&'static str),
}
use Elsewhere::{Nowhere, Test};

const PACKAGE: Elsewhere =
    Nowhere("changes the system; `cargo xtask package test` does it in a Debian of its own");
const CLUSTER: Elsewhere = Nowhere("needs a cluster: `make test-cluster` has one");
const MODULE: Elsewhere =
    Nowhere("needs the kernel module: `cargo xtask vm test` loads it in virtual machines");
const SECURE_BOOT: Elsewhere = Nowhere("needs a machine with Secure Boot, and a person at it");

/// Beginnings of commands, and where they are run. `make` and `cargo` are those of the Makefile.
const ELSEWHERE: &[(&str, Elsewhere)] = &[
    ("apparmor_parser", Test("consumers/libvirt.rs", "the_rules_for_apparmor_are_rules")),
    ("apt install mokutil", SECURE_BOOT),
    ("apt install", PACKAGE),
    ("cargo mutants", Nowhere("takes hours; the page has the outcome of a run")),
    ("cargo xtask image", Nowhere("builds the driver's image: `make release` does")),
    ("ctr", CLUSTER),
    ("curl --proto", Nowhere("installs a compiler; CI does the same")),
    ("curl -fsG http://prometheus", Nowhere("needs a server of Prometheus")),
    ("curl http://127.0.0.1:9464", Test("e2e/metrics.rs", "metrics_are_served_over_tcp")),
    ("dir=$(mktemp", Test("e2e/policy_doc.rs", "first_loan_page_lends_zeros_as_printed")),
    ("echo '", Test("consumers/libvirt.rs", "the_rules_for_apparmor_are_rules")),
    ("echo 1 > /sys/module", MODULE),
    ("echo 2048", Nowhere("sets the machine's pool of huge pages, which other tests share")),
    ("editor", Nowhere("is a person's work")),
    ("gcc", Test("e2e/policy_doc.rs", "printed_loops_zero_all_zeroable_pages")),
    ("go mod edit", Test("examples/main.rs", "go_example_lends")),
    ("helm", CLUSTER),
    ("kubectl", CLUSTER),
    ("lib=", Test("consumers/allocator.rs", "reserved_huge_pages_are_lent_with_private")),
    (
        "MC_STORE_USE_HUGEPAGE",
        Test("consumers/python.rs", "mooncakes_store_has_its_segment_and_its_buffer_lent"),
    ),
    ("mokutil", SECURE_BOOT),
    ("openstack", Nowhere("needs an OpenStack; `prezero drain` alone has its tests")),
    ("pip install", Test("consumers/python.rs", "the_wheel_is_built_installed_typed_and_lends")),
    (
        "(cd crates/python",
        Test("consumers/python.rs", "the_wheel_is_built_installed_typed_and_lends"),
    ),
    ("prezero bench", Nowhere("takes minutes of all CPUs; the page has the outcome of a run")),
    ("prezero demo --in-vm", MODULE),
    ("prezero module", MODULE),
    ("prezero plan", Nowhere("simulates 20,000 loans for half a minute; `e2e/plan.rs` plans less")),
    (
        "prezero run --anonymous 1G",
        Test("e2e/shim/wishes.rs", "plain_shared_memory_is_served_from_the_wished_size_on"),
    ),
    (
        "prezero run --count-ready",
        Test("e2e/shim/wishes.rs", "ready_pages_are_available_where_that_is_wished"),
    ),
    (
        "prezero run --only ovs",
        Test("consumers/ovs.rs", "a_switch_of_dpdk_forwards_on_lent_pages_and_returns_them"),
    ),
    (
        "prezero run --only postgres",
        Test("consumers/postgres.rs", "it_starts_loads_answers_and_restarts_after_a_crash"),
    ),
    (
        "prezero run --private --only java",
        Test("consumers/java.rs", "a_heap_of_large_pages_is_lent_used_collected_and_returned"),
    ),
    (
        "prezero run --private -- env LD_PRELOAD",
        Test("consumers/allocator.rs", "reserved_huge_pages_are_lent_with_private"),
    ),
    (
        "prezero run --private -- mariadbd",
        Test("consumers/mariadb.rs", "a_buffer_pool_of_large_pages_is_lent_filled_and_returned"),
    ),
    ("prezero run -- dpdk-testpmd", Test("consumers/dpdk.rs", "testpmd_forwards_on_lent_pages")),
    ("reboot", SECURE_BOOT),
    ("rpm", PACKAGE),
    ("skopeo", CLUSTER),
    ("srun", Test("consumers/slurm.rs", "slurm_counts_what_jobs_borrow_and_a_job_reads_zeros")),
    ("systemctl", PACKAGE),
    ("varlinkctl", Nowhere("is not in Debian 12; `e2e/protocol.rs` reads the same definitions")),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in it")
}

fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

/// A block of code: the line where it begins, and its lines.
type Block = (usize, Vec<String>);

/// The blocks that are for a shell, or may be: those in a fence say so.
fn blocks(text: &str) -> Vec<Block> {
    let (mut found, mut fence) = (Vec::<Block>::new(), None::<bool>);
    let (mut before, mut is_open) = ("", false);
    for (at, line) in text.lines().enumerate() {
        if let Some(kind) = line.trim_start().strip_prefix("```") {
            let is_shell = ["sh", "console"].contains(&kind);
            fence = if fence.is_some() { None } else { Some(is_shell) };
            if is_shell {
                found.push((at + 2, Vec::new()));
            }
            (before, is_open) = (line, false);
            continue;
        }
        let is_code = fence.unwrap_or(line.starts_with("    "));
        is_open &= is_code;
        if fence == Some(true) || is_open {
            found.last_mut().expect("it goes on").1.push(line.to_owned());
        } else if is_code && fence.is_none() && before.is_empty() {
            found.push((at + 1, vec![line.to_owned()]));
            is_open = true;
        }
        before = line;
    }
    found
}

/// The commands of a block, one after the other; none if it is for no shell.
fn commands(lines: &[String]) -> Vec<String> {
    let prompt = |line: &str| line.starts_with("# ") || line.starts_with("$ ");
    let has_prompts = lines.iter().any(|line| line.trim_start().starts_with("$ "))
        || lines.first().is_some_and(|line| line.starts_with("# ") && runs(&line[2..]));
    let mut found = Vec::new();
    let mut lines = lines.iter().map(|line| line.trim());
    while let Some(line) = lines.next() {
        let mut line = match has_prompts {
            true if prompt(line) => line[2..].to_owned(),
            true => continue,
            false if line.is_empty() || line.starts_with('#') || line.starts_with("{{") => continue,
            false => line.to_owned(),
        };
        while line.ends_with('\\') {
            line.pop();
            line += lines.next().unwrap_or_default();
        }
        let line = line.strip_prefix("sudo ").unwrap_or(&line);
        let line = line.strip_prefix("time ").unwrap_or(line);
        found.push(line.to_owned());
    }
    if !found.iter().any(|line| runs(line)) {
        return Vec::new();
    }
    // One with quotes or a shell of its own stays whole.
    let parts = |line: String| match line.contains(['\'', '(']) {
        true => vec![line],
        false => line.split(" && ").map(str::to_owned).collect(),
    };
    found.into_iter().flat_map(parts).collect()
}

/// Whether a line begins with a program, behind variables that it sets.
fn runs(line: &str) -> bool {
    let is_set = |word: &&str| {
        let (name, _) = word.split_once('=').unwrap_or_default();
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    };
    let word = line.split_whitespace().find(|word| !is_set(word));
    word.is_some_and(|word| PROGRAMS.contains(&word))
}

/// Where a command is run, if not here.
fn elsewhere(command: &str) -> Option<(usize, Elsewhere)> {
    let is_set = |word: &str| word.split_once('=').is_some_and(|(name, _)| !name.contains('-'));
    let set = command.split(' ').take_while(|word| is_set(word)).count();
    let program = command.splitn(set + 1, ' ').last().unwrap_or_default();
    let is_of = |begin: &str| command.starts_with(begin) || program.starts_with(begin);
    let row = ELSEWHERE.iter().position(|(begin, _)| is_of(begin))?;
    Some((row, ELSEWHERE[row].1))
}

/// Whether the Makefile has this command: a target, or the first words of a line.
fn is_of_the_makefile(command: &str, makefile: &str) -> bool {
    let plain: String = command.split('"').step_by(2).collect();
    let mut words = plain.split_whitespace().skip_while(|word| word.contains('='));
    match (words.next(), words.next()) {
        (Some("make"), None) => true,
        (Some("make"), Some(target)) => {
            target.contains('=')
                || makefile.contains(&format!("\n{target}:"))
                || makefile.contains(&format!(" {target} "))
        }
        (Some("cargo"), Some(verb)) => {
            let first = words.find(|word| !word.starts_with('-')).unwrap_or_default();
            let lines = makefile.lines().filter(|line| line.contains(&format!("(CARGO) {verb}")));
            lines.into_iter().any(|line| line.contains(first))
        }
        _ => false,
    }
}

/// `8G` is `8M`.
fn in_small(command: &str) -> String {
    let mut chars: Vec<char> = command.chars().collect();
    for at in 1..chars.len() {
        let ends = chars.get(at + 1).is_none_or(|c| !c.is_ascii_alphanumeric());
        if chars[at] == 'G' && chars[at - 1].is_ascii_digit() && ends {
            chars[at] = 'M';
        }
    }
    chars.into_iter().collect()
}

/// A command as it is run here.
fn adapted(command: &str, daemon: &Daemon, mount: &Path, number: &str) -> String {
    let place = |path: &Path| path.display().to_string();
    let own = place(&daemon.scratch().join("own"));
    let mut line = in_small(command.trim_end_matches('&').trim_end());
    for (printed, here) in [
        ("/etc/prezero/prezero.toml", place(&daemon.scratch().join("packaged.toml"))),
        ("/run/prezero/tree", place(&daemon.tree())),
        ("/run/prezero/metrics", place(&daemon.scratch().join("metrics"))),
        ("/run/prezero-jobs", place(daemon.scratch())),
        ("/dev/hugepages", place(mount)),
        ("NUMBER", number.to_owned()),
        // What the guest is else, and the way to its end.
        (" ...", " -nodefaults -display none -S -monitor stdio".to_owned()),
    ] {
        line = line.replace(printed, &here);
    }
    if line.contains("qemu-system") {
        line = format!("echo quit | {line} > /dev/null");
    }
    match line.strip_prefix("prezero serve ") {
        Some(rest) if command.ends_with('&') => format!(
            "prezero serve --plain --run-dir {own} --socket {own}.socket {rest} 2> {own}.log &\n\
             until prezero status --socket {own}.socket > /dev/null 2>&1; do sleep 0.05; done\n\
             kill $!; wait $! || [ $? = 143 ]"
        ),
        _ => line,
    }
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        testkit::skip(&format!("no {program} here"));
    }
    found
}

/// Runs the commands of a block in one shell.
fn run(daemon: &Daemon, mount: &Path, place: &str, commands: &[&String]) -> Option<String> {
    let mut holder = daemon.command(&["lend", "2M", "--", "sleep", "600"]);
    let mut holder = holder.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    daemon.wait_for("lent", |pool| pool.lent_pages > units::Pages(0));
    let number = daemon.status().loans.first().expect("it is lent").lease.0.to_string();
    let lines = commands.iter().map(|line| adapted(line, daemon, mount, &number));
    let script = lines.collect::<Vec<_>>().join("\n");
    let folder = binary().parent().expect("it lies in a folder").display().to_string();
    let here = daemon.scratch().display();
    let mut shell = Command::new("timeout");
    shell.args([BLOCK_TIMEOUT, "sh", "-e", "-c", &script]).current_dir(daemon.scratch());
    shell.env("PREZERO_SOCKET", daemon.socket()).env("SLURM_JOB_ID", "7");
    shell.env("SLURM_JOB_UID", "0").stdin(Stdio::null());
    let path = std::env::var("PATH").expect("a path");
    let output = shell.env("PATH", format!("{folder}:{here}:{path}")).output().expect("sh runs");
    let ended = holder.kill().and_then(|()| holder.wait());
    ended.expect("our own child");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let failed = || format!("{place}: {}\n{script}\n{said}\n", output.status);
    let failure = (!output.status.success()).then(failed);
    // A loan by name may go on to the block that returns it.
    daemon.wait_for("returned", |p| p.lent_pages <= units::Pages(8) && p.draining_pages.0 == 0);
    failure
}

// Promise P405 (operator): Each command that a page prints in a block is run by a test, or stands
// in a list with the reason against it.
#[test]
fn commands_of_pages_are_run_or_have_a_reason() {
    if !root().join("docs").exists() {
        testkit::skip_always("a virtual machine lacks a checkout");
        return;
    }
    let mut paths = vec![root().join("README.md")];
    pages(&root().join("docs"), &mut paths);
    paths.sort();
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    let config = format!("{}[metrics]\nlisten = \"METRICS\"\n", PAGE.pool("pages_per_block = 4\n"));
    let Some(daemon) = Daemon::start(PAGE, PAGES, &PAGE.pool("pages_per_block = 4")) else {
        return;
    };
    let metrics = daemon.scratch().join("metrics").display().to_string();
    daemon.write_config(&config.replace("METRICS", &metrics));
    daemon.signal(nix::sys::signal::Signal::SIGHUP);
    daemon.wait_for_log("serves metrics");
    daemon.zero("max");
    let mount = daemon.scratch().join("huge");
    let mounted = linux::mount::mount(&mount, PAGE.size()).expect("root mounts");
    std::fs::copy("/bin/true", daemon.scratch().join("program")).expect("a program");
    // The packaged file, with groups that each machine has.
    let packaged = std::fs::read_to_string(root().join("dist/etc/prezero.toml")).expect("a file");
    let packaged =
        ["prezero", "prezero-zero", "prezero-agent"].iter().fold(packaged, |text, name| {
            text.replace(&format!("_group = \"{name}\""), "_group = \"0\"")
        });
    std::fs::write(daemon.scratch().join("packaged.toml"), packaged).expect("our own directory");
    let has_qemu = has("qemu-system-x86_64");
    let mut failures = Vec::new();
    let (mut seen, mut here, mut used) = (0, 0, vec![false; ELSEWHERE.len()]);
    for path in paths.iter().filter(|path| !path.ends_with("verbs.md")) {
        let text = std::fs::read_to_string(path).expect("a page");
        for (line, lines) in blocks(&text) {
            let place = format!("{}:{line}", path.strip_prefix(root()).expect("a page").display());
            let all = commands(&lines);
            // A block that is one script has its row by its first line.
            let first = all.first().and_then(|first| elsewhere(first));
            let is_script = all.first().is_some_and(|first| first.starts_with("dir="));
            let mut run_here = Vec::new();
            for command in &all {
                seen += 1;
                match elsewhere(command).or(first.filter(|_| is_script)) {
                    Some((row, _)) => used[row] = true,
                    None if is_of_the_makefile(command, &makefile) => {}
                    None if command.contains("qemu-system") && !has_qemu => {}
                    None => run_here.push(command),
                }
            }
            here += run_here.len();
            if !run_here.is_empty() {
                failures.extend(run(&daemon, &mount, &place, &run_here));
            }
        }
    }
    mounted.detach().expect("our own mount");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(seen > 90 && here > 20, "{seen} commands, of which {here} were run");
    for ((begin, _), used) in ELSEWHERE.iter().zip(used) {
        assert!(used, "no page has a command that begins with `{begin}`");
    }
}

const HEAD: &str = "\
# Commands of the pages

A test runs each command that a page prints in a block, as it is printed, with sizes in M for G
(`commands_of_pages_are_run_or_have_a_reason`). `make` and `cargo` are targets and lines of the
Makefile. Other tests run these commands, or a reason stands in their place.

| begins with | run by |
|---|---|
";

#[test]
fn list_of_commands_run_elsewhere_is_written_and_true() {
    if !root().join("docs").exists() {
        testkit::skip_always("a virtual machine lacks a checkout");
        return;
    }
    let mut page = HEAD.to_owned();
    for (begin, elsewhere) in ELSEWHERE {
        let by = match elsewhere {
            Test(file, name) => {
                let path = root().join("tests").join(file);
                let text = std::fs::read_to_string(path).expect(file);
                assert!(text.contains(&format!("fn {name}(")), "{file} has no {name}");
                format!("`{name}` in `tests/{file}`")
            }
            Nowhere(why) => (*why).to_owned(),
        };
        let _ = writeln!(page, "| `{begin}` | {by} |");
    }
    let path = root().join("docs/evidence/commands.md");
    if std::env::var_os("PREZERO_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
        return;
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "write it anew: PREZERO_WRITE_DOCS=1, e2e list_of_commands");
}

#[test]
fn commands_of_a_block_are_told_from_its_output() {
    let text = "a\n\n    # comment\n    prezero zero max \\\n      --node 0 && echo x\n\ntext\n    no\n\n\
                ```console\n# prezero lend 8G -- ls\nout\n```\n\n    key = 1\n";
    let found: Vec<_> = blocks(text).iter().map(|(_, lines)| commands(lines)).collect();
    assert_eq!(found[0], ["prezero zero max --node 0", "echo x"]);
    assert_eq!(found[1], ["prezero lend 8G -- ls"]);
    assert!(found[2].is_empty(), "{found:?}");
    assert_eq!(
        in_small("lend 8G -m 16G page_size=1G, G 2Gi"),
        "lend 8M -m 16M page_size=1M, G 2Gi"
    );
}
