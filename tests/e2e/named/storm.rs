// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Agents in the midst of everything when the daemon is killed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use units::{Bytes, PageSize, Pages};

use client::{Client, Error, LendRequest};
use nix::sys::signal::Signal;
use prezero_tests::memory::{assert_soiled, soil};
use prezero_tests::{Daemon, Page};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::child::alone;

use super::{map, named, names};

/// Kills of the daemon; `PREZERO_TEST_KILLS` is another number.
const KILLS: u64 = 40;

/// The knowledge of one agent: of each name whether it is lent, and its user while an answer is
/// missing.
#[derive(Debug, Default)]
struct Agent {
    lent: BTreeMap<String, (String, Bytes, u8)>,
    /// The name of a call that lost its answer.
    unsure: Option<String>,
}

impl Agent {
    /// Lends, writes and returns until the daemon is gone. Returns how many calls were answered.
    fn work(&mut self, daemon: &Daemon, page: Page, seed: u64, stop: &AtomicBool) -> u64 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut answered = 0;
        let Ok(mut client) = Client::connect(daemon.agent_socket()) else { return 0 };
        while !stop.load(Ordering::Relaxed) {
            let name = format!("agent-{}/{}", seed % 2, random.random_range(0..4));
            let result = match self.lent.get(&name) {
                Some(_) => client.return_loan(named(&name), false).map(|()| {
                    self.lent.remove(&name);
                }),
                None => {
                    let request = LendRequest {
                        whole: random.random_bool(0.7),
                        ..LendRequest::by_name(named(&name), page.times(random.random_range(1..4)))
                    };
                    client.lend(&request).map(|lent| {
                        let byte = random.random_range(1..=255);
                        soil(&map(lent.path().expect("a path"), page), byte);
                        let path = lent.path().expect("a path").to_owned();
                        self.lent.insert(name.clone(), (path, lent.bytes(), byte));
                    })
                }
            };
            match result {
                Ok(()) => answered += 1,
                // Refused: nothing happened.
                Err(Error::Refused(_)) => {}
                Err(_) => {
                    self.unsure = Some(name);
                    break;
                }
            }
            std::thread::sleep(Duration::from_micros(random.random_range(0..1500)));
        }
        answered
    }

    /// The daemon is back: answered calls hold, and the state of the others is asked.
    fn reconcile(&mut self, daemon: &Daemon, page: Page, prefix: &str) {
        let listed = daemon.agent().loans(prefix).expect("a list");
        if let Some(name) = self.unsure.take() {
            // Whatever its former fate: it is unused now.
            self.lent.remove(&name);
            if listed.iter().any(|loan| loan.name == name) {
                daemon.agent().return_loan(named(&name), false).expect("it is listed");
            }
        }
        let after: BTreeMap<_, _> = daemon
            .agent()
            .loans(prefix)
            .expect("a list")
            .into_iter()
            .map(|loan| (loan.name, (loan.path, loan.bytes)))
            .collect();
        let known =
            self.lent.iter().map(|(name, (path, bytes, _))| (name.clone(), (path.clone(), *bytes)));
        let known: BTreeMap<_, _> = known.collect();
        assert_eq!(after, known, "what is lent, and what was answered\n{}", daemon.log());
        for (path, _, byte) in self.lent.values() {
            assert_soiled(&map(path, page), *byte);
        }
    }
}

// Promise P145.
// Promise P148 (names): An agent that lists the loans and returns unknown ones leaves no loan and
// no page without an owner: pending loans are listed, too.
#[test]
fn daemon_killed_among_named_loans_forgets_and_leaks_none() {
    let _alone = alone();
    let page = Page::Mib2;
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed: u64 = number("PREZERO_TEST_SEED").unwrap_or(1);
    let kills = number("PREZERO_TEST_KILLS").unwrap_or(KILLS);
    eprintln!("seed {seed}; set PREZERO_TEST_SEED to repeat another run");
    let mut random = StdRng::seed_from_u64(seed);
    let pool = page.pool("pages_per_block = 2\nready_low = 8\nready_high = 12");
    let Some(mut daemon) = Daemon::start(page, 40, &pool) else { return };
    let mut agents = [Agent::default(), Agent::default()];
    let mut answered = 0;
    for kill in 0..kills {
        let life = Duration::from_micros(random.random_range(200..40_000));
        let stop = AtomicBool::new(false);
        answered += std::thread::scope(|scope| {
            let (daemon, stop) = (&daemon, &stop);
            let work = |(nth, agent)| {
                let seed = (seed ^ (kill << 8)) * 2 + nth;
                scope.spawn(move || Agent::work(agent, daemon, page, seed, stop))
            };
            let threads: Vec<_> = (0..).zip(&mut agents).map(work).collect();
            std::thread::sleep(life);
            daemon.signal(Signal::SIGKILL);
            stop.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().expect("an agent")).sum::<u64>()
        });
        daemon.kill();
        daemon.spawn();
        if random.random_bool(0.5) {
            // Again, in the midst of taking over.
            std::thread::sleep(Duration::from_micros(random.random_range(0..8_000)));
            daemon.kill();
            daemon.spawn();
        }
        daemon.wait_until_up();
        for (nth, agent) in agents.iter_mut().enumerate() {
            agent.reconcile(&daemon, page, &format!("agent-{nth}/"));
        }
    }
    eprintln!("{answered} answers over {kills} kills");
    assert!(answered > kills, "the agents got {answered} answers");
    for name in names(&daemon, "") {
        daemon.agent().return_loan(named(&name), false).expect("it is listed");
    }
    let change = wire::PoolChange {
        page_size: PageSize::new(page.size().bytes()).expect("a page size"),
        pages_per_block: Pages(2),
        ready_low: Some(Pages(0)),
        ready_high: Some(Pages(0)),
        ..Default::default()
    };
    daemon.client().configure(change).expect("no more background zeroing");
    daemon.wait_for("quiet", |p| p.lent_pages + p.draining_pages + p.zeroing_pages == Pages(0));
    daemon.client().release(None, None, None).expect("everything back");
    daemon.wait_for("empty", |p| p.blocks == 0);
    assert_eq!(daemon.kernel_free(page), 40, "every page is back in the kernel's pool");
}
