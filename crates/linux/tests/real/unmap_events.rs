// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a mapping as an event.

use std::time::{Duration, Instant};

use linux::Mapping;
use linux::unmap_events::{UnmapEvent, UnmapEvents};
use testkit::child::fork;

use crate::memory::Memory;

fn wait(unmap_events: &UnmapEvents) -> Vec<UnmapEvent> {
    let begun = Instant::now();
    loop {
        let reported = unmap_events.read().unwrap();
        if !reported.is_empty() || begun.elapsed() > Duration::from_secs(10) {
            return reported;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

// Promise P107.
#[test]
fn last_unmap_is_an_event_and_a_descriptors_end_is_not() {
    Memory::each(1, |memory| {
        drop(memory.block("a", 1));
        let unmap_events = UnmapEvents::new().unwrap();
        let watch = unmap_events.watch(&memory.dir, "ready", "a").unwrap();
        assert_eq!(unmap_events.read().unwrap(), []);
        let file = memory.dir.open_block("ready", "a").unwrap();
        let bytes = file.len().unwrap();
        let mapping = Mapping::map(&file, bytes, memory.page).unwrap();
        drop(file);
        assert_eq!(unmap_events.read().unwrap(), [], "the mapping has the description still");
        drop(mapping);
        assert_eq!(wait(&unmap_events), [UnmapEvent::One(watch)]);

        memory.dir.rename("a", "ready", "b", "lent").unwrap();
        let holder = fork(|ready| {
            let file = memory.dir.open_block("lent", "b").unwrap();
            let _mapping = Mapping::map(&file, bytes, memory.page).unwrap();
            drop(file);
            ready.signal();
            ready.hold()
        });
        holder.wait_ready();
        assert_eq!(unmap_events.read().unwrap(), []);
        holder.kill();
        assert_eq!(
            wait(&unmap_events),
            [UnmapEvent::One(watch)],
            "of a killed process, wherever it lies"
        );
        unmap_events.forget(watch);
        assert_eq!(wait(&unmap_events), [UnmapEvent::Gone(watch)]);
    });
}

#[test]
fn lost_events_are_reported_once() {
    let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let most: usize = most.trim().parse().unwrap();
    Memory::each(2, |memory| {
        let unmap_events = UnmapEvents::new().unwrap();
        for name in ["a", "b"] {
            drop(memory.block(name, 1));
            unmap_events.watch(&memory.dir, "ready", name).unwrap();
        }
        // Equal events in a row are one.
        for nth in 0..=most {
            drop(memory.dir.open_block("ready", ["a", "b"][nth % 2]).unwrap());
        }
        let mut reported = Vec::new();
        while let news @ [_, ..] = &unmap_events.read().unwrap()[..] {
            reported.extend_from_slice(news);
        }
        assert_eq!(reported.iter().filter(|closed| **closed == UnmapEvent::Unknown).count(), 1);
        assert_eq!(reported.len(), most + 1);
    });
}
