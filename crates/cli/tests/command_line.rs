// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the binary says and how it exits where no daemon is needed.

use std::process::{Command, Output, Stdio};

fn prezero(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_prezero"))
        .args(args)
        .env("PREZERO_SOCKET", "/nonexistent/io.prezero")
        .output()
        .expect("the binary under test runs")
}

fn error_line(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).expect("text");
    assert_eq!(text.lines().count(), 1, "one line, not:\n{text}");
    assert!(text.starts_with("prezero: "), "{text}");
    text
}

// Promise P324 (operator): Amounts are sizes or pages, in the spellings of Kubernetes and Slurm.
// Unknown words get the known word that is most like them, and errors of a file are one line with
// its number.
#[test]
fn bad_input_is_one_line_with_allowed_values_and_code_2() {
    for (args, part) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["zero", "0"], "at least one page, or `max`"),
        (
            &["zero", "all"],
            "`all` is no amount: write a size, as in 4G, a number of pages, or `max`",
        ),
        (&["zero", "--cpus", "foo"], "foo"),
        (&["zero", "--cpus", "0-8000"], "0-8000"),
        (&["release", "5Q"], "`5Q` is no amount"),
        (&["watch", "--below", "8Q"], "`8Q` is not a size"),
        (&["lend", "99999999T", "--", "true"], "too large"),
        (&["revoke", "x17"], "`x17` is no loan's number"),
        (&["run", "--preload", "/nope", "--", "true"], "--preload /nope: no such file"),
        (&["reserve", "4000:2M=4"], "no node 4000: this machine has memory on nodes"),
        (&["reserve", "64K=4"], "no 64K pages: this kernel has"),
        (&["serve", "--pool", "page_size=2M,redy=4G"], "`redy` is no key: did you mean `ready`?"),
        (&["serve", "--set", "worker.max=4"], "`worker` is no key: did you mean `workers`?"),
        (&["zero", "--page-size", "3M"], "it must be a power of two"),
        (&["zero", "--nice", "20"], "-20..=19"),
        (&["lend", "1.5X", "--", "true"], "write a number with K, M, G or T"),
        (&["lend", "1G"], "<CMD>"),
        (&["lend", "1G", "--keep", "5m", "--", "true"], "--owner"),
        (&["lend", "1G", "--owner", "a/b", "--", "true"], "letters, digits, dots or underscores"),
        (&["set", "ready_high"], "KEY=VALUE"),
        (&["set", "ready_hihg=1"], "did you mean `ready_high`?"),
        (&["set", "colour=1"], "ready_low, ready_high, max, leave_free, recycle"),
        (&["watch", "--interval", "soon"], "--interval"),
        (&["serve", "--pool", "page_size=3M"], "3M"),
        (&["serve", "--pool", "page_size=2M,ready_low=2,ready_high=1"], "ready_low 4M"),
        (&["reserve"], "[NODE:]SIZE=AMOUNT"),
        (&["reserve", "1G"], "write [NODE:]SIZE=AMOUNT"),
        (&["serve", "--set", "metrics.listen=9464"], "127.0.0.1:9464"),
        (&["top"], "use `prezero top --json`"),
        (&["top", "--interval", "1ms"], "50ms"),
        (&["completions", "csh"], "csh"),
        (&["serve", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (&["serve", "--set", "workers.pause_above_pressure=101"], "from 1 to 100"),
    ] {
        let output = prezero(args);
        let line = error_line(&output);
        assert!(line.contains(part), "{args:?}: {line}");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn every_verb_without_its_daemon_exits_with_code_3() {
    for args in [
        &["status"][..],
        &["zero"],
        &["zero", "--background"],
        &["watch", "--once"],
        &["lend", "2M", "--", "true"],
        &["set", "ready_high=1"],
        &["release"],
    ] {
        let output = prezero(args);
        let line = error_line(&output);
        assert!(line.contains("no daemon at /nonexistent/io.prezero"), "{args:?}: {line}");
        assert!(line.contains("prezero serve"), "{args:?}: {line}");
        assert_eq!(output.status.code(), Some(3), "{args:?}");
    }
}

// Promise P244 (operator): A drain that finds no daemon at the socket it was told touches no
// other's run directory: it drains the usual one for the usual socket only, any for `--run-dir`.
#[test]
fn drain_without_the_named_daemon_leaves_other_run_directories() {
    let output = prezero(&["drain"]);
    let line = error_line(&output);
    assert!(line.contains("no daemon at /nonexistent/io.prezero"), "{line}");
    assert!(line.contains("--run-dir"), "{line}");
    assert_eq!(output.status.code(), Some(3));
}

/// The binary under test in a directory of its own, away from prezero's other files: a link, since
/// a file that was just written cannot be run while another thread's child has it open.
fn alone() -> (tempfile::TempDir, Command) {
    let built = std::path::Path::new(env!("CARGO_BIN_EXE_prezero"));
    let dir = tempfile::tempdir_in(built.parent().expect("cargo's")).expect("a directory in it");
    let binary = dir.path().join("prezero");
    std::fs::hard_link(built, &binary).expect("a link on the same file system");
    (dir, Command::new(binary))
}

#[test]
fn missing_bench_and_demo_exit_with_code_127() {
    for verb in ["bench", "demo"] {
        let (dir, mut command) = alone();
        let output = command.args([verb, "--help"]).output().expect("it runs");
        let line = error_line(&output);
        assert!(line.contains("install the package prezero-lab"), "{verb}: {line}");
        assert!(line.contains(&dir.path().display().to_string()), "{verb}: {line}");
        assert_eq!(output.status.code(), Some(127), "{verb}");
    }
}

#[test]
fn bench_and_demo_run_the_laboratory_with_every_argument() {
    for (program, said, code) in
        [("/bin/echo", "bench --help clear --size 64M -- -h\n", 0), ("/bin/false", "", 1)]
    {
        let (dir, mut command) = alone();
        std::os::unix::fs::symlink(program, dir.path().join("prezero-lab")).unwrap();
        let output =
            command.args(["bench", "--help", "clear", "--size", "64M", "--", "-h"]).output();
        let output = output.expect("it runs");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), said);
        assert_eq!(output.status.code(), Some(code), "its code is the laboratory's");
    }
}

#[test]
fn help_and_version_go_to_standard_output() {
    for (args, part) in [
        (&["--help"][..], "Exit codes:"),
        (&["lend", "--help"], "mem-path={path},share=on"),
        (&["zero", "--help"], "SCHED_IDLE"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
    ] {
        let output = prezero(args);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(part), "{args:?}: {text}");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(output.stderr.is_empty(), "{args:?}");
    }
    let nothing = prezero(&[]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(String::from_utf8(nothing.stderr).unwrap().contains("Usage: prezero"));
}

#[test]
fn completions_know_every_verb_and_shells_take_them() {
    let help = String::from_utf8(prezero(&["--help"]).stdout).unwrap();
    let verbs = help.lines().skip_while(|line| *line != "Run the service:").skip(1);
    let verbs: Vec<_> = verbs
        .take_while(|line| *line != "Options:")
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|verb| !verb.is_empty())
        .collect();
    assert!(verbs.contains(&"release") && verbs.len() > 10, "{verbs:?}");
    for shell in ["bash", "zsh", "fish"] {
        let output = prezero(&["completions", shell]);
        let text = String::from_utf8(output.stdout).unwrap();
        for verb in &verbs {
            assert!(text.contains(verb), "{shell}: {verb}");
        }
        let mut check = Command::new(shell);
        match check.args(["-n", "-c", &text]).output() {
            Ok(output) => assert!(output.status.success(), "{shell}: {output:?}"),
            Err(_) => testkit::skip_always(&format!("{shell} is not installed")),
        }
    }
}

/// What bash would offer for the last of some words.
fn completed(words: &[&str]) -> Vec<String> {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_prezero"));
    let path = format!("{}:/usr/bin:/bin", binary.parent().expect("cargo's").display());
    let script = format!(
        "source <(prezero completions bash); COMP_WORDS=({}); COMP_CWORD={}; \
         _prezero_objects prezero \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1
    );
    let output = Command::new("bash").args(["-c", &script]).env("PATH", path).output();
    let text = String::from_utf8(output.expect("bash").stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_objects_flags_and_the_command_behind_dashes() {
    let keys = completed(&["prezero", "set", "ready_"]);
    assert_eq!(keys, ["ready_high=", "ready_low="]);
    let nodes = completed(&["prezero", "status", "--node", ""]);
    assert!(nodes.contains(&"0".to_owned()), "{nodes:?}");
    let sizes = completed(&["prezero", "zero", "--page-size", ""]);
    assert!(sizes.is_empty() || sizes.iter().any(|size| size == "2M"), "{sizes:?}");
    let flags = completed(&["prezero", "revoke", "--js"]);
    assert_eq!(flags, ["--json"]);
    let programs = completed(&["prezero", "lend", "1G", "--", "fals"]);
    assert!(programs.contains(&"false".to_owned()), "{programs:?}");
    let files = completed(&["prezero", "lend", "1G", "--", "cat", "/etc/passw"]);
    assert!(files.contains(&"/etc/passwd".to_owned()), "{files:?}");
}

#[test]
fn a_missing_command_is_found_before_a_daemon_is_asked() {
    for (args, code) in [
        (&["lend", "1G", "--", "/nonexistent"][..], 127),
        (&["lend", "1G", "--", "/etc/passwd"], 126),
        (&["run", "--preload", "/etc/passwd", "--", "/nonexistent"], 127),
    ] {
        let output = prezero(args);
        let line = error_line(&output);
        assert!(line.contains(args[args.len() - 1]), "{line}");
        assert_eq!(output.status.code(), Some(code), "{args:?}");
    }
}

#[test]
fn every_verb_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let output = prezero(&["man", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    for (page, part) in [
        ("prezero.1", "prezero\\-serve(1)"),
        ("prezero-serve.1", "page_size=1G"),
        ("prezero-release.1", "4 pages of 1 GiB"),
    ] {
        let text = std::fs::read_to_string(dir.path().join(page)).expect(page);
        assert!(text.starts_with(".ie") && text.contains(".SH SYNOPSIS"), "{page}");
        assert!(text.contains(part), "{page}: {part}");
    }
}

#[test]
fn doctor_reports_the_same_findings_as_text_and_as_json() {
    let json = prezero(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("findings");
    let text = String::from_utf8(prezero(&["doctor"]).stdout).unwrap();
    for subject in ["kernel", "numa", "huge pages", "mounts", "clearing", "daemon"] {
        assert!(
            findings.iter().any(|finding| finding["subject"] == subject),
            "{subject}: {report}"
        );
        assert!(text.contains(subject), "{subject}: {text}");
    }
    let bad = findings.iter().any(|finding| finding["level"] == "bad");
    assert_eq!(json.status.code(), Some(i32::from(bad)));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_prezero"))
        .arg("--help")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary under test runs");
    // Closed before the child has anything to write: its write gets EPIPE.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(0));
}
