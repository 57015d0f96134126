// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Paths by which the user of a loan by name finds it, and what other users can do with them.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use prezero_tests::daemon::WAIT_TIMEOUT;
use prezero_tests::user::{NO_USER, run_as_user};
use prezero_tests::{Daemon, Page};
use testkit::child::alone;
use units::Pages;

use super::{named, names};

const PAGE: Page = Page::Mib2;
/// Neither the file's user nor root.
const OTHER_USER: u32 = NO_USER - 1;

/// A daemon with two ready pages, and a directory like `/dev/shm`.
fn bed(config: &str) -> Option<(Daemon, PathBuf)> {
    let daemon = Daemon::start(PAGE, 2, &format!("{}{config}", PAGE.pool("max = 2")))?;
    daemon.zero("max");
    let shm = directory(daemon.scratch(), "shm", 0o1777);
    Some((daemon, shm))
}

fn directory(at: &Path, name: &str, mode: u32) -> PathBuf {
    let dir = at.join(name);
    fs::create_dir(&dir).expect("our own directory");
    fs::set_permissions(&dir, Permissions::from_mode(mode)).expect("our own");
    dir
}

/// `prezero lend` of a page to `NO_USER` by that name, with `words`.
fn lend(daemon: &Daemon, name: &str, words: &[&str]) -> Output {
    let mut command = daemon.command(&["lend", "2M", "--name", name, "--whole"]);
    command.args(["--uid", "65534"]).args(words).output().expect("it runs")
}

fn path_of(output: &Output) -> PathBuf {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout).trim().into()
}

/// Whether that user finds the page's first byte there, zero.
fn reads(user: u32, path: &Path) -> bool {
    let first = |path| {
        let file = File::options().read(true).write(true).open(path).ok()?;
        let mut byte = [1];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, 0).ok()?;
        Some(byte == [0])
    };
    run_as_user(user, || first(path) == Some(true))
}

fn is_gone(path: &Path) -> bool {
    path.symlink_metadata().is_err()
}

fn until(what: &str, daemon: &Daemon, wanted: impl Fn() -> bool) {
    let begin = Instant::now();
    while !wanted() {
        assert!(begin.elapsed() < WAIT_TIMEOUT, "{what}: {}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn give_back(daemon: &Daemon, name: &str) {
    daemon.agent().return_loan(named(name), false).expect("it is lent");
}

// Promise P360 (names): A loan by name is found at its `--bind`, its `--link` and the path that
// `lend --uid` prints, by its user and root alone, until its end: over the daemon's death, and
// gone with a return, a revocation, or the next start. The file is recycled, as without a path.
#[test]
fn paths_lead_to_the_loan_for_its_user_until_its_end() {
    let _alone = alone();
    let Some((mut daemon, shm)) = bed("") else { return };
    let inode = |path: &Path| path.metadata().expect("a file").ino();
    for (flag, how) in
        [("--bind", "return"), ("--link", "return"), ("--bind", "revoke"), ("", "return")]
    {
        let wanted = shm.join("vllm_offload_e0.mmap");
        let shown = wanted.display().to_string();
        let words: &[&str] = if flag.is_empty() { &[] } else { &[flag, &shown] };
        let path = path_of(&lend(&daemon, "a/x", words));
        assert_eq!(path == wanted, !flag.is_empty(), "{path:?}");
        assert!(reads(NO_USER, &path) && !reads(OTHER_USER, &path), "{flag}");
        let block = inode(&path);
        daemon.kill();
        daemon.launch();
        assert!(reads(NO_USER, &path), "{flag}: {}", daemon.log());
        assert_eq!(path_of(&lend(&daemon, "a/x", words)), path, "the same loan again");
        match how {
            "revoke" => {
                let status = daemon.status();
                let lease = status.loans.first().expect("a loan").lease;
                daemon.client().revoke(lease).expect("root may");
            }
            _ => give_back(&daemon, "a/x"),
        }
        until("the path is gone", &daemon, || is_gone(&path));
        until("its directory is gone", &daemon, || {
            fs::read_dir(daemon.run_dir().join("named")).is_ok_and(|mut dir| dir.next().is_none())
        });
        daemon.wait_for("returned", |p| p.lent_pages + p.draining_pages == Pages(0));
        daemon.zero("max");
        // A block that was bound is recycled where the daemon can prove that it is free.
        if how == "return"
            && daemon.status().pools.iter().any(|pool| pool.recycle == wire::Recycle::InPlace)
        {
            let path = path_of(&lend(&daemon, "a/y", &[]));
            let second = path_of(&lend(&daemon, "a/z", &[]));
            assert!([inode(&path), inode(&second)].contains(&block), "{flag} kept its block busy");
            give_back(&daemon, "a/y");
            give_back(&daemon, "a/z");
            daemon.wait_for("returned", |p| p.lent_pages + p.draining_pages == Pages(0));
            daemon.zero("max");
        }
    }
}

// Promise P361 (names): A path that exists, or that the loan's user cannot make, is refused with
// exit code 2 and `BadValue`. The file there stays, and no memory is lent.
#[test]
fn path_that_exists_or_cannot_be_made_is_refused() {
    let _alone = alone();
    let Some((daemon, shm)) = bed("") else { return };
    let file = shm.join("file");
    fs::write(&file, "there").expect("our own directory");
    let link = shm.join("link");
    symlink("/nowhere", &link).expect("our own directory");
    let closed = directory(daemon.scratch(), "closed", 0o755);
    let hidden = directory(daemon.scratch(), "hidden", 0o700);
    let cases = [
        (file.clone(), "exists"),
        (link.clone(), "exists"),
        (shm.clone(), "exists"),
        (closed.join("new"), "user 65534 cannot make it"),
        (hidden.join("new"), "user 65534 cannot make it"),
        (shm.join("missing/new"), "user 65534 cannot make it"),
        (file.join("new"), "user 65534 cannot make it"),
    ];
    for (path, says) in &cases {
        for flag in ["--bind", "--link"] {
            let refused = lend(&daemon, "a/x", &[flag, &path.display().to_string(), "--json"]);
            let error = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(2), "{path:?}: {error}");
            assert!(error.contains(says) && error.contains("io.prezero.BadValue"), "{error}");
        }
    }
    assert_eq!(names(&daemon, ""), Vec::<String>::new());
    assert_eq!(daemon.pool().ready_pages, Pages(2));
    assert_eq!(fs::read_to_string(&file).expect("it stays"), "there");
    assert_eq!(link.read_link().expect("it stays"), Path::new("/nowhere"));
    assert_eq!(fs::read_dir(&closed).expect("it stays").count(), 0);
}

// Promise P362 (names): The end of a loan removes the paths that `lend` made, with the rights that
// made them. Files and links that a user puts in their place stay.
#[test]
fn end_of_a_loan_removes_only_what_lend_made() {
    let _alone = alone();
    let Some((daemon, shm)) = bed("") else { return };
    let theirs = directory(daemon.scratch(), "theirs", 0o755);
    chown(&theirs, Some(NO_USER), Some(NO_USER)).expect("root");
    let victim = directory(daemon.scratch(), "victim", 0o755);
    let moved = daemon.scratch().join("moved");
    for flag in ["--bind", "--link"] {
        let path =
            path_of(&lend(&daemon, "a/x", &[flag, &theirs.join("memory").display().to_string()]));
        // Alike the daemon's own, in a directory that is root's.
        let secret = victim.join("memory");
        match flag {
            "--bind" => fs::write(&secret, ""),
            _ => symlink(path.read_link().expect("a link"), &secret),
        }
        .expect("our own directory");
        lchown(&secret, Some(NO_USER), Some(NO_USER)).expect("root");
        path_of(&lend(&daemon, "a/y", &[flag, &shm.join("y").display().to_string()]));
        // The user's directory moves away, and a link to root's takes its place.
        fs::rename(&theirs, &moved).expect("on one file system");
        symlink(&victim, &theirs).expect("our own directory");
        lchown(&theirs, Some(NO_USER), Some(NO_USER)).expect("root");
        if flag == "--link" {
            // Another link, and a file, in place of the daemon's.
            let link = shm.join("y");
            fs::remove_file(&link).expect("root may");
            symlink(victim.join("memory"), &link).expect("our own directory");
            lchown(&link, Some(NO_USER), Some(NO_USER)).expect("root");
        }
        give_back(&daemon, "a/x");
        give_back(&daemon, "a/y");
        daemon.wait_for("returned", |p| p.lent_pages + p.draining_pages == Pages(0));
        until("the directories are gone", &daemon, || {
            fs::read_dir(daemon.run_dir().join("named")).is_ok_and(|mut dir| dir.next().is_none())
        });
        assert!(!is_gone(&secret), "{flag} removed what the user could not");
        assert!(daemon.run_dir().join("tree").exists());
        let left = moved.join("memory");
        match flag {
            // Unbound wherever it is; the user's own empty file is the user's to remove.
            "--bind" => assert_eq!(left.metadata().expect("it moved").len(), 0),
            _ => {
                assert!(is_gone(&left) || left.read_link().is_ok(), "a link that leads nowhere");
                assert_eq!(shm.join("y").read_link().expect("it stays"), secret);
            }
        }
        fs::remove_file(&theirs).expect("a link");
        drop(fs::remove_file(&left));
        fs::rename(&moved, &theirs).expect("on one file system");
        drop(fs::remove_file(shm.join("y")));
        fs::remove_file(&secret).expect("it is there");
        daemon.zero("max");
    }
}

// Promise P360.
#[test]
fn paths_of_a_loan_that_ended_unseen_go_at_the_next_start() {
    let _alone = alone();
    let Some((mut daemon, shm)) = bed("") else { return };
    let path = path_of(&lend(&daemon, "a/x", &["--link", &shm.join("x").display().to_string()]));
    let memory = path.read_link().expect("a link");
    daemon.kill();
    // As after a crash between the loan's end and the removal: the record, without its loan.
    let (lent, unseen) = (memory.parent().expect("a directory"), daemon.run_dir().join("named/7"));
    fs::create_dir(&unseen).expect("the daemon's own");
    let record = fs::read_to_string(lent.join("paths")).expect("a record");
    let (_, places) = record.split_once('\n').expect("two lines");
    let places = places.replace("/x\n", "/z\n");
    fs::write(unseen.join("paths"), format!("file 0 0\n{places}")).expect("our own");
    let stale = shm.join("z");
    symlink(unseen.join("memory"), &stale).expect("our own directory");
    lchown(&stale, Some(NO_USER), None).expect("root");
    daemon.launch();
    until("the path is gone", &daemon, || is_gone(&stale));
    until("its directory is gone", &daemon, || is_gone(&unseen));
    assert!(reads(NO_USER, &path), "the other loan goes on");
    give_back(&daemon, "a/x");
    until("the path is gone", &daemon, || is_gone(&path));
}

// Promise P363 (names): A member of `agent.group` other than root opens its own loan by the path
// that `lend` prints, and by a link that it makes with its own rights; to bind is for root.
#[test]
fn member_of_the_agents_group_opens_its_own_loan() {
    let _alone = alone();
    let config = format!("[agent]\ngroup = \"{NO_USER}\"\n");
    let Some((daemon, shm)) = bed(&config) else { return };
    // The binary lies where root alone may look.
    let program = daemon.scratch().join("prezero");
    fs::copy(prezero_tests::daemon::binary(), &program).expect("a copy");
    let as_member = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words).env("PREZERO_SOCKET", daemon.socket()).current_dir("/");
        command.uid(NO_USER).gid(NO_USER).output().expect("it runs")
    };
    let path = path_of(&as_member(&["lend", "2M", "--name", "a/own", "--whole"]));
    assert!(reads(NO_USER, &path) && !reads(OTHER_USER, &path));
    let link = shm.join("own").display().to_string();
    let path = path_of(&as_member(&["lend", "2M", "--name", "a/link", "--link", &link]));
    assert!(path == Path::new(&link) && reads(NO_USER, &path));
    let bind = shm.join("bound").display().to_string();
    let refused = as_member(&["lend", "2M", "--name", "a/bind", "--bind", &bind]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(4) && error.contains("only root"), "{error}");
    assert!(is_gone(Path::new(&bind)), "nothing is left");
    for name in ["a/own", "a/link"] {
        assert!(as_member(&["return", name]).status.success());
    }
    until("the link is gone", &daemon, || is_gone(Path::new(&link)));
}
