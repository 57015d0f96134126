// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Content that stays for the owner of a loan by name.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

use std::time::Duration;

use client::{Client, LendRequest};
use prezero_tests::memory::{assert_soiled, assert_zero, soil};
use prezero_tests::refused::refusal;
use prezero_tests::user::NO_USER;
use prezero_tests::{Daemon, Page};
use testkit::child::alone;
use testkit::punch;
use units::{Bytes, Pages, Uid};
use wire::Error as Refused;

use super::{ask, map, named, names, raw_call};

/// With an owner and content kept for a minute.
fn owned(name: &str, owner: &str, bytes: Bytes) -> LendRequest {
    let owner = Some(owner.parse().expect("an owner"));
    LendRequest { owner, keep: Some(Duration::from_secs(60)), whole: true, ..ask(name, bytes) }
}

/// Whether it is what its owner left, and its path.
fn lend(daemon: &Daemon, request: &LendRequest) -> (bool, String) {
    let lent = daemon.agent().lend(request).expect("it lends");
    (lent.is_kept(), lent.path().expect("a path").to_owned())
}

/// Returns a loan. The pages that are kept then.
fn back(daemon: &Daemon, name: &str) -> u64 {
    daemon.agent().return_loan(named(name), false).expect("it is lent");
    kept(daemon)
}

fn kept(daemon: &Daemon) -> u64 {
    daemon.wait_for("settled", |p| p.draining_pages == Pages(0)).kept_pages.0
}

// Promise P216 (names): What a loan by name leaves for an owner the next one of that scope, owner,
// user and size has, whole, and no other, also over a crash of the daemon; it counts in its scope
// meanwhile.
#[test]
fn content_stays_for_an_owner_within_its_scope_only() {
    let _alone = alone();
    for page in Page::ALL {
        let Some(mut daemon) = Daemon::start(page, 2, &page.pool("max = 2")) else { return };
        let mine = |name| owned(name, "cache", page.times(1));
        let (is_kept, path) = lend(&daemon, &mine("team-a/one.0"));
        assert!(!is_kept, "nobody has left anything");
        let memory = map(&path, page);
        assert_zero(&memory);
        soil(&memory, 0x42);
        drop(memory);
        assert_eq!(back(&daemon, "team-a/one.0"), 1);
        // Another scope, another user, another owner, none; and a loan without a name. They leave
        // nothing: the pool has one page more than the kept ones.
        let leaves_nothing = |request| LendRequest { keep: None, ..request };
        for request in [
            leaves_nothing(mine("team-b/one.0")),
            leaves_nothing(mine("team-a/user").given_to(Some(Uid(NO_USER)), None)),
            leaves_nothing(owned("team-a/other", "Cache", page.times(1))),
            ask("team-a/plain", page.times(1)),
        ] {
            let (is_kept, path) = lend(&daemon, &request);
            assert!(!is_kept, "{request:?} is given what team-a's owner left");
            assert_zero(&map(&path, page));
            assert_eq!(back(&daemon, request.name().expect("a name").as_str()), 1);
        }
        let mut client = Client::connect(daemon.socket()).expect("it listens");
        let request = LendRequest {
            owner: Some("cache".parse().expect("an owner")),
            single: true,
            ..LendRequest::new(page.times(1))
        };
        let loan = client.lend(&request).expect("it lends");
        assert!(!loan.is_kept(), "an owner of a scope is no other");
        drop(loan);
        assert_eq!(kept(&daemon), 1);
        // Its owner finds it after a crash, by another name, and while the owner has it all others
        // are refused.
        daemon.kill();
        daemon.launch();
        let (is_kept, path) = lend(&daemon, &mine("team-a/two.0"));
        assert!(is_kept, "{}", daemon.log());
        assert_soiled(&map(&path, page), 0x42);
        let (is_kept, second) = lend(&daemon, &leaves_nothing(mine("team-a/three.0")));
        assert!(!is_kept, "one content is given twice");
        assert_zero(&map(&second, page));
        assert_eq!(back(&daemon, "team-a/three.0"), 0);
        daemon.kill();
        daemon.launch();
        let again = daemon.agent().lend(&mine("team-a/two.0")).expect("the same");
        assert_eq!((again.was_found(), again.path()), (true, Some(&*path)));
        assert_soiled(&map(&path, page), 0x42);
        assert_eq!(back(&daemon, "team-a/two.0"), 1);
        // Who had it for nothing says so.
        let (is_kept, _) = lend(&daemon, &mine("team-a/four.0"));
        assert!(is_kept);
        daemon.agent().return_loan(named("team-a/four.0"), true).expect("it is lent");
        assert_eq!(kept(&daemon), 0);
        let (is_kept, path) = lend(&daemon, &mine("team-a/five.0"));
        assert!(!is_kept, "it was to be kept for nobody");
        assert_zero(&map(&path, page));
        back(&daemon, "team-a/five.0");
    }
}

// Promise P221 (names): No loan by name is kept that is partly unbacked, has another name of its
// file, never had its own, or is discarded.
#[test]
fn unbacked_or_linked_file_is_not_kept_by_name() {
    let _alone = alone();
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 2, &page.pool("max = 2")) else { return };
    let mine = owned("team-a/one", "cache", page.times(2));
    // A process that keeps a name of the file over its return would have the content again.
    let (_, path) = lend(&daemon, &mine);
    let path_only = File::options().read(true).custom_flags(nix::libc::O_PATH).open(path);
    let path_only = path_only.expect("root may");
    assert_eq!(back(&daemon, "team-a/one"), 0);
    drop(path_only);
    // Who gets it next may not be let fill it.
    let (is_kept, path) = lend(&daemon, &mine);
    assert!(!is_kept);
    let file = File::options().write(true).open(&path).expect("root may");
    punch(file, page.times(1).0..page.times(2).0).expect("an unbacked part");
    assert_eq!(back(&daemon, "team-a/one"), 0);
    let (is_kept, path) = lend(&daemon, &mine);
    assert!(!is_kept);
    assert_zero(&map(&path, page));
    assert_eq!(back(&daemon, "team-a/one"), 2);
    assert!(lend(&daemon, &mine).0, "it is whole");
    back(&daemon, "team-a/one");
}

// Promise P241 (names): A loan by name waits two seconds for its owner's content while a process
// still has it, and goes on without.
#[test]
fn owner_with_mapped_content_waits_and_then_has_new_memory() {
    let _alone = alone();
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 2, &page.pool("max = 2")) else { return };
    let mine = |name| owned(name, "cache", page.times(1));
    let (_, path) = lend(&daemon, &mine("team-a/one"));
    let memory = map(&path, page);
    daemon.agent().return_loan(named("team-a/one"), false).expect("it is lent");
    daemon.wait_for("draining", |pool| pool.draining_pages == Pages(1));
    let (is_kept, path) = lend(&daemon, &mine("team-a/two"));
    assert!(!is_kept);
    assert_zero(&map(&path, page));
    drop(memory);
    back(&daemon, "team-a/two");
}

// Promise P216.
#[test]
fn kept_names_count_in_their_scope_and_bad_owners_are_refused() {
    let _alone = alone();
    let page = Page::Mib2;
    let quota = format!("[agent]\nquota_of = {{ team = \"{}M\" }}\n", page.times(1).0 >> 20);
    let config = format!("keep_seconds_max = 60\n{quota}{}", page.pool("max = 4"));
    let Some(daemon) = Daemon::start(page, 4, &config) else { return };
    let ask_for = |request| daemon.agent().lend(&request);
    ask_for(owned("team/one", "a", page.times(1))).expect("it lends");
    assert_eq!(back(&daemon, "team/one"), 1);
    let no = refusal(ask_for(ask("team/two", page.times(1))));
    assert!(
        matches!(no, Refused::ScopeQuotaExceeded { held_bytes, .. } if held_bytes == page.times(1)),
        "{no}"
    );
    let again = ask_for(owned("team/three", "a", page.times(1))).expect("it counts already");
    assert!(again.is_kept());
    let another = refusal(ask_for(owned("team/three", "b", page.times(1))));
    assert!(matches!(another, Refused::NameTaken { .. }), "of another owner: {another}");
    back(&daemon, "team/three");
    let long = "o".repeat(64);
    let one = |name| owned(name, "a", page.times(1));
    for (request, why) in [
        (one("noscope"), "scope"),
        (owned(&format!("s/{}", "n".repeat(80)), &long, page.times(1)), "file name"),
        (LendRequest { keep: Some(Duration::from_secs(61)), ..one("s/n") }, "keep_seconds_max"),
        (LendRequest { owner: None, ..one("s/n") }, "needs an owner"),
        (LendRequest { whole: false, ..one("s/n") }, "whole"),
    ] {
        let no = refusal(ask_for(request));
        assert!(no.to_string().contains(why), "{no}");
    }
    let bytes = page.times(1).0;
    for owner in ["", "a/b", "a-b", "..%2f", "a b"] {
        let parameters = format!(r#"{{"name": "s/n", "bytes": {bytes}, "owner": "{owner}"}}"#);
        let no = raw_call(&daemon.agent_socket(), "Lend", &parameters);
        assert!(no.contains("BadValue") && no.contains("owner"), "{owner:?}: {no}");
    }
    assert!(names(&daemon, "s/").is_empty());
}
