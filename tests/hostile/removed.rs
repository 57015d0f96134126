// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A user with the number of a removed one: content is kept for numbers, and SECURITY.md has the
//! command that ends that.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use units::Pages;

use client::{Client, LendRequest};
use prezero_tests::{Daemon, Page};
use testkit::child::{alone, fork};

use crate::attack::say;
use crate::users::{LEND_GROUP, User};

/// What the number's next user finds, or leaves.
fn borrow(daemon: &Daemon) -> bool {
    let child = fork(|_| {
        User::Borrower.become_it();
        let request = LendRequest {
            owner: Some("cache".parse().expect("a name")),
            keep: Some(Duration::from_secs(600)),
            ..LendRequest::new(Page::Mib2.times(1))
        };
        let mut client = Client::connect(daemon.socket()).expect("it listens");
        i32::from(client.lend(&request).expect("a loan").is_kept())
    });
    child.wait() == Some(1)
}

/// The command of SECURITY.md for that directory and number.
fn printed(run_dir: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in it");
    let text = std::fs::read_to_string(root.join("SECURITY.md")).expect("the page");
    let line = text.lines().map(str::trim).find(|line| line.starts_with("find /run/prezero/"));
    let line = line.expect("the command").replace("/run/prezero", &run_dir.display().to_string());
    line.replace("1000", &User::Borrower.number().to_string())
}

#[test]
fn printed_command_removes_content_of_a_removed_user() {
    let _alone = alone();
    let pool = Page::Mib2.pool("max = 8\n[workers]\nmax = 0");
    let config = format!("lend_group = \"{LEND_GROUP}\"\n{pool}");
    let mut daemon = Daemon::start_with(None, &config, &["--plain"]);
    assert!(!borrow(&daemon), "it is the first");
    daemon.wait_for("kept", |pool| pool.kept_pages == Pages(1));
    assert!(borrow(&daemon), "content is the number's");
    daemon.wait_for("kept", |pool| pool.kept_pages == Pages(1));
    daemon.terminate();
    let removed = Command::new("sh").args(["-ec", &printed(&daemon.run_dir())]).status();
    assert!(removed.is_ok_and(|status| status.success()));
    daemon.launch();
    assert!(!borrow(&daemon), "it is nobody's now");
    let got = "zeros after the command of SECURITY.md";
    say(&["content of a removed user of its number", "borrower", got, "", "nothing"]);
}
