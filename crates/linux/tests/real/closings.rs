// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a mapping as an event.

use std::time::{Duration, Instant};

use linux::Mapping;
use linux::closings::{Closed, Closings};
use testkit::child::fork;

use crate::memory::Memory;

fn wait(closings: &Closings) -> Vec<Closed> {
    let begun = Instant::now();
    loop {
        let told = closings.read().unwrap();
        if !told.is_empty() || begun.elapsed() > Duration::from_secs(10) {
            return told;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_last_mappings_end_is_told_and_a_descriptors_is_not() {
    Memory::each(1, |memory| {
        drop(memory.block("a", 1));
        let closings = Closings::new().unwrap();
        let watch = closings.watch(&memory.dir, "ready", "a").unwrap();
        assert_eq!(closings.read().unwrap(), []);
        let file = memory.dir.open_block("ready", "a").unwrap();
        let bytes = file.len().unwrap();
        let mapping = Mapping::map(&file, bytes, memory.page).unwrap();
        drop(file);
        assert_eq!(closings.read().unwrap(), [], "the mapping has the description still");
        drop(mapping);
        assert_eq!(wait(&closings), [Closed::One(watch)]);

        memory.dir.rename("a", "ready", "b", "lent").unwrap();
        let holder = fork(|ready| {
            let file = memory.dir.open_block("lent", "b").unwrap();
            let _mapping = Mapping::map(&file, bytes, memory.page).unwrap();
            drop(file);
            ready.signal();
            ready.hold()
        });
        holder.wait_ready();
        assert_eq!(closings.read().unwrap(), []);
        holder.kill();
        assert_eq!(wait(&closings), [Closed::One(watch)], "of a killed process, wherever it lies");
        closings.forget(watch);
        assert_eq!(wait(&closings), [Closed::Gone(watch)]);
    });
}

#[test]
fn events_that_are_lost_are_told_once() {
    let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let most: usize = most.trim().parse().unwrap();
    Memory::each(2, |memory| {
        let closings = Closings::new().unwrap();
        for name in ["a", "b"] {
            drop(memory.block(name, 1));
            closings.watch(&memory.dir, "ready", name).unwrap();
        }
        // Equal events in a row are one.
        for nth in 0..=most {
            drop(memory.dir.open_block("ready", ["a", "b"][nth % 2]).unwrap());
        }
        let mut told = Vec::new();
        while let news @ [_, ..] = &closings.read().unwrap()[..] {
            told.extend_from_slice(news);
        }
        assert_eq!(told.iter().filter(|closed| **closed == Closed::Unknown).count(), 1);
        assert_eq!(told.len(), most + 1);
    });
}
