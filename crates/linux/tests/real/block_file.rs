// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linux::{BlockFile, Errno, Mapping};
use rustix::process::{Pid, Signal};
use testkit::hugepages::MIB_2;
use testkit::{child, punch};

use crate::memory::Memory;

#[test]
fn allocated_pages_are_counted_and_zero() {
    Memory::each(2, |memory| {
        let free = memory.free();
        let file = memory.dir.create("ready", "a").unwrap();
        assert_eq!((file.len().unwrap(), file.allocated_bytes().unwrap()), (0, 0));
        file.allocate(0, memory.bytes(2)).unwrap();
        assert_eq!(
            (file.len().unwrap(), file.allocated_bytes().unwrap()),
            (memory.bytes(2), memory.bytes(2))
        );
        assert_eq!(memory.free(), free.map(|free| free - 2));
        assert_eq!(file.first_nonzero(0..memory.bytes(2)).unwrap(), None);
    });
}

#[test]
fn page_by_page_fill_reports_progress_and_stops_on_request() {
    Memory::each(2, |memory| {
        let file = memory.dir.create("ready", "a").unwrap();
        let mut seen = Vec::new();
        let done = file.allocate_pages(0..memory.bytes(2), memory.page, &mut |done| {
            seen.push(done);
            ControlFlow::Break(())
        });
        assert_eq!(done.unwrap(), memory.bytes(1));
        assert_eq!(file.allocated_bytes().unwrap(), memory.bytes(1));

        let rest = memory.bytes(1)..memory.bytes(2);
        let done = file.allocate_pages(rest, memory.page, &mut |done| {
            seen.push(done);
            ControlFlow::Continue(())
        });
        assert_eq!(done.unwrap(), memory.bytes(1));
        assert_eq!(seen, [memory.bytes(1), memory.bytes(1)], "counted from the range's start");
        assert_eq!(file.allocated_bytes().unwrap(), memory.bytes(2));

        let on = &mut |_| ControlFlow::Continue(());
        let error = file.allocate_pages(1..memory.bytes(1), memory.page, on).unwrap_err();
        assert!(error.to_string().ends_with("is not a range of whole pages"), "{error}");
    });
}

#[test]
fn pages_that_are_there_keep_their_content() {
    Memory::each(2, |memory| {
        let file = memory.block("a", 1);
        Mapping::map(&file, memory.bytes(1), memory.page).unwrap().fill(5..6, 0xa5);
        file.allocate(0, memory.bytes(2)).unwrap();
        assert_eq!(file.first_nonzero(0..memory.bytes(2)).unwrap(), Some(5));
        assert_eq!(file.first_nonzero(6..memory.bytes(2)).unwrap(), None);
        assert_eq!(file.first_nonzero(0..5).unwrap(), None);
    });
}

#[test]
fn the_last_byte_of_a_block_is_found() {
    Memory::each(2, |memory| {
        let file = memory.block("a", 2);
        let last = memory.bytes(2) - 1;
        let mapping = Mapping::map(&file, memory.bytes(2), memory.page).unwrap();
        let at = usize::try_from(last).unwrap();
        mapping.fill(at..at + 1, 1);
        assert_eq!(file.first_nonzero(0..memory.bytes(2)).unwrap(), Some(last));
        assert_eq!(
            file.first_nonzero(0..memory.bytes(9)).unwrap(),
            Some(last),
            "what lies behind the end is zero"
        );
    });
}

#[test]
fn trimming_gives_the_pages_back_at_once() {
    Memory::each_huge(2, |memory| {
        let free = memory.free().unwrap();
        let file = memory.block("a", 2);
        file.set_len(memory.bytes(1)).unwrap();
        assert_eq!(memory.free().unwrap(), free - 1, "before ftruncate returned");
        assert_eq!(file.allocated_bytes().unwrap(), memory.bytes(1));
        let error = file.set_len(4096).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::INVAL), "{error}");
        assert!(error.to_string().contains("whole pages"), "{error}");
    });
}

#[test]
fn trimmed_and_grown_again_is_zero() {
    Memory::each(2, |memory| {
        let file = memory.block("a", 2);
        let len = usize::try_from(memory.bytes(2)).unwrap();
        Mapping::map(&file, memory.bytes(2), memory.page).unwrap().fill(0..len, 0xff);
        file.set_len(0).unwrap();
        file.allocate(0, memory.bytes(2)).unwrap();
        assert_eq!(file.first_nonzero(0..memory.bytes(2)).unwrap(), None);
    });
}

#[test]
fn growing_leaves_an_unbacked_part_without_pages() {
    Memory::each_huge(1, |memory| {
        let free = memory.free().unwrap();
        let file = memory.block("a", 1);
        file.set_len(memory.bytes(3)).unwrap();
        assert_eq!(
            (file.len().unwrap(), file.allocated_bytes().unwrap()),
            (memory.bytes(3), memory.bytes(1))
        );
        assert_eq!(memory.free().unwrap(), free - 1);
        assert_eq!(file.first_nonzero(0..memory.bytes(3)).unwrap(), None);
        assert_eq!(memory.free().unwrap(), free - 1, "reading the hole takes no page");
    });
}

#[test]
fn a_punched_page_returns_to_the_pool() {
    Memory::each_huge(2, |memory| {
        let free = memory.free().unwrap();
        let file = memory.block("a", 2);
        punch(&file, 0..memory.bytes(1)).unwrap();
        assert_eq!(memory.free().unwrap(), free - 1);
        assert_eq!(
            (file.len().unwrap(), file.allocated_bytes().unwrap()),
            (memory.bytes(2), memory.bytes(1))
        );
    });
}

#[test]
fn empty_pool_is_typed_and_keeps_earlier_pages() {
    Memory::each_huge(2, |memory| {
        let free = memory.free().unwrap();
        let file = memory.dir.create("ready", "a").unwrap();
        let mut last = 0;
        let error = file
            .allocate_pages(0..memory.bytes(free + 2), memory.page, &mut |done| {
                last = done;
                ControlFlow::Continue(())
            })
            .unwrap_err();
        assert!(error.is_no_space(), "{error}");
        assert!(error.to_string().contains("ready/a/pages>"), "the file is named: {error}");
        assert_eq!(
            (last, file.allocated_bytes().unwrap()),
            (memory.bytes(free), memory.bytes(free))
        );
        assert_eq!(memory.free(), Some(0));
    });
}

/// 1 GiB in 2 MiB pages takes about 80 ms to zero; a signal every 0.2 ms comes in between.
const MANY_PAGES: u64 = 512;

#[test]
fn a_signal_ends_one_call_between_two_pages() {
    let Some(memory) = Memory::huge(MIB_2, MANY_PAGES) else { return };
    let file = memory.dir.create("ready", "a").unwrap();
    let all = memory.bytes(MANY_PAGES);
    let result = under_signals(|| match file.allocate(0, all) {
        Err(error) if error.errno() == Some(Errno::INTR) => 0,
        Err(_) => 1,
        Ok(()) => 2,
    });
    assert_eq!(result, Some(0), "fallocate ends with EINTR");
    let kept = file.allocated_bytes().unwrap();
    assert!(kept < all && kept.is_multiple_of(memory.page.bytes()), "{kept} bytes kept");
    assert_eq!(file.first_nonzero(0..all).unwrap(), None);
}

#[test]
fn page_by_page_gets_through_a_storm_of_signals() {
    let Some(memory) = Memory::huge(MIB_2, MANY_PAGES) else { return };
    let file = memory.dir.create("ready", "a").unwrap();
    let all = memory.bytes(MANY_PAGES);
    let result = under_signals(|| {
        let done = file.allocate_pages(0..all, memory.page, &mut |_| ControlFlow::Continue(()));
        i32::from(!done.is_ok_and(|done| done == all))
    });
    assert_eq!(result, Some(0));
    assert_eq!(file.allocated_bytes().unwrap(), all);
}

#[test]
fn page_by_page_lets_the_caller_stop_at_a_signal() {
    let Some(memory) = Memory::huge(MIB_2, MANY_PAGES) else { return };
    let file = memory.dir.create("ready", "a").unwrap();
    let all = memory.bytes(MANY_PAGES);
    let result = under_signals_flagged(|flag| {
        let mut stop_after = None;
        let done = file.allocate_pages(0..all, memory.page, &mut |done| {
            if flag.load(Ordering::Relaxed) {
                stop_after.get_or_insert(done);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        i32::from(done.ok() != stop_after)
    });
    assert_eq!(result, Some(0), "it returns what was done when the signal was seen");
    assert!(file.allocated_bytes().unwrap() < all);
}

/// Runs `body` in a child that catches SIGUSR1 while this process sends it many.
fn under_signals(body: impl FnOnce() -> i32) -> Option<i32> {
    under_signals_flagged(|_| body())
}

fn under_signals_flagged(body: impl FnOnce(&AtomicBool) -> i32) -> Option<i32> {
    let child = child::fork(|ready| {
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&flag)).unwrap();
        ready.signal();
        body(&flag)
    });
    child.wait_ready();
    let pid = Pid::from_raw(i32::try_from(child.pid()).unwrap()).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let sender = std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            rustix::process::kill_process(pid, Signal::USR1).unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    child.wait_exited();
    is_over.store(true, Ordering::Relaxed);
    sender.join().unwrap();
    child.wait()
}

#[test]
fn a_memfd_is_plain_memory() {
    let file = BlockFile::memfd("prezero-test").unwrap();
    file.allocate(0, 1 << 20).unwrap();
    assert_eq!((file.len().unwrap(), file.allocated_bytes().unwrap()), (1 << 20, 1 << 20));
    assert_eq!(file.first_nonzero(0..1 << 20).unwrap(), None);
}
