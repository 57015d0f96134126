// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Python: the wheel, as pip installs it, and Mooncake's store under the shim.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use prezero_tests::{Daemon, Page};
use testkit::{hugepages, skip_always};

use super::{
    Program, assert_returned, assert_served, free_port, installed, is_wanted, measured, run,
    succeeded, until, warm, zero_all,
};

const PAGE: Page = Page::Mib2;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// An environment of its own with `packages` of PyPI, kept between runs.
struct Python(PathBuf);

impl Python {
    fn with(name: &str, packages: &[&str]) -> Self {
        let dir = root().join("target/python").join(name);
        if !dir.join("bin/pip").exists() {
            let made = Command::new("python3").args(["-m", "venv"]).arg(&dir).output();
            succeeded(&made.expect("python3 runs"));
        }
        let python = Self(dir);
        python.succeed(
            "pip",
            &[&["install", "--quiet", "--disable-pip-version-check"], packages].concat(),
        );
        python
    }

    fn program(&self, name: &str) -> PathBuf {
        self.0.join("bin").join(name)
    }

    fn succeed(&self, program: &str, words: &[&str]) -> String {
        let output = Command::new(self.program(program)).args(words).current_dir(root()).output();
        succeeded(&output.unwrap_or_else(|error| panic!("{program}: {error}")))
    }
}

// Promise P202 (programs): From Python a loan is a writable buffer of zeros and a tensor without a
// copy, which cannot be closed below a view; its owner finds the content again, and importing the
// module asks for nothing.
// Promise P264.
#[test]
fn the_wheel_is_built_installed_typed_and_lends() {
    if is_wanted("python3", "python3-venv").is_none() {
        return;
    }
    let python = Python::with("wheel", &["maturin>=1.9,<2", "numpy", "mypy"]);
    let out = tempfile::tempdir().expect("a directory");
    let wheels = out.path().to_str().expect("a plain name");
    python.succeed(
        "maturin",
        &["build", "--release", "--manifest-path", "crates/python/Cargo.toml", "--out", wheels],
    );
    let wheel = out.path().read_dir().expect("a directory").next().expect("a wheel").expect("it");
    let name = wheel.file_name().into_string().expect("a plain name");
    assert!(name.contains("-cp311-abi3-"), "{name} is for one Python alone");
    let wheel = wheel.path();
    let install =
        ["install", "--quiet", "--force-reinstall", "--no-deps", "--disable-pip-version-check"];
    python.succeed("pip", &[&install[..], &[wheel.to_str().expect("a plain name")]].concat());
    // What the stub says is what the module has, and the tests are typed by it.
    let allow = "tests/consumers/python/stubtest.allow";
    python.succeed("python", &["-m", "mypy.stubtest", "prezero", "--allowlist", allow]);
    let tests = "tests/consumers/python/test_prezero.py";
    python.succeed("mypy", &["--strict", tests]);
    let Some(reserved) = hugepages::reserve(PAGE.size(), 16) else { return };
    let daemon = Daemon::start_with(
        Some(reserved),
        &PAGE.pool("pages_per_block = 4\nready_low = \"32M\"\nready_high = \"32M\""),
        &[],
    );
    daemon.zero("max");
    let run = Command::new(python.program("python"))
        .arg(root().join(tests))
        .env("PREZERO_SOCKET", daemon.socket())
        .output()
        .expect("python runs");
    succeeded(&run);
    if String::from_utf8_lossy(&run.stderr).contains("skipped=1") {
        skip_always("no torch with a GPU is here: no loan was registered with a driver");
    }
    assert_returned(&daemon);
}

// Promise P420 (socket): A varlink client of others reads the definitions, calls methods with one
// reply and with many, and gets the errors under their names.
#[test]
fn another_varlink_client_reads_the_definition_and_calls() {
    if installed("python3", "python3-venv").is_none() {
        return;
    }
    let python = Python::with("varlink", &["varlink>=31,<32"]);
    let Some(reserved) = hugepages::reserve(PAGE.size(), 4) else { return };
    let daemon = Daemon::start_with(Some(reserved), &PAGE.pool("pages_per_block = 1"), &[]);
    daemon.zero("max");
    let run = Command::new(python.program("python"))
        .arg(root().join("tests/consumers/python/other_varlink.py"))
        .arg(daemon.socket())
        .args(
            ["io.prezero.varlink", "org.varlink.service.varlink"]
                .map(|file| root().join("crates/wire").join(file)),
        )
        .output()
        .expect("python runs");
    let said = succeeded(&run);
    assert!(said.contains("parsed io.prezero:") && said.contains("done"), "{said}");
    assert_returned(&daemon);
}

/// Mooncake's master with its metadata server, on unused ports, and the arguments by which the
/// store finds both.
fn master(python: &Python, dir: &Path) -> (Program, [String; 2]) {
    let [rpc, http, metrics] = [(); 3].map(|()| free_port());
    let mut command = Command::new(python.program("mooncake_master"));
    command
        .args(["-enable_http_metadata_server", "-http_metadata_server_host=127.0.0.1"])
        .arg(format!("-rpc_port={rpc}"))
        .arg(format!("-http_metadata_server_port={http}"))
        .arg(format!("-metrics_port={metrics}"));
    let program = Program::start(&mut command, &dir.join("master.log"));
    for port in [rpc, http] {
        until("Mooncake's master listens", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        });
    }
    (program, [format!("127.0.0.1:{rpc}"), format!("http://127.0.0.1:{http}/metadata")])
}

// Promise P203 (programs): Mooncake's store has its memory lent, and returns all of it.
#[test]
fn mooncakes_store_has_its_segment_and_its_buffer_lent() {
    if is_wanted("python3", "python3-venv").is_none() {
        return;
    }
    let python = Python::with("mooncake", &["mooncake-transfer-engine-non-cuda"]);
    // 256 MiB of segment and 32 of buffer.
    let Some(reserved) = hugepages::reserve(PAGE.size(), 160) else { return };
    let daemon = Daemon::start_with(Some(reserved), &PAGE.pool("pages_per_block = 16"), &[]);
    warm(&daemon);
    let dir = tempfile::tempdir().expect("a directory");
    let (_master, addresses) = master(&python, dir.path());
    let store = |command: &mut Command| {
        command.env("MC_STORE_USE_HUGEPAGE", "1");
        let script = root().join("tests/consumers/python/store.py");
        let output = command.arg(script).args(&addresses).arg("256").output();
        let said = succeeded(&output.expect("python runs"));
        let seconds = said.split("setup ").nth(1).and_then(|rest| rest.split(' ').next());
        let seconds = seconds.and_then(|seconds| seconds.parse().ok());
        Duration::from_secs_f64(seconds.unwrap_or_else(|| panic!("no time in {said}")))
    };
    let cold = store(&mut Command::new(python.program("python")));
    zero_all(&daemon, PAGE, 160);
    let log = dir.path().join("shim.log");
    let ready = store(run(&daemon, &log, &["--private"]).arg(python.program("python")));
    let served = assert_served(&log);
    assert_eq!(served.len(), 2, "{served:#?}");
    assert_returned(&daemon);
    measured("Mooncake's store of 256 MiB, setup", cold, ready);
}
