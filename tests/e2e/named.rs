// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans by name: agents hand them on to others, which hold only a path.

mod owners;
mod paths;
mod storm;

use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use client::{Client, LendRequest, LoanName};
use linux::Mapping;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use prezero_tests::daemon::{WAIT_TIMEOUT, binary};
use prezero_tests::memory::{assert_soiled, assert_zero, soil};
use prezero_tests::refused::refusal;
use prezero_tests::user::{NO_USER, as_other_user};
use prezero_tests::{Daemon, Page};
use testkit::child::{alone, fork};
use units::{Bytes, Pages, Uid};
use wire::Error as Refused;

fn named(name: &str) -> LoanName {
    name.parse().expect("a name")
}

fn ask(name: &str, bytes: Bytes) -> LendRequest {
    LendRequest::by_name(named(name), bytes)
}

/// Maps a loan like any program that gets its path.
fn map(path: &str, page: Page) -> Mapping {
    let file = File::options().read(true).write(true).open(path).expect("root may open it");
    let bytes = file.metadata().expect("a file").len();
    Mapping::map(&file, bytes, page.size()).expect("a mapping")
}

fn names(daemon: &Daemon, prefix: &str) -> Vec<String> {
    daemon.agent().loans(prefix).expect("a list").into_iter().map(|loan| loan.name).collect()
}

// Promise P145 (names): A loan by name lasts until the name is returned, over every end and
// restart: its path, content and user stay.
// Promise P147 (names): The same name and size again are the same loan; another size, node, page
// size or user is refused with the loan there is.
#[test]
fn named_loan_outlives_caller_and_daemon_until_it_is_returned() {
    let _alone = alone();
    for page in Page::ALL {
        let Some(mut daemon) = Daemon::start(page, 2, &page.pool("max = 2")) else { return };
        daemon.zero("max");
        let lent = daemon.agent().lend(&ask("team-a/db.0", page.times(1))).expect("it lends");
        assert_eq!((lent.was_found(), lent.ready_bytes()), (false, page.times(1)));
        let path = lent.path().expect("a path").to_owned();
        let memory = map(&path, page);
        assert_zero(&memory);
        soil(&memory, 0x42);
        // The file is closed and unmapped, and no caller is connected.
        drop(memory);
        for stop in [Daemon::kill as fn(&mut Daemon), Daemon::terminate] {
            stop(&mut daemon);
            daemon.launch();
            let pool = daemon.pool();
            assert_eq!(
                (pool.lent_pages, pool.ready_pages),
                (Pages(1), Pages(1)),
                "{pool:?}\n{}",
                daemon.log()
            );
            let listed = daemon.agent().loans("team-a/").expect("a list");
            let [loan] = &listed[..] else { panic!("{listed:?}") };
            assert_eq!((loan.name.as_str(), &loan.path), ("team-a/db.0", &path));
            let expected = (lent.bytes(), lent.page_size(), false);
            assert_eq!((loan.bytes, loan.page_size, loan.pending), expected);
            assert_soiled(&map(&path, page), 0x42);
        }
        let again = daemon.agent().lend(&ask("team-a/db.0", page.times(1))).expect("the same");
        assert_eq!((again.was_found(), again.path(), again.id()), (true, Some(&*path), lent.id()));
        let other = refusal(daemon.agent().lend(&ask("team-a/db.0", page.times(2))));
        assert!(
            matches!(other, Refused::NameTaken { bytes, .. } if bytes == page.times(1)),
            "{other}"
        );
        daemon.agent().return_loan(named("team-a/db.0"), false).expect("it is lent");
        let gone = refusal(daemon.agent().return_loan(named("team-a/db.0"), false));
        assert_eq!(gone, Refused::NoSuchName { name: "team-a/db.0".to_owned() });
        assert!(!Path::new(&path).exists(), "its path leads nowhere");
        daemon.wait_for("zeroable", |p| p.zeroable_pages == Pages(1) && p.lent_pages == Pages(0));
        daemon.zero("max");
        let next = daemon.agent().lend(&ask("team-b/x", page.times(1))).expect("it lends");
        assert_zero(&map(next.path().expect("a path"), page));
        daemon.agent().return_loan(named("team-b/x"), false).expect("it is lent");
        daemon.wait_for("returned", |p| p.lent_pages + p.draining_pages == Pages(0));
    }
}

// Promise P149 (names): A whole loan has every page, zero, when it is answered; or it is refused,
// with nothing left of it.
#[test]
fn whole_loan_has_every_page_or_is_refused() {
    let _alone = alone();
    let page = Page::Mib2;
    let config = format!("{}[agent]\nfill_max = \"8M\"\n", page.pool("pages_per_block = 2"));
    let Some(daemon) = Daemon::start(page, 8, &config) else { return };
    let whole = |name, pages| LendRequest { whole: true, ..ask(name, page.times(pages)) };
    // Not ready, ready in part, ready: whole in the end.
    let allocated = |path: &str| std::fs::metadata(path).expect("a file").blocks() * 512;
    let lent = daemon.agent().lend(&whole("none", 3)).expect("the daemon zeroes it");
    assert_eq!(
        (lent.ready_bytes(), allocated(lent.path().expect("a path"))),
        (Bytes(0), page.times(3).0)
    );
    assert_zero(&map(lent.path().expect("a path"), page));
    daemon.zero("max");
    let lent = daemon.agent().lend(&whole("part", 3)).expect("the daemon zeroes the rest");
    let found = (lent.ready_bytes(), allocated(lent.path().expect("a path")));
    assert_eq!(found, (page.times(2), page.times(3).0));
    assert_zero(&map(lent.path().expect("a path"), page));
    let supply = daemon.agent().supply().expect("it says");
    let [supply] = supply.as_slice() else { panic!("{supply:?}") };
    let expected = (page.times(6), page.times(8), page.times(2));
    assert_eq!((supply.named_bytes, supply.total_bytes, supply.block_bytes), expected);
    let ready: Vec<_> =
        supply.ready_blocks.iter().map(|of| (of.block_bytes, of.ready_bytes)).collect();
    assert_eq!(ready, [(page.times(2), supply.ready_bytes)]);
    // More than there is, and more than the daemon may zero: refused and left as before.
    let refused = refusal(daemon.agent().lend(&whole("much", 3)));
    assert!(matches!(refused, Refused::NotEnough { .. }), "{refused}");
    daemon.agent().return_loan(named("none"), false).expect("it is lent");
    daemon.agent().return_loan(named("part"), false).expect("it is lent");
    daemon.wait_for("free", |p| p.lent_pages + p.draining_pages == Pages(0));
    daemon.client().release(None, None, None).expect("root may");
    let refused = refusal(daemon.agent().lend(&whole("long", 5)));
    assert!(refused.to_string().contains("agent.fill_max"), "{refused}");
    assert_eq!(names(&daemon, ""), Vec::<String>::new());
    daemon.wait_for("nothing left", |p| p.lent_pages + p.draining_pages == Pages(0));
    // A missing part stays unbacked where the loan need not be whole.
    let lent = daemon.agent().lend(&ask("unbacked", page.times(5))).expect("an unbacked part");
    assert_eq!((lent.ready_bytes(), allocated(lent.path().expect("a path"))), (Bytes(0), 0));
    daemon.agent().return_loan(named("unbacked"), false).expect("it is lent");
    daemon.wait_for("free", |p| {
        p.lent_pages + p.draining_pages == Pages(0) && p.zeroable_pages == Pages(8)
    });
}

// Promise P147.
// Promise P150 (names): Names have their characters and length, scopes their quota, and all
// together their number; a refusal says which, and by how much.
#[test]
fn names_scopes_and_sizes_are_bounded_and_refusals_say_so() {
    let _alone = alone();
    let page = Page::Mib2;
    let config = format!(
        "{}[agent]\nnames = 3\nquota = \"4M\"\nquota_of = {{ team-b = \"2M\" }}\n",
        page.pool("max = 8")
    );
    let Some(daemon) = Daemon::start(page, 8, &config) else { return };
    daemon.zero("max");
    let mut agent = daemon.agent();
    let mut refused = |name: &str, pages| refusal(agent.lend(&ask(name, page.times(pages))));
    let exceeded = refused("team-a/1", 3);
    let expected = Refused::ScopeQuotaExceeded {
        scope: "team-a".to_owned(),
        held_bytes: Bytes(0),
        quota_bytes: Bytes(4 << 20),
        asked_bytes: Bytes(6 << 20),
    };
    assert_eq!(exceeded, expected);
    assert!(matches!(refused("team-b/1", 2), Refused::ScopeQuotaExceeded { .. }));
    assert!(matches!(refused("plain", 3), Refused::ScopeQuotaExceeded { .. }), "of no scope");
    agent.lend(&ask("team-b/1", page.times(1))).expect("2 of 2 MiB");
    agent.lend(&ask("team-a/1", page.times(1))).expect("2 of 4 MiB");
    let kept_mapped = agent.lend(&ask("team-a/2", page.times(1))).expect("4 of 4 MiB");
    let full = refusal(agent.lend(&ask("team-c/1", page.times(1))));
    assert_eq!(full, Refused::TooManyNames { most: 3 });
    // What is draining counts, too.
    let memory = map(kept_mapped.path().expect("a path"), page);
    agent.return_loan(named("team-a/2"), false).expect("it is lent");
    daemon.wait_for("draining", |p| p.draining_pages == Pages(1));
    let counted = refusal(agent.lend(&ask("team-a/3", page.times(1))));
    assert!(
        matches!(counted, Refused::ScopeQuotaExceeded { held_bytes: Bytes(4_194_304), .. }),
        "{counted}"
    );
    drop(memory);
    daemon.wait_for("let go of", |p| p.draining_pages == Pages(0));
    agent.lend(&ask("team-a/3", page.times(1))).expect("again 4 of 4 MiB");
    // Values that the client's types exclude.
    agent.return_loan(named("team-b/1"), false).expect("it is lent");
    let call =
        |method: &str, parameters: &str| raw_call(&daemon.agent_socket(), method, parameters);
    for (method, parameters, part) in [
        ("Lend", r#"{"name":"a//b","bytes":2097152}"#, "no name of a loan"),
        ("Lend", r#"{"name":"../up","bytes":2097152}"#, "no name of a loan"),
        ("Lend", r#"{"name":"a","bytes":5}"#, "bytes"),
        ("Lend", r#"{"name":"a","bytes":2097152,"page_bytes":3}"#, "page_bytes"),
        ("Lend", r#"{"name":"team-a/3","bytes":2097152,"node":7}"#, "NameTaken"),
        ("agent.Return", r#"{"name":""}"#, "no name of a loan"),
        ("agent.ListLoans", r#"{"after":"-"}"#, "no name of a loan"),
    ] {
        let answer = call(method, parameters);
        assert!(answer.contains("\"io.prezero.") && answer.contains(part), "{answer}");
    }
    agent.lend(&ask("plain", page.times(1))).expect("a name without a scope");
    let all = ["plain", "team-a/1", "team-a/3"];
    assert_eq!(names(&daemon, ""), all);
    assert_eq!(names(&daemon, "team-a/"), all[1..]);
    for name in all {
        agent.return_loan(named(name), false).expect("it is lent");
    }
    daemon.wait_for("free", |p| p.lent_pages + p.draining_pages == Pages(0));
}

/// One call without a client, and its answer.
fn raw_call(socket: &Path, method: &str, parameters: &str) -> String {
    use std::io::{BufRead, BufReader, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).expect("it listens");
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).expect("a timeout");
    let call = format!("{{\"method\":\"io.prezero.{method}\",\"parameters\":{parameters}}}\0");
    stream.write_all(call.as_bytes()).expect("it is sent");
    let mut answer = Vec::new();
    BufReader::new(stream).read_until(0, &mut answer).expect("an answer");
    String::from_utf8(answer).expect("text")
}

// Promise P151 (names): Only root and `agent.group` reach the agents' socket, by its mode and by
// credentials; the other socket knows nothing of names.
#[test]
fn agents_socket_is_for_its_group_and_the_other_has_no_names() {
    let _alone = alone();
    let page = Page::Mib2;
    let config =
        |group: &str| format!("lend_group = \"{NO_USER}\"\n{}[agent]\n{group}", page.pool(""));
    let Some(daemon) = Daemon::start(page, 2, &config("")) else { return };
    daemon.zero("max");
    let mode = |path: &Path| path.metadata().expect("a socket").permissions().mode() & 0o777;
    assert_eq!(mode(&daemon.agent_socket()), 0o600);
    as_other_user(|| Client::connect(daemon.agent_socket()).is_err());
    // The credentials refuse a user even if the socket's mode admits it.
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(daemon.agent_socket(), open).expect("root's");
    as_other_user(|| {
        let mut agent = Client::connect(daemon.agent_socket()).expect("it may knock");
        let refused = refusal(agent.loans(""));
        matches!(refused, Refused::NotPermitted { uid: Uid(NO_USER), .. })
    });
    let of_the_other = raw_call(&daemon.socket(), "agent.ListLoans", "{}");
    assert!(!of_the_other.contains("loans"), "{of_the_other}");
    daemon.write_config(&config(&format!("group = \"{NO_USER}\"\n")));
    daemon.signal(nix::sys::signal::Signal::SIGHUP);
    daemon.wait_for_log("the configuration was read again and holds now");
    assert_eq!(mode(&daemon.agent_socket()), 0o660);
    as_other_user(|| {
        let mut agent = Client::connect(daemon.agent_socket()).expect("a member may");
        agent.lend(&ask("mine", page.times(1))).expect("a member may");
        let listed = agent.loans("mine").expect("a member may");
        listed[0].uid == Uid(NO_USER) && agent.return_loan(named("mine"), false).is_ok()
    });
    // A file is its user's alone.
    let request = ask("given", page.times(1)).given_to(Some(Uid(NO_USER)), Some(NO_USER));
    let lent = daemon.agent().lend(&request).expect("root may");
    let file = Path::new(lent.path().expect("a path")).metadata().expect("a file");
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (NO_USER, NO_USER, 0o600));
    let other = refusal(daemon.agent().lend(&ask("given", page.times(1))));
    assert!(matches!(other, Refused::NameTaken { .. }), "for another user it is another loan");
    daemon.agent().return_loan(named("given"), false).expect("it is lent");
    daemon.wait_for("free", |p| p.lent_pages + p.draining_pages == Pages(0));
}

// Promise P152 (names): After the return no mapping or bind mount that was left reaches memory of
// other users, also where in-place is forced.
#[test]
fn bind_mount_that_outlives_the_return_reaches_no_memory() {
    let _alone = alone();
    let page = Page::Mib2;
    for recycle in ["auto", "in-place"] {
        let pool = page.pool(&format!("max = 1\nrecycle = \"{recycle}\""));
        let Some(daemon) = Daemon::start(page, 1, &pool) else { return };
        daemon.zero("max");
        let lent = daemon.agent().lend(&ask("pod", page.times(1))).expect("it lends");
        let inside = daemon.scratch().join("inside");
        std::fs::write(&inside, "").expect("a file");
        // As a container's: in a mount namespace of its own, with nothing open.
        let container = fork(|ready| {
            unshare(CloneFlags::CLONE_NEWNS).expect("root");
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("root");
            mount(Some(lent.path().expect("a path")), &inside, none, MsFlags::MS_BIND, none)
                .expect("a bind mount");
            let memory = map(inside.to_str().expect("plain"), page);
            soil(&memory, 0x77);
            drop(memory);
            ready.signal();
            // Until its memory has another user.
            let end = std::time::Instant::now() + WAIT_TIMEOUT;
            while !daemon.scratch().join("lent").exists() {
                assert!(std::time::Instant::now() < end, "the next loan was never made");
                std::thread::sleep(Duration::from_millis(2));
            }
            // The file it was given: empty now, and unowned.
            let file = File::options().read(true).write(true).open(&inside).expect("uid 0 may");
            i32::try_from(file.metadata().expect("a file").len() / page.size().bytes()).unwrap_or(1)
        });
        container.wait_ready();
        daemon.agent().return_loan(named("pod"), false).expect("it is lent");
        daemon.wait_for("zeroable", |p| p.zeroable_pages == Pages(1));
        daemon.zero("max");
        let next = daemon.agent().lend(&ask("next", page.times(1))).expect("it lends");
        let memory = map(next.path().expect("a path"), page);
        assert_zero(&memory);
        soil(&memory, 0x33);
        std::fs::write(daemon.scratch().join("lent"), "").expect("a file");
        assert_eq!(container.wait(), Some(0), "{recycle}: it reaches a page through its mount");
        assert_soiled(&memory, 0x33);
        drop(memory);
        daemon.agent().return_loan(named("next"), false).expect("it is lent");
        daemon.wait_for("free", |p| p.lent_pages + p.draining_pages == Pages(0));
    }
}

// Promise P152.
#[test]
fn returned_name_is_free_at_once_and_its_mapped_memory_is_not() {
    let _alone = alone();
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 2, &page.pool("max = 2")) else { return };
    daemon.zero("max");
    let first = daemon.agent().lend(&ask("a", page.times(1))).expect("it lends");
    let memory = map(first.path().expect("a path"), page);
    soil(&memory, 0x21);
    daemon.agent().return_loan(named("a"), false).expect("it is lent");
    let second = daemon.agent().lend(&ask("a", page.times(1))).expect("the name is free");
    assert!(!second.was_found() && second.path() != first.path());
    assert_zero(&map(second.path().expect("a path"), page));
    assert_soiled(&memory, 0x21);
    assert_eq!(daemon.pool().draining_pages, Pages(1));
    drop(memory);
    daemon.wait_for("let go of", |p| p.draining_pages == Pages(0));
    daemon.agent().return_loan(named("a"), false).expect("it is lent");
    daemon.wait_for("free", |p| p.lent_pages + p.draining_pages == Pages(0));
}

#[test]
fn lists_of_names_come_in_pieces_and_whole() {
    let _alone = alone();
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 300, &page.pool("")) else { return };
    let mut agent = daemon.agent();
    for nth in 0..300 {
        agent.lend(&ask(&format!("a/{nth:03}"), page.times(1))).expect("an unbacked part");
    }
    let expected: Vec<_> = (0..300).map(|nth| format!("a/{nth:03}")).collect();
    assert_eq!(names(&daemon, "a/"), expected);
    assert!(raw_call(&daemon.agent_socket(), "agent.ListLoans", "{}").contains("\"more\":true"));
    for name in expected {
        agent.return_loan(named(&name), false).expect("it is lent");
    }
    daemon.wait_for("free", |p| p.lent_pages + p.draining_pages == Pages(0));
}

#[test]
fn the_verbs_lend_by_name_list_and_return() {
    let _alone = alone();
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 2, &page.pool("")) else { return };
    daemon.zero("1");
    let run = |arguments: &[&str]| {
        let output = daemon.command(arguments).output().expect("prezero runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, path, _) = run(&["lend", "2M", "--name", "job/7", "--whole"]);
    assert_eq!(code, Some(0));
    assert_zero(&map(path.trim_end(), page));
    let (_, json, _) = run(&["lend", "2M", "--name", "job/7", "--json"]);
    assert!(json.contains("\"found\": true") && json.contains(path.trim_end()), "{json}");
    let (code, _, why) = run(&["lend", "4M", "--name", "job/7"]);
    assert!(code == Some(2) && why.contains("`job/7` is lent already"), "{why}");
    let (_, table, _) = run(&["loans"]);
    assert!(table.starts_with("NAME") && table.contains("job/7"), "{table}");
    let (_, json, _) = run(&["loans", "none/", "--json"]);
    assert!(json.contains("\"loans\": []"), "{json}");
    assert_eq!(run(&["return", "job/7"]).0, Some(0));
    let (code, _, why) = run(&["return", "job/7"]);
    assert!(code == Some(2) && why.contains("nothing is lent by the name `job/7`"), "{why}");
    let (code, _, why) = run(&["lend", "2M", "--name", "job/7", "--", "true"]);
    assert!(code == Some(2) && why.contains("cannot be used with"), "{why}");
    let nowhere = std::process::Command::new(binary())
        .args(["loans", "--agent-socket", "/nonexistent"])
        .output()
        .expect("prezero runs");
    assert_eq!(nowhere.status.code(), Some(3));
    daemon.wait_for("free", |p| p.lent_pages + p.draining_pages == Pages(0));
    assert!(Client::connect(daemon.socket()).is_ok());
}
