// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Paths that root gives and another user can redirect: its directory, or a link of its on the way.
//!
//! Files that root makes below this path lie where the user wants them, and a mode set by path
//! lands on the user's last replacement. The window of that race is microseconds wide. So these
//! tests look for its causes: a daemon that goes there at all, and a mode or an owner that it
//! changes by a name.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prezero_tests::daemon::binary;
use prezero_tests::process::children;
use tempfile::TempDir;
use testkit::child::alone;

use crate::attack::say;
use crate::users::User;

/// A start, or its refusal, takes less.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// What follows the first socket of a start takes less.
const SOCKETS_TIMEOUT: Duration = Duration::from_secs(3);

/// A directory of root's and one of a stranger's, in which a link leads to the former.
struct Trap {
    place: TempDir,
    roots: PathBuf,
    theirs: PathBuf,
}

impl Trap {
    fn set() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let (roots, theirs) = (place.path().join("roots"), place.path().join("theirs"));
        for dir in [&roots, &theirs] {
            fs::create_dir(dir).expect("a new directory");
        }
        fs::set_permissions(&roots, Permissions::from_mode(0o755)).expect("our own");
        let (stranger, link) = (Some(User::Stranger.number()), theirs.join("link"));
        symlink(&roots, &link).expect("a new link");
        lchown(&link, stranger, stranger).expect("root");
        chown(&theirs, stranger, stranger).expect("root");
        Self { place, roots, theirs }
    }

    /// A path of its own for everything outside the attack.
    fn own(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// A place that root leaves empty by itself.
    fn made(&self) -> Vec<String> {
        let names = [&self.roots, &self.theirs].map(|dir| fs::read_dir(dir).expect("a directory"));
        let names = names.into_iter().flatten().map(|entry| entry.expect("an entry").file_name());
        names.filter(|name| name != "link").map(|name| name.display().to_string()).collect()
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        // Of a daemon that fell for it.
        for mount in [&self.roots, &self.theirs].map(|dir| dir.join("tree")) {
            let _ = nix::mount::umount2(&mount, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

fn prezero(words: &[&str], paths: &[(&str, &Path)]) -> Command {
    let mut command = Command::new(binary());
    command.args(words).stdin(Stdio::null());
    for (word, path) in paths {
        match word.strip_suffix('=') {
            Some(key) => command.arg("--set").arg(format!("{key}={}", path.display())),
            None => command.arg(word).arg(path),
        };
    }
    command
}

/// Runs it until it ends, or serves and does not end; its exit code and what it said.
fn outcome(command: &mut Command, serves: &Path) -> (Option<i32>, String) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut end_by = Instant::now() + START_TIMEOUT;
    let mut has_served = false;
    while Instant::now() < end_by && child.try_wait().expect("our child").is_none() {
        // The tree comes after its socket.
        if !has_served && serves.exists() {
            has_served = true;
            end_by = Instant::now() + SOCKETS_TIMEOUT;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    end(&mut child);
    let output = child.wait_with_output().expect("our child");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn end(child: &mut Child) {
    if child.try_wait().expect("our child").is_none() {
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).expect("our child");
    }
}

const SERVE: [&str; 8] =
    ["serve", "--plain", "--pool", "page_size=4K", "--set", "workers.max=0", "--log", "info"];

// Promise P262 (operator): Run directories, sockets and the control tree lie where only root and
// the daemon's user can change the path; another user's directory or link on it is refused, and
// nothing is made behind it.
#[test]
fn paths_that_another_user_can_redirect_are_refused() {
    let _alone = alone();
    let refused = |name: &str, attack: &dyn Fn(&Trap) -> Command| {
        let trap = Trap::set();
        let (code, said) = outcome(&mut attack(&trap), &trap.own("socket"));
        let made = trap.made();
        let got = if made.is_empty() { "refused".to_owned() } else { format!("{made:?}") };
        let left = if made.is_empty() { "nothing" } else { "files of root's" };
        say(&[name, "stranger", &got, "", left]);
        assert!(made.is_empty(), "{name}: {made:?}\n{said}");
        let whose = format!("is of uid {}", User::Stranger.number());
        // Without an optional socket the daemon serves the rest, and says so.
        let is_optional = ["agents'", "metrics'"].iter().any(|socket| name.contains(socket));
        let expected = Some(i32::from(!is_optional));
        assert!(code == expected && said.contains(&whose), "{name}: {code:?} {said}");
        assert!(!is_optional || said.contains("the service is degraded"), "{name}: {said}");
    };
    let no_tree = ["--set", "tree.enabled=false"];
    let serve = [&SERVE[..], &no_tree].concat();
    refused("a run directory behind its link", &|trap| {
        let paths = [("--run-dir", &*trap.theirs.join("link")), ("--socket", &trap.own("socket"))];
        prezero(&serve, &paths)
    });
    refused("a drained run directory behind its link", &|trap| {
        let paths = [("--run-dir", &*trap.theirs.join("link")), ("--socket", &trap.own("none"))];
        prezero(&["drain"], &paths)
    });
    for (name, word) in [
        ("a socket in its directory", "--socket"),
        ("the agents' socket in its directory", "--agent-socket"),
        ("the metrics' socket in its directory", "metrics.listen="),
    ] {
        refused(name, &|trap| {
            let theirs = trap.theirs.join("socket-there");
            let mut paths = vec![("--run-dir", trap.own("run")), (word, theirs)];
            if word != "--socket" {
                paths.push(("--socket", trap.own("socket")));
            }
            let paths: Vec<_> = paths.iter().map(|(word, path)| (*word, &**path)).collect();
            prezero(&serve, &paths)
        });
    }
    refused("a control tree behind its link", &|trap| {
        let tree = [&SERVE[..], &["--set", "tree.enabled=true"]].concat();
        let path = trap.theirs.join("link/tree");
        let run = trap.own("run");
        let paths =
            [("--run-dir", &*run), ("--socket", &trap.own("socket")), ("tree.path=", &path)];
        prezero(&tree, &paths)
    });
}

// Promise P261 (socket): A socket has its mode from the start, or refuses all users before. Modes
// and owners are changed through the new socket, never by a name.
#[test]
fn sockets_have_their_modes_without_a_change_by_name() {
    let _alone = alone();
    let place = tempfile::tempdir().expect("a directory");
    let at = |name: &str| place.path().join(name);
    let (socket, metrics, calls) = (at("socket"), at("metrics"), at("calls"));
    let mut serve = Command::new("strace");
    serve
        .args(["-f", "-s", "300", "-e", "trace=chmod,fchmodat,?fchmodat2,chown,lchown,fchownat"])
        .args([Path::new("-o"), &calls, &binary()])
        .args(SERVE)
        .args(["--set", "tree.enabled=false", "--set"])
        .arg(format!("metrics.listen={}", metrics.display()))
        .args([Path::new("--socket"), &socket, Path::new("--run-dir"), &at("run")]);
    let begun = Instant::now();
    let mut child = match serve.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        Ok(child) => child,
        Err(error) => {
            testkit::skip(&format!("strace: {error}"));
            return;
        }
    };
    let mode = |path: &Path| fs::symlink_metadata(path).map(|is| is.permissions().mode() & 0o777);
    while mode(&metrics).ok() != Some(0o666) && begun.elapsed() < START_TIMEOUT {
        std::thread::sleep(Duration::from_millis(5));
    }
    let modes = [&socket, &metrics, &at("socket.agent")].map(|path| mode(path).ok());
    // It keeps signals to itself.
    for daemon in children(child.id()) {
        kill(daemon, Signal::SIGTERM).expect("it serves");
    }
    child.wait().expect("our child");
    assert_eq!(modes, [Some(0o666), Some(0o666), Some(0o600)]);
    let text = fs::read_to_string(&calls).expect("what strace wrote");
    let by_name: Vec<_> = text
        .lines()
        // `???(`: strace saw the thread end before it could read the call.
        .filter(|call| call.contains('(') && !call.contains("+++") && !call.contains("???("))
        .filter(|call| !call.contains("\"/proc/self/fd/") && !call.contains("AT_EMPTY_PATH"))
        .collect();
    assert!(text.contains("chmod"), "strace saw none: {text}");
    assert!(by_name.is_empty(), "by a name that may be another file's by then: {by_name:#?}");
}
