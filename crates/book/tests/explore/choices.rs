// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which steps there are in a state.

use book::block::{State as Life, StateName};

use super::scene::Scene;
use super::steps::{State, Step, loan_name};
use super::world::{ByName, Held, USERS, Worker, World, uid};

fn small(n: usize) -> u8 {
    u8::try_from(n).expect("a small world")
}

impl State {
    /// Steps that the book does not hear of.
    pub(crate) fn happenings(&self, scene: &Scene) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, file) in self.world.files.iter().enumerate() {
            let at = small(at);
            for user in 0..USERS {
                let pinned = scene.pins.then_some(Held::Pinned);
                let mapped = scene.maps.then_some(Held::Mapped);
                let less = [Some(Held::Not), pinned, mapped].into_iter().flatten();
                let less = less.filter(|to| *to < file.held[user]);
                steps.extend(less.map(|to| Step::LetGo { file: at, user: small(user), to }));
            }
            let is_open = file.held.contains(&Held::Open) && file.place.is_some();
            if scene.punches && is_open && file.memory() > 0 {
                steps.push(Step::Punch { file: at });
            }
            if scene.marks && is_open && file.left.is_none() {
                steps.push(Step::Mark { file: at });
            }
        }
        for (nth, worker) in self.world.workers.iter().enumerate() {
            let worker_no = small(nth);
            match worker {
                Worker::Idle => {}
                Worker::Busy { cleared, .. } if *cleared < scene.pages_per_block => {
                    steps.push(Step::Clear { worker: worker_no });
                }
                Worker::Busy { .. } => {}
                Worker::Ghost { .. } => steps.push(Step::Leave { worker: worker_no }),
            }
        }
        steps
    }

    /// Calls of the book.
    pub(crate) fn calls(&self, scene: &Scene) -> Vec<Step> {
        let mut steps = Vec::new();
        // New files come only while there is room for the largest number that a loan may make.
        let has_place = self.world.files.len() < scene.files;
        let is_ready = self.book.in_state(StateName::Ready).next().is_some();
        for user in 0..USERS {
            if self.world.leases[user].is_some() {
                steps.push(Step::Close { user: small(user) });
            } else {
                for owner in [false, true].into_iter().filter(|owner| !owner || scene.keeps) {
                    let needs_none = |pages: u64| {
                        (is_ready && pages <= scene.pages_per_block)
                            || (owner && self.is_kept_for(user, None))
                    };
                    let sizes = scene.sizes.iter().filter(|n| has_place || needs_none(**n));
                    steps.extend(sizes.map(|pages| Step::Lend {
                        user: small(user),
                        pages: u8::try_from(*pages).expect("few pages"),
                        owner,
                    }));
                }
            }
        }
        self.calls_by_name(scene, has_place, &mut steps);
        self.calls_of_workers(scene, has_place, &mut steps);
        let mut is_kept = false;
        let mut is_unlent = false;
        for (at, file) in self.world.files.iter().enumerate().filter(|(_, f)| World::is_known(f)) {
            let Some(block) = self.book.block(file.block) else { continue };
            match block.state() {
                Life::Draining(part) => {
                    steps.push(Step::Settle { file: small(at) });
                    if scene.operator && part.is_some() {
                        steps.push(Step::Revoke { file: small(at) });
                    }
                }
                Life::Lent(_) if scene.operator => steps.push(Step::Revoke { file: small(at) }),
                Life::Kept { .. } => is_kept = true,
                Life::Ready(_) | Life::Zeroable { .. } => is_unlent = true,
                Life::Lent(_) | Life::Zeroing { .. } => {}
            }
        }
        if is_kept {
            steps.push(Step::Expire);
        }
        if scene.operator {
            steps.push(Step::Reload);
            steps.extend(is_unlent.then_some(Step::Release));
        }
        steps
    }

    /// Of the owner of that name's scope, or of a loan without a name.
    fn is_kept_for(&self, user: usize, name: Option<usize>) -> bool {
        let name = name.map(loan_name);
        let scope = name.as_ref().map(|name| name.scope().expect("it has one"));
        let is_its = |life: &Life| matches!(life, Life::Kept { part, .. } if part.uid == uid(user) && part.scope() == scope);
        self.book.in_state(StateName::Kept).any(|block| is_its(block.state()))
    }

    fn calls_by_name(&self, scene: &Scene, has_place: bool, steps: &mut Vec<Step>) {
        for name in 0..scene.names {
            let no = small(name);
            let found = self.book.named(&loan_name(name));
            let owners = [false, true].into_iter().filter(|owner| !owner || scene.owned);
            let asks = |user| owners.clone().map(move |owner| (user, owner));
            let asks = (0..USERS).flat_map(asks);
            let ask = |(user, owner)| Step::Ask { name: no, user: small(user), owner };
            let ends = [false, true].into_iter().filter(|discard| !discard || scene.owned);
            let returns = ends.map(|discard| Step::Return { name: no, discard });
            match self.world.names[name] {
                ByName::Pending { .. } => {
                    steps.extend([true, false].map(|whole| Step::HeldBy { name: no, whole }));
                }
                ByName::Reported { .. } => steps.extend(returns),
                // It asks again for what it may have asked for, or returns what it finds listed.
                ByName::Nothing => match found {
                    Some(found) if found.is_pending => {}
                    Some(_) => {
                        steps.extend(asks.map(ask));
                        steps.extend(returns);
                    }
                    // New files come only while there is place for them.
                    None => {
                        let needs_none =
                            |user, owner: bool| owner && self.is_kept_for(user, Some(name));
                        let asks =
                            asks.filter(|(user, owner)| has_place || needs_none(*user, *owner));
                        steps.extend(asks.map(ask));
                    }
                },
            }
        }
    }

    fn calls_of_workers(&self, scene: &Scene, has_place: bool, steps: &mut Vec<Step>) {
        let dirty = self.book.in_state(StateName::Zeroable).next().is_some();
        let mut idle = false;
        for nth in 0..scene.workers {
            let worker = small(nth);
            match self.world.workers[nth] {
                // Which of two idle workers asks makes no difference.
                Worker::Idle if !idle && (has_place || dirty) => {
                    idle = true;
                    steps.push(Step::Take { worker });
                }
                Worker::Busy { .. } => {
                    let ends = [true, false];
                    steps.extend(ends.map(|lets_go| Step::Finish { worker, lets_go }));
                    steps.extend(ends.map(|dies| Step::Lose { worker, dies }));
                }
                Worker::Idle | Worker::Ghost { .. } => {}
            }
        }
    }
}
