// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any text as a file's name in any directory: the book ignores it, or renames the file so that the
//! new name describes the same block, and the next start puts the block in the same place.
#![no_main]

use book::block::{Reach, StateName};
use book::{Book, Found, journal};
use libfuzzer_sys::fuzz_target;
use units::{PageSize, Pages};

fuzz_target!(|input: (u8, u8, bool, &str)| {
    let (state, allocated, lease_alive, name) = input;
    let Some(entry) = journal::parse(name, PageSize::MIB_2) else { return };
    let state = StateName::ALL[usize::from(state) % StateName::ALL.len()];
    let found = |state, entry| Found {
        state,
        entry,
        allocated: Pages(allocated.into()),
        reach: Reach::Sole,
        lease_alive,
    };
    let mut last = None;
    let mut place = (state, entry.clone());
    for _ in 0..2 {
        let mut book = Book::new([], true).expect("no pools");
        book.adopt(&found(place.0, place.1));
        let (state, name) = book.place(entry.block).expect("it was taken over");
        let again = journal::parse(&name, PageSize::MIB_2).expect("a name of the book's");
        assert_eq!((again.block, again.pool), (entry.block, entry.pool), "{name}");
        assert!(last.is_none_or(|last| last == state), "{name}: {last:?}, then {state}");
        // Content kept without a time limit becomes draining, and similar cases: the first start
        // decides.
        last = Some(state);
        place = (state, again);
    }
});
