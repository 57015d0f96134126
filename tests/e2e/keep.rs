// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Content kept for its owner.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use prezero_tests::MapAlone as _;
use prezero_tests::memory::{assert_soiled, assert_zero, soil};
use prezero_tests::{Daemon, Page};
use serde_json::json;
use testkit::child::{alone, fork};
use units::Pages;
use wire::PoolStatus;

const LONG_PERIOD: Duration = Duration::from_secs(300);

// Promise P4 (isolation): Kept content goes to the same owner of the same user only, and is gone
// after its time.
#[test]
fn the_same_owner_gets_its_content_back_and_others_get_zeros() {
    for page in Page::ALL {
        let Some(daemon) = Daemon::start(page, 2, &page.pool("")) else { return };
        daemon.zero("max");
        let loan = daemon.lend_to("guest1", LONG_PERIOD, page, 1);
        assert!(!loan.is_kept());
        let memory = loan.map_alone().expect("a mapping");
        assert_zero(&memory);
        soil(&memory, 0x42);
        drop((memory, loan));
        daemon.wait_for("kept", |p| p.kept_pages == Pages(1));

        let other = daemon.lend_to("guest2", LONG_PERIOD, page, 1);
        assert!(!other.is_kept());
        assert_zero(&other.map_alone().expect("a mapping"));

        let again = daemon.lend_to("guest1", LONG_PERIOD, page, 1);
        assert!(again.is_kept());
        assert_soiled(&again.map_alone().expect("a mapping"), 0x42);
    }
}

// Promise P4.
#[test]
fn the_same_name_of_another_user_is_another_owner() {
    let _alone = alone();
    let page = Page::Mib2;
    let config = format!("lend_group = \"65534\"\n{}", page.pool(""));
    let Some(daemon) = Daemon::start(page, 2, &config) else { return };
    daemon.zero("max");
    let loan = daemon.lend_to("guest", LONG_PERIOD, page, 1);
    soil(&loan.map_alone().expect("a mapping"), 0x42);
    drop(loan);
    daemon.wait_for("kept", |p| p.kept_pages == Pages(1));
    let stranger = fork(|_| {
        nix::unistd::setgroups(&[]).expect("root");
        nix::unistd::setgid(65534.into()).expect("root");
        nix::unistd::setuid(65534.into()).expect("root");
        let loan = daemon.lend_to("guest", LONG_PERIOD, page, 1);
        assert!(!loan.is_kept());
        assert_zero(&loan.map_alone().expect("a mapping"));
        0
    });
    assert_eq!(stranger.wait(), Some(0));
}

// Promise P214 (isolation): Zeros that never reached their owner are not kept for it: its next
// loan does not say that they are its content.
#[test]
fn zeros_that_never_got_to_their_owner_are_not_kept_for_it() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 2, &page.pool("recycle = \"in-place\"")) else { return };
    daemon.zero("max");
    let ask = || {
        // It leaves the answer: sending one fails.
        let mut stream = UnixStream::connect(daemon.socket()).expect("the daemon listens");
        stream.shutdown(Shutdown::Read).expect("a socket");
        let parameters = json!({
            "bytes": page.times(1).0, "owner": "guest", "keep_seconds": 300, "single": true
        });
        let call = json!({ "method": "io.prezero.Lend", "parameters": parameters });
        write!(stream, "{call}\0").expect("the daemon reads");
        stream
    };
    let returned = |loans| {
        let is_over = |pool: &PoolStatus| {
            let others = pool.lent_pages + pool.draining_pages;
            daemon.status().counters.loans == loans && others == Pages(0)
        };
        daemon.wait_for("the loan is over", is_over).kept_pages
    };
    let stream = ask();
    assert_eq!(returned(1), Pages(0), "it had nothing there");
    drop(stream);
    let loan = daemon.lend_to("guest", LONG_PERIOD, page, 1);
    assert!(!loan.is_kept());
    soil(&loan.map_alone().expect("a mapping"), 0x42);
    drop(loan);
    assert_eq!(returned(2), Pages(1));

    let stream = ask();
    assert_eq!(returned(3), Pages(1), "its content stays where another answer is lost");
    drop(stream);
    let again = daemon.lend_to("guest", LONG_PERIOD, page, 1);
    assert!(again.is_kept());
    assert_soiled(&again.map_alone().expect("a mapping"), 0x42);
}

// Promise P4.
#[test]
fn kept_content_ends_with_its_keep_time() {
    for recycle in ["fresh", "in-place"] {
        let page = Page::Mib2;
        let pool = page.pool(&format!("recycle = \"{recycle}\""));
        let Some(daemon) = Daemon::start(page, 1, &pool) else { return };
        daemon.zero("max");
        let loan = daemon.lend_to("guest", Duration::from_secs(1), page, 1);
        soil(&loan.map_alone().expect("a mapping"), 0x42);
        drop(loan);
        daemon.wait_for("kept", |p| p.kept_pages == Pages(1));
        daemon.wait_for("given up", |p| p.kept_pages == Pages(0) && p.zeroable_pages == Pages(1));
        daemon.zero("max");
        let loan = daemon.lend_to("guest", LONG_PERIOD, page, 1);
        assert!(!loan.is_kept());
        assert_zero(&loan.map_alone().expect("a mapping"));
    }
}

// Promise P12 (crashes): Kept content survives the daemon.
#[test]
fn kept_content_survives_the_daemon() {
    let page = Page::Mib2;
    let Some(mut daemon) = Daemon::start(page, 2, &page.pool("")) else { return };
    daemon.zero("max");
    let loan = daemon.lend_to("guest", LONG_PERIOD, page, 2);
    soil(&loan.map_alone().expect("a mapping"), 0x42);
    drop(loan);
    // One file of one page, and an unbacked part of another: both are content.
    daemon.wait_for("kept", |p| p.kept_pages == Pages(2));
    daemon.kill();
    daemon.launch();
    let again = daemon.lend_to("guest", LONG_PERIOD, page, 2);
    assert!(again.is_kept());
    assert_soiled(&again.map_alone().expect("a mapping"), 0x42);
}

// Promise P13 (crashes): A program that is killed and restarted at once finds its content.
#[test]
fn a_program_killed_and_restarted_at_once_finds_its_content() {
    let _alone = alone();
    let page = Page::Gib1;
    let Some(daemon) = Daemon::start(page, 1, &page.pool("")) else { return };
    daemon.zero("max");
    let first = fork(|ready| {
        let loan = daemon.lend_to("db", LONG_PERIOD, page, 1);
        let memory = loan.map_alone().expect("a mapping");
        soil(&memory, 0x42);
        ready.signal();
        ready.hold()
    });
    first.wait_ready();
    first.kill();
    // No pause: the daemon waits for the former self's last mapping, not the caller.
    let again = daemon.lend_to("db", LONG_PERIOD, page, 1);
    assert!(again.is_kept(), "{}", daemon.log());
    assert_soiled(&again.map_alone().expect("a mapping"), 0x42);
}
