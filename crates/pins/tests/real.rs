// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pin probe on this machine's kernel and huge pages.
#![expect(unsafe_code, reason = "pins pages as programs do")]

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use linux::testkit::hugepages::{GIB_1, MIB_2, mounted, reserve};
use linux::testkit::skip;
use linux::{BlockDir, BlockFile, Mapping, PageBytes};
use prezero_pins::{Error, Idle, PinProbe};
use rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags, pipe_with, vmsplice};

struct Rig {
    probe: PinProbe,
    dir: BlockDir,
    page: PageBytes,
}

impl Rig {
    /// Runs `test` with so many free pages of each size that the machine has.
    fn each(pages: u64, test: impl Fn(&Self)) {
        for page in [MIB_2, GIB_1] {
            let Some(_guard) = reserve(page, pages) else { continue };
            let Some(mount) = mounted(page) else { continue };
            let probe = match PinProbe::load() {
                Ok(probe) => probe,
                Err(error) => {
                    skip(&error.to_string());
                    continue;
                }
            };
            let dir = BlockDir::open(mount.path(), &["ready"], 0o700).unwrap();
            test(&Self { probe, dir, page });
        }
    }

    fn file(&self, name: &str, pages: u32) -> BlockFile {
        let file = self.dir.create("ready", name).unwrap();
        file.allocate(0, u64::from(pages) * self.page.bytes()).unwrap();
        file
    }

    fn idle(&self, file: &BlockFile, pages: u32) -> Idle {
        self.probe.measure(file.as_fd(), self.page, pages).unwrap()
    }
}

/// The page at `offset` of `file` in a pipe.
fn spliced(rig: &Rig, file: &BlockFile, offset: u64) -> (OwnedFd, OwnedFd) {
    let pipe = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let mapping = Mapping::map(file, file.len().unwrap(), rig.page).unwrap();
    // SAFETY: a byte inside the mapping, which lives until the call has returned.
    let byte = unsafe { std::slice::from_raw_parts(mapping.as_ptr().add(offset as usize), 1) };
    // SAFETY: the pipe only reads.
    let given = unsafe { vmsplice(&pipe.1, &[IoSliceRaw::from_slice(byte)], SpliceFlags::empty()) };
    assert_eq!(given.unwrap(), 1);
    pipe
}

#[test]
fn pages_at_rest_have_one_count_and_a_pin_is_one_more_on_its_page() {
    Rig::each(3, |rig| {
        let file = rig.file("a", 3);
        let idle = rig.idle(&file, 3);
        let rest = rig.probe.look(file.as_fd(), 3, idle).unwrap();
        assert_eq!((rest.pages, rest.held), (3, 0));

        let pipe = spliced(rig, &file, 2 * rig.page.bytes());
        let pinned = rig.probe.look(file.as_fd(), 3, idle).unwrap();
        assert_eq!((pinned.pages, pinned.held, pinned.first_held), (3, 1, 2));
        assert_eq!((pinned.lowest, pinned.highest), (idle.references(), idle.references() + 1));

        std::fs::File::from(pipe.0).read_exact(&mut [0]).unwrap();
        assert_eq!(rig.probe.look(file.as_fd(), 3, idle).unwrap().held, 0);
    });
}

#[test]
fn holes_are_no_pages_and_a_mapping_is_a_reference() {
    Rig::each(3, |rig| {
        let file = rig.file("a", 3);
        let idle = rig.idle(&file, 3);
        let page = rig.page.bytes();
        file.punch(page..2 * page).unwrap();
        assert_eq!(rig.probe.look(file.as_fd(), 3, idle).unwrap().pages, 2);

        let mapping = Mapping::map(&file, page, rig.page).unwrap();
        mapping.populate().unwrap();
        let mapped = rig.probe.look(file.as_fd(), 3, idle).unwrap();
        assert_eq!((mapped.held, mapped.first_held), (1, 0));
        drop(mapping);
        assert_eq!(rig.probe.look(file.as_fd(), 3, idle).unwrap().held, 0);
    });
}

#[test]
fn what_is_no_file_of_huge_pages_gets_no_answer() {
    Rig::each(1, |rig| {
        let file = rig.file("a", 1);
        let idle = rig.idle(&file, 1);
        let other = tempfile::tempfile().unwrap();
        let error = rig.probe.look(other.as_fd(), 1, idle).unwrap_err();
        assert!(matches!(error, Error::NotLooked { .. }), "{error}");
        assert!(error.to_string().ends_with("it is no file of hugetlbfs"), "{error}");
    });
}

#[test]
fn a_file_whose_pages_are_held_already_is_no_measure() {
    Rig::each(2, |rig| {
        let file = rig.file("a", 2);
        let _pipe = spliced(rig, &file, 0);
        let error = rig.probe.measure(file.as_fd(), rig.page, 2).unwrap_err();
        assert!(error.to_string().contains("no known count"), "{error}");
    });
}
