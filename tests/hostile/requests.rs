// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What calls may say: names that are paths, names of others, and no JSON at all.

use std::io::Write;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::attack::Attack;
use crate::scene::{Got, Scene, call, error_of, message};
use crate::stage::Stage;
use crate::users::User;
use prezero_tests::MapAlone as _;

/// Names that would be paths, fields of the journal's names, or nothing.
fn name_files(scene: &mut Scene<'_>) -> Got {
    let long = "n".repeat(65);
    let longer = "n".repeat(3000);
    let names: [&str; 20] = [
        "",
        "/",
        "a/b",
        "../../ready/b1-n0-p1",
        "a-t99999999999",
        "a-k9-ob",
        "-",
        "a b",
        "a\0b",
        "a\nb",
        "\u{202e}gnp",
        "\u{e9}",
        "e\u{301}",
        "\u{0}",
        "%2e%2e",
        "a\\b",
        "\u{ff0e}\u{ff0f}",
        "b1-n0-p1-l1-i0-u0-g1",
        &long,
        &longer,
    ];
    scene.set_up();
    let mut got = Vec::new();
    for owner in names {
        let asked = json!({ "bytes": 2 << 20, "owner": owner, "keep_seconds": 1 });
        let mut stream = scene.socket().expect("everybody may connect");
        let error = error_of(&call(&mut stream, "Lend", &asked));
        if error.starts_with("granted") {
            return Err(format!("owner {owner:?}: {error}"));
        }
        got.push(error);
    }
    // These are names, though odd ones: they must be names and nothing else.
    for owner in [".", "..", "...", "_", "n"] {
        let loan = scene.borrow(|request| {
            request.owner = Some(owner.parse().expect("a name"));
            request.keep = Some(Duration::ZERO);
        });
        if loan.is_kept() {
            return Err(format!("{owner:?} has content"));
        }
    }
    scene.wait();
    got.sort_unstable();
    got.dedup();
    Ok(got.join(", "))
}

pub(crate) fn names_of_owners_are_no_paths(stage: &mut Stage) {
    Attack::new("owners named like paths and files", User::Borrower, name_files).run(stage);
}

/// The same name as another user's owner, asked for while that one's content is kept.
fn take_anothers_name(scene: &mut Scene<'_>) -> Got {
    scene.set_up();
    while !scene.over() {
        let loan = scene.borrow(|request| {
            request.owner = Some("db".parse().expect("a name"));
            request.keep = Some(Duration::ZERO);
        });
        let memory = loan.map_alone().expect("lent memory");
        let mut seen = vec![0; memory.len()];
        memory.read(0, &mut seen);
        if seen.contains(&crate::victim::SECRET) {
            return Err("READ what another user's owner of that name left".to_owned());
        }
        if seen.iter().any(|byte| *byte != 0) && !loan.is_kept() {
            return Err("lent memory is not zero".to_owned());
        }
    }
    Ok("zeros, or its own".to_owned())
}

pub(crate) fn an_owner_of_the_same_name_is_another_users(stage: &mut Stage) {
    use crate::victim::{Clock, SECRET, Victim};
    use client::{Client, LendRequest};

    // Comes back for its own again and again.
    let act = |daemon: &prezero_tests::Daemon| {
        let mut request = LendRequest::new(prezero_tests::Page::Mib2.times(1));
        request.owner = Some("db".parse().expect("a name"));
        request.keep = Some(Duration::from_secs(1));
        let clock = Clock::start(daemon);
        let loan = Client::connect(daemon.socket()).and_then(|mut c| c.lend(&request));
        let took = clock.stop();
        let loan = loan.map_err(|error| format!("Lend to db: {error}"))?;
        let memory = loan.map_alone().map_err(|error| error.to_string())?;
        let mut seen = [0];
        memory.read(4096, &mut seen);
        let expected = if loan.is_kept() { SECRET } else { 0 };
        if seen[0] != expected {
            return Err(format!("kept {}, but {:#x} is found", loan.is_kept(), seen[0]));
        }
        memory.fill(0..8192, SECRET);
        Ok(took)
    };
    let owner = Victim { what: "Lend to an owner", user: User::Victim, act };
    Attack::new("another user's owner name", User::Borrower, take_anothers_name)
        .also(owner)
        .run(stage);
}

/// Bytes that look like calls.
fn garbage(scene: &mut Scene<'_>) -> Got {
    let mut random = StdRng::seed_from_u64(11);
    let mut whole = message("Lend", &json!({ "bytes": 2 << 20, "owner": "x" }));
    whole.pop();
    let deep = [vec![b'['; 3000], vec![0]].concat();
    scene.set_up();
    while !scene.over() {
        let Ok(mut stream) = scene.socket() else { continue };
        let mut bytes = whole.clone();
        match random.random_range(0..5) {
            0 => bytes.truncate(random.random_range(0..bytes.len())),
            1 => bytes = (0..random.random_range(1..2000)).map(|_| random.random()).collect(),
            2 => bytes.clone_from(&deep),
            3 => {
                bytes = format!(
                    "{{\"method\":\"io.prezero.Lend\",\"parameters\":{{\"bytes\":{}}}}}",
                    "9".repeat(random.random_range(1..500))
                )
                .into_bytes()
            }
            _ => {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
        }
        bytes.push(0);
        let _ = stream.write_all(&bytes);
    }
    Ok("hung up on".to_owned())
}

pub(crate) fn garbage_costs_only_its_connection(stage: &mut Stage) {
    for user in [User::Stranger, User::Borrower] {
        let name = format!("JSON garbage of a {}", user.name());
        Attack::new(name, user, garbage).run(stage);
    }
}
