// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users that may zero: blocks pass through their hands before others get them.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use client::Error;
use linux::BlockFile;
use linux::Mapping;
use prezero_tests::Page;
use rustix::fs::{Mode, OFlags};
use serde_json::json;
use units::{PageSize, Pages};
use wire::PoolChange;

use crate::attack::{Attack, POOL};
use crate::raw;
use crate::scene::{Got, Scene, call, error_of, message, path_of, path_only, spy};
use crate::socket::receive;
use crate::stage::Stage;
use crate::users::User;

const PAGE: u64 = 2 << 20;
/// Nothing that a worker leaves: it finds only other bytes than its own.
const SOILED: u8 = 0xFF;

/// The attacker is the only zeroer: every ready page is its work.
fn alone_at_work(recycle: &str) -> String {
    let pool = POOL.replace("ready_low = 6\nready_high = 8\n", "");
    format!("{pool}recycle = \"{recycle}\"\n[workers]\nmax = 0\n")
}

/// One connection of a worker's, without a library's manners: what it keeps is its own choice.
struct Worker(UnixStream);

/// A job: its number, the block, and what must stay open until the report.
type Job = (u64, BlockFile, OwnedFd);

impl Worker {
    fn new(scene: &Scene<'_>) -> Self {
        Self(scene.socket().expect("everybody may connect"))
    }

    /// A block to zero, if there is one.
    ///
    /// # Errors
    /// The name of the daemon's error if this user is refused.
    fn take(&mut self) -> Result<Option<Job>, String> {
        self.0.write_all(&message("TakeZeroing", &json!({}))).map_err(|e| e.to_string())?;
        let (answer, mut fds) = receive(&self.0);
        match answer["error"].as_str() {
            None if fds.len() == 2 => {
                let job = answer["parameters"]["job"].as_u64().expect("a number");
                let block = answer["parameters"]["block_fd"].as_u64() == Some(0);
                let (last, first) = (fds.pop().expect("two"), fds.pop().expect("two"));
                let (block, alive) = if block { (first, last) } else { (last, first) };
                Ok(Some((job, BlockFile::from(block), alive)))
            }
            Some(error) if error.ends_with("NothingToZero") => Ok(None),
            _ => Err(error_of(&Ok(answer))),
        }
    }

    /// Reports it as zeroed, and says what the daemon makes of it.
    fn report(&mut self, job: u64) -> String {
        let asked = json!({ "job": job, "pages_done": 1 });
        let answer = call(&mut self.0, "FinishZeroing", &asked);
        let state = answer.as_ref().ok().and_then(|a| a["parameters"]["state"].as_str());
        state.map_or_else(|| error_of(&answer), ToOwned::to_owned)
    }
}

enum Hold {
    Path(OwnedFd),
    Pipe(OwnedFd, OwnedFd),
}

/// Zeroes as it should, but keeps something.
fn keep_something(scene: &mut Scene<'_>, pin: bool) -> Got {
    let mut worker = Worker::new(scene);
    let (mut held, mut states) = (Vec::new(), Vec::new());
    scene.set_up();
    while !scene.over() {
        let taken = match worker.take() {
            Ok(taken) => taken,
            Err(refused) => {
                scene.wait();
                return Ok(refused);
            }
        };
        if let Some((id, file, alive)) = taken {
            if file.allocate(0, PAGE).is_ok() && held.len() < 6 {
                if pin {
                    let memory = Mapping::map(&file, PAGE, Page::Mib2.size()).expect("its block");
                    let (out, into) = rustix::pipe::pipe().expect("a pipe");
                    raw::pin_in_pipe(&into, &memory).expect("its block");
                    held.push(Hold::Pipe(out, into));
                } else {
                    held.push(Hold::Path(path_only(&file.as_fd())));
                }
            }
            drop(file);
            states.push(worker.report(id));
            drop(alive);
        }
        std::thread::sleep(Duration::from_millis(1));
        for hold in &held {
            if let Hold::Path(path) = hold
                && let Ok(file) = rustix::fs::open(path_of(path), OFlags::RDWR, Mode::empty())
            {
                spy(file, "a worker's O_PATH", SOILED)?;
            }
        }
    }
    for hold in held {
        if let Hold::Pipe(out, into) = hold {
            drop(into);
            let mut seen = [0; 4096];
            std::fs::File::from(out).read_exact(&mut seen).expect("a page in the pipe");
            if seen.iter().any(|byte| *byte != 0) {
                return Err("READ a victim's memory through a worker's pin".to_owned());
            }
        }
    }
    states.sort_unstable();
    states.dedup();
    Ok(format!("its blocks are {}", states.join(" or ")))
}

/// Reports what it has not zeroed, or has no memory.
fn lie(scene: &mut Scene<'_>, unbacked: bool) -> Got {
    let mut worker = Worker::new(scene);
    let mut states = Vec::new();
    scene.set_up();
    while !scene.over() {
        let taken = match worker.take() {
            Ok(taken) => taken,
            Err(refused) => {
                scene.wait();
                return Ok(refused);
            }
        };
        let Some((id, file, alive)) = taken else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        if unbacked {
            // As much memory as there ought to be, but elsewhere.
            let _ = file.set_len(4 * PAGE).and_then(|()| file.allocate(2 * PAGE, PAGE));
        } else if file.allocate(0, PAGE).is_ok() {
            let memory = Mapping::map(&file, PAGE, Page::Mib2.size()).expect("its block");
            memory.fill(4096..8192, 0x66);
        }
        drop(file);
        states.push(worker.report(id));
        drop(alive);
    }
    states.sort_unstable();
    states.dedup();
    Ok(format!("its blocks are {}", states.join(" or ")))
}

#[test]
fn kept_pins_and_reports_of_a_worker_reach_no_borrower() {
    for recycle in ["fresh", "in-place"] {
        let Some(mut stage) = Stage::set(24, &alone_at_work(recycle)) else { return };
        for (what, pin) in [("O_PATH", false), ("vmsplice", true)] {
            let name = format!("worker's {what} over its report, {recycle}");
            let attack = Attack::new(name, User::Zeroer, |scene| keep_something(scene, pin));
            attack.run(&mut stage);
        }
        for (what, unbacked) in [("garbage", false), ("unbacked parts", true)] {
            let name = format!("worker reports {what}, {recycle}");
            Attack::new(name, User::Zeroer, |scene| lie(scene, unbacked)).run(&mut stage);
        }
    }
}

/// What keeps users apart is not a threshold.
fn configure_recycling(scene: &mut Scene<'_>) -> Got {
    let change = PoolChange {
        page_size: PageSize::new(PAGE).expect("a page size"),
        pages_per_block: Pages(1),
        recycle: Some(wire::Recycle::InPlace),
        ..Default::default()
    };
    scene.set_up();
    let configured = scene.client().configure(change);
    scene.wait();
    match configured {
        Ok(()) => Err("a pool of everybody's is in-place now".to_owned()),
        Err(Error::Refused(wire::Error::NotPermitted { .. })) => Ok("NotPermitted".to_owned()),
        Err(error) => Ok(error.to_string()),
    }
}

pub(crate) fn only_root_says_how_blocks_are_recycled(stage: &mut Stage) {
    Attack::new("Configure recycle", User::Zeroer, configure_recycling).run(stage);
}

/// Takes all work and leaves it undone.
fn hoard_jobs(scene: &mut Scene<'_>) -> Got {
    let mut held = Vec::new();
    scene.set_up();
    while !scene.over() {
        if let Ok(Some(job)) = Worker::new(scene).take() {
            held.push(job);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(if held.is_empty() { "NotPermitted or nothing to zero" } else { "jobs" }.to_owned())
}

pub(crate) fn hoarded_jobs_keep_no_user_from_borrowing(stage: &mut Stage) {
    Attack::new("jobs that nobody does", User::Zeroer, hoard_jobs).run(stage);
}

/// Reports jobs by number, in the hope that they are another's.
fn report_others_jobs(scene: &mut Scene<'_>) -> Got {
    let mut stream = scene.socket().expect("everybody may connect");
    scene.set_up();
    let mut got = Vec::new();
    let mut job = 0_u64;
    while !scene.over() {
        job = (job + 1) % 4096;
        let reply = call(&mut stream, "FinishZeroing", &json!({ "job": job, "pages_done": 1 }));
        let error = error_of(&reply);
        if !got.contains(&error) {
            got.push(error);
        }
        if reply.is_err() {
            break;
        }
    }
    scene.wait();
    got.sort_unstable();
    Ok(got.join(", "))
}

pub(crate) fn a_report_of_anothers_job_makes_nothing_ready(stage: &mut Stage) {
    for user in [User::Zeroer, User::Borrower] {
        let name = format!("reports of others' jobs by a {}", user.name());
        Attack::new(name, user, report_others_jobs).run(stage);
    }
}
