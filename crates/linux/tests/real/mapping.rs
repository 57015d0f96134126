// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::os::fd::AsFd;

use linux::{Errno, Mapping};
use testkit::hugepages::MIB_2;

use crate::memory::Memory;

#[test]
fn writes_of_one_mapping_are_read_by_another() {
    Memory::each(2, |memory| {
        let file = memory.block("a", 2);
        let mapping = Mapping::map(&file, memory.bytes(2), memory.page).unwrap();
        assert_eq!(
            mapping.as_ptr().addr() as u64 % memory.page.bytes(),
            0,
            "aligned to the page size"
        );
        assert_eq!(mapping.len() as u64, memory.bytes(2));
        mapping.fill(0..1, 7);
        let other = memory.dir.open_block("ready", "a").unwrap();
        assert_eq!(other.first_nonzero(0..1).unwrap(), Some(0));
        drop(mapping);
        assert_eq!(file.first_nonzero(0..1).unwrap(), Some(0), "unmapping loses nothing");
    });
}

#[test]
fn several_files_lie_in_a_row() {
    Memory::each(2, |memory| {
        let (one, two) = (memory.block("a", 1), memory.block("b", 1));
        let row = [(one.as_fd(), memory.bytes(1)), (two.as_fd(), memory.bytes(1))];
        let mapping = Mapping::map_row(&row, memory.page).unwrap();
        assert_eq!(mapping.len() as u64, memory.bytes(2));
        let seam = usize::try_from(memory.bytes(1)).unwrap();
        mapping.fill(seam - 1..seam + 1, 9);
        assert_eq!(one.first_nonzero(0..memory.bytes(1)).unwrap(), Some(memory.bytes(1) - 1));
        assert_eq!(two.first_nonzero(0..memory.bytes(1)).unwrap(), Some(0));
    });
}

#[test]
fn a_row_that_fails_maps_nothing() {
    let memory = Memory::plain();
    let file = memory.block("a", 1);
    let no_file = std::fs::File::open("/dev/shm").unwrap();
    let before = mapped_bytes();
    let row = [(file.as_fd(), 4096), (no_file.as_fd(), 4096)];
    let error = Mapping::map_row(&row, memory.page).unwrap_err();
    assert!(error.to_string().contains("</dev/shm>, 0) = "), "{error}");
    // Other tests map meanwhile in this process, but none 64 GiB.
    let big = [(file.as_fd(), 64 << 30), (no_file.as_fd(), 4096)];
    Mapping::map_row(&big, memory.page).unwrap_err();
    assert!(mapped_bytes() < before + (32 << 30), "the address space of the row is given back");
}

/// Page faults of this thread so far that needed no I/O: `minflt` of proc_pid_stat(5).
fn faults() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, fields) = text.rsplit_once(") ").unwrap();
    fields.split(' ').nth(7).unwrap().parse().unwrap()
}

#[test]
#[cfg(target_arch = "x86_64")]
fn second_mapping_of_a_gibibyte_shares_page_tables() {
    const GIB: u64 = 1 << 30;
    let Some(memory) = Memory::huge(MIB_2, 512) else { return };
    let file = memory.block("a", 512);
    let touch = |mapping: &Mapping| {
        let before = faults();
        for page in (0..mapping.len()).step_by(2 << 20) {
            mapping.fill(page..page + 1, 3);
        }
        faults() - before
    };
    let alone = Mapping::map(&file, GIB, memory.page).unwrap();
    assert_eq!(alone.as_ptr().addr() as u64 % GIB, 0, "at a GiB's boundary");
    assert!(touch(&alone) >= 512, "without a first mapping each page is a fault");
    drop(alone);
    let first = Mapping::map(&file, GIB, memory.page).unwrap();
    first.populate().unwrap();
    let second = Mapping::map(&file, GIB, memory.page).unwrap();
    let shared = touch(&second);
    assert!(shared <= 8, "{shared} faults for what another mapping has in its page tables");
    drop(first);
    // Not 512; a few are of this program's own text and stack where nodes are balanced.
    let kept = touch(&second);
    assert!(kept <= 8, "{kept} faults: what was shared stays when the first is gone");
}

fn mapped_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn lengths_are_whole_pages() {
    let memory = Memory::plain();
    let file = memory.block("a", 1);
    for len in [0, 1, 4095, 4097] {
        let error = Mapping::map(&file, len, memory.page).unwrap_err().to_string();
        assert_eq!(error, format!("length {len} is not a whole number of pages"));
    }
    let error = Mapping::map(&file, 1 << 63, memory.page).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::NOMEM), "{error}");
    let error = Mapping::map_row(&[], memory.page).unwrap_err().to_string();
    assert_eq!(error, "length 0 is not a whole number of pages");
}

#[test]
fn unbacked_part_is_promised_pages_when_it_is_mapped() {
    Memory::each_huge(2, |memory| {
        let free = memory.free().unwrap();
        let file = memory.block("a", 1);
        file.set_len(memory.bytes(2)).unwrap();
        let mapping = Mapping::map(&file, memory.bytes(2), memory.page).unwrap();
        assert_eq!(memory.free().unwrap(), free - 1, "promised, not taken");
        mapping.populate().unwrap();
        assert_eq!(memory.free().unwrap(), free - 2);
        assert_eq!(file.first_nonzero(0..memory.bytes(2)).unwrap(), None);
    });
}

#[test]
fn unbacked_part_larger_than_the_pool_is_refused_at_mmap() {
    Memory::each_huge(2, |memory| {
        let free = memory.free().unwrap();
        let file = memory.block("a", 1);
        let len = memory.bytes(free + 1);
        file.set_len(len).unwrap();
        let error = Mapping::map(&file, len, memory.page).unwrap_err();
        assert!(error.is_no_space(), "{error}");
        assert!(error.to_string().contains("the file has a hole"), "{error}");
    });
}

#[test]
fn mapping_past_the_end_makes_a_hugetlbfs_file_longer() {
    Memory::each_huge(2, |memory| {
        let file = memory.block("a", 1);
        let mapping = Mapping::map(&file, memory.bytes(2), memory.page).unwrap();
        assert_eq!(file.len().unwrap(), memory.bytes(2));
        assert_eq!(file.allocated_bytes().unwrap(), memory.bytes(1));
        drop(mapping);
    });
}
