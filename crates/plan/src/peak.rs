// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much a trace asks for at once, and how many nodes that takes.

use std::collections::BTreeMap;

use units::Bytes;

use crate::trace::Ask;

/// The most that a trace has lent at once, if all of it finds room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeakDemand {
    /// All loans at that time together.
    pub bytes: Bytes,
    /// The nodes that they fit on; none if a loan is larger than a node.
    pub nodes: Option<usize>,
}

impl PeakDemand {
    /// Of a trace, on nodes with that much memory.
    #[must_use]
    pub fn of(asks: &[Ask], node: Bytes) -> Self {
        // Ends before begins at the same time: a loan may take the place of another.
        let mut events: Vec<(f64, bool, u64)> = Vec::new();
        for ask in asks {
            events.push((ask.arrival, true, ask.bytes.0));
            if ask.lifetime.is_finite() {
                events.push((ask.arrival + ask.lifetime, false, ask.bytes.0));
            }
        }
        events.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let (mut now, mut most, mut at) = (0_u128, 0, 0.0);
        for (time, begins, bytes) in events {
            if begins {
                now += u128::from(bytes);
            } else {
                now = now.saturating_sub(u128::from(bytes));
            }
            if now > most {
                (most, at) = (now, time);
            }
        }
        let lives = |ask: &&Ask| ask.arrival <= at && ask.arrival + ask.lifetime > at;
        let sizes: Vec<_> = asks.iter().filter(lives).map(|ask| ask.bytes.0).collect();
        let bytes = Bytes(u64::try_from(most).unwrap_or(u64::MAX));
        Self { bytes, nodes: nodes_for(sizes, node.0) }
    }
}

/// How many nodes the sizes fit on: each on the fullest node with room, the largest first.
fn nodes_for(mut sizes: Vec<u64>, node: u64) -> Option<usize> {
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    let mut room: BTreeMap<u64, usize> = BTreeMap::new();
    let mut nodes = 0;
    for size in sizes {
        let fullest = room.range(size..).next().map(|(free, _)| *free);
        let free = match fullest {
            Some(free) => {
                if let Some(count) = room.get_mut(&free) {
                    *count -= 1;
                    if *count == 0 {
                        room.remove(&free);
                    }
                }
                free
            }
            None => {
                nodes += 1;
                node
            }
        };
        *room.entry(free.checked_sub(size)?).or_default() += 1;
    }
    Some(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(arrival: f64, gib: u64, lifetime: f64) -> Ask {
        Ask { arrival, bytes: Bytes(gib << 30), lifetime, node: None }
    }

    #[test]
    fn loans_that_follow_each_other_need_one_node() {
        let asks = [ask(0.0, 48, 60.0), ask(60.0, 48, 60.0), ask(120.0, 48, f64::INFINITY)];
        let peak = PeakDemand::of(&asks, Bytes(64 << 30));
        assert_eq!(peak, PeakDemand { bytes: Bytes(48 << 30), nodes: Some(1) });
    }

    #[test]
    fn loans_at_once_need_as_many_nodes_as_they_fit_on() {
        let forever: Vec<_> = (0..100).map(|at| ask(f64::from(at), 48, f64::INFINITY)).collect();
        let peak = PeakDemand::of(&forever, Bytes(64 << 30));
        assert_eq!(peak, PeakDemand { bytes: Bytes(4800 << 30), nodes: Some(100) });
        assert_eq!(PeakDemand::of(&forever, Bytes(96 << 30)).nodes, Some(50));
        let mixed = [ask(0.0, 16, 9.0), ask(0.0, 48, 9.0), ask(1.0, 32, 9.0), ask(1.0, 32, 9.0)];
        assert_eq!(PeakDemand::of(&mixed, Bytes(64 << 30)).nodes, Some(2));
        assert_eq!(PeakDemand::of(&mixed, Bytes(32 << 30)).nodes, None);
        assert_eq!(PeakDemand::of(&[], Bytes(1)).nodes, Some(0));
    }
}
