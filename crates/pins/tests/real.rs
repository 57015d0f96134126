// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pin probe on this machine's kernel and huge pages.
#![expect(unsafe_code, reason = "pins pages as programs do")]

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use linux::{BlockDir, BlockFile, Mapping};
use prezero_pins::{Error, Holder, PinProbe, Rest};
use rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags, pipe_with, vmsplice};
use testkit::hugepages::{GIB_1, MIB_2, mounted, reserve};
use testkit::{punch, skip};
use units::PageSize;

struct Rig {
    probe: PinProbe,
    dir: BlockDir,
    page: PageSize,
}

impl Rig {
    /// Runs `test` with this number of free pages of each size that the machine has.
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
            let dir = BlockDir::open(mount.path(), &["ready"], 0o700).expect("the kernel does it");
            test(&Self { probe, dir, page });
        }
    }

    fn file(&self, name: &str, pages: u32) -> BlockFile {
        let file = self.dir.create("ready", name).expect("the kernel does it");
        file.allocate(0, u64::from(pages) * self.page.bytes()).expect("the kernel does it");
        file
    }

    fn bytes(&self) -> usize {
        usize::try_from(self.page.bytes()).expect("a page fits")
    }

    fn rest(&self) -> Rest {
        let file = self.dir.create("ready", "rest").expect("the kernel does it");
        let rest = self.probe.measure(&file, self.page).expect("the kernel does it");
        self.dir.unlink("ready", "rest").expect("the kernel does it");
        rest
    }
}

/// The page at `offset` of `file` in a pipe.
fn spliced(rig: &Rig, file: &BlockFile, offset: usize) -> (OwnedFd, OwnedFd) {
    let pipe = pipe_with(PipeFlags::CLOEXEC).expect("the kernel does it");
    let mapping = Mapping::map(file, file.len().expect("the kernel does it"), rig.page)
        .expect("the kernel does it");
    let at = mapping.as_ptr().wrapping_add(offset);
    // SAFETY: a byte inside the mapping, which lives until the call has returned.
    let byte = unsafe { std::slice::from_raw_parts(at, 1) };
    // SAFETY: the pipe only reads.
    let given = unsafe { vmsplice(&pipe.1, &[IoSliceRaw::from_slice(byte)], SpliceFlags::empty()) };
    assert_eq!(given.expect("the kernel does it"), 1);
    pipe
}

#[test]
fn page_at_rest_has_one_count_and_each_pin_one_more() {
    Rig::each(2, |rig| {
        let rest = rig.rest();
        let file = rig.file("a", 2);
        let seen = rig.probe.look(file.as_fd(), 2, rest, None).unwrap();
        assert_eq!((seen.pages, seen.held), (2, 0));

        let pipe = spliced(rig, &file, rig.bytes());
        let pinned = rig.probe.look(file.as_fd(), 2, rest, None).unwrap();
        assert_eq!((pinned.pages, pinned.held, pinned.first_held), (2, 1, 1));
        assert_eq!((pinned.lowest, pinned.highest), (rest.references(), rest.references() + 1));

        std::fs::File::from(pipe.0).read_exact(&mut [0]).unwrap();
        assert_eq!(rig.probe.look(file.as_fd(), 2, rest, None).unwrap().held, 0);
    });
}

#[test]
fn unbacked_pages_do_not_count_and_a_mapping_is_a_reference() {
    Rig::each(2, |rig| {
        let rest = rig.rest();
        let file = rig.file("a", 2);
        let page = rig.page.bytes();
        // A hole before the page that is there and one behind it.
        file.set_len(3 * page).unwrap();
        punch(&file, 0..page).unwrap();
        assert_eq!(rig.probe.look(file.as_fd(), 3, rest, None).unwrap().pages, 1);
        file.allocate(0, page).unwrap();

        let mapping = Mapping::map(&file, page, rig.page).unwrap();
        mapping.populate().unwrap();
        let mapped = rig.probe.look(file.as_fd(), 3, rest, None).unwrap();
        assert_eq!((mapped.held, mapped.first_held), (1, 0));
        drop(mapping);
        assert_eq!(rig.probe.look(file.as_fd(), 3, rest, None).unwrap().held, 0);
    });
}

#[test]
fn file_whose_memory_ends_early_is_seen_as_it_is() {
    // A tree of so few pages is two levels lower than one of all of them.
    let Some(_guard) = reserve(MIB_2, 2) else { return };
    let Some(mount) = mounted(MIB_2) else { return };
    let Ok(probe) = PinProbe::load() else { return skip("pins cannot be seen") };
    let dir = BlockDir::open(mount.path(), &["ready"], 0o700).unwrap();
    let rig = Rig { probe, dir, page: MIB_2 };
    let rest = rig.rest();
    let file = rig.file("a", 2);
    file.set_len(300_000 * MIB_2.bytes()).unwrap();
    assert_eq!(rig.probe.look(file.as_fd(), 300_000, rest, None).unwrap().pages, 2);
    assert!(matches!(rig.probe.prove(&file, rest, None, None).unwrap(), Holder::Nobody(_)));
}

#[test]
fn file_without_huge_pages_gets_no_answer() {
    Rig::each(1, |rig| {
        let rest = rig.rest();
        let _file = rig.file("a", 1);
        let other = tempfile::tempfile().unwrap();
        let error = rig.probe.look(other.as_fd(), 1, rest, None).unwrap_err();
        assert!(matches!(error, Error::NotLooked { .. }), "{error}");
        assert!(error.to_string().ends_with("it is no file of hugetlbfs"), "{error}");
    });
}

#[test]
fn file_that_a_process_holds_is_no_measure() {
    Rig::each(2, |rig| {
        let file = rig.dir.create("ready", "a").unwrap();
        file.set_len(2 * rig.page.bytes()).unwrap();
        let mapping = Mapping::map(&file, rig.page.bytes(), rig.page).unwrap();
        let error = rig.probe.measure(&file, rig.page).unwrap_err();
        assert!(error.to_string().starts_with("pins cannot be seen: "), "{error}");
        drop(mapping);
    });
}

// Promise P103.
#[test]
fn only_unopened_unmapped_unpinned_unnamed_file_is_unheld() {
    Rig::each(2, |rig| {
        let rest = rig.rest();
        let file = rig.file("a", 2);
        let prove = || rig.probe.prove(&file, rest, None, None).unwrap();
        assert!(matches!(prove(), Holder::Nobody(_)));

        let other = rig.dir.open_block("ready", "a").unwrap();
        assert!(matches!(prove(), Holder::Open));
        let mapping = Mapping::map(&other, rig.page.bytes(), rig.page).unwrap();
        drop(other);
        assert!(matches!(prove(), Holder::Mapped));
        drop(mapping);
        assert!(matches!(prove(), Holder::Nobody(_)));

        let pipe = spliced(rig, &file, rig.bytes());
        assert!(matches!(prove(), Holder::Pinned(1)));
        drop(pipe);
        assert!(matches!(prove(), Holder::Nobody(_)));

        let path = rig.dir.path().join("ready/a/pages");
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let name = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
        assert!(matches!(prove(), Holder::Named), "no description, and yet a way to one");
        drop(name);
        assert!(matches!(prove(), Holder::Nobody(_)));
    });
}

// Promise P251.
#[test]
fn pages_behind_the_end_are_seen_and_no_length_hides_them() {
    Rig::each(3, |rig| {
        let rest = rig.rest();
        let file = rig.file("a", 1);
        let prove = || rig.probe.prove(&file, rest, None, None).unwrap();
        let page = rig.page.bytes();
        let behind = |at: u64| {
            let how = rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, how, at * page, page).unwrap();
        };
        behind(1);
        assert!(matches!(prove(), Holder::Altered(1)), "the next one");
        behind(1 << 20);
        assert!(matches!(prove(), Holder::Altered(2)), "one far away");
        let seen = rig.probe.look(file.as_fd(), 1, rest, None).unwrap();
        assert_eq!((seen.pages, seen.behind), (3, 2));

        // Pinned, it is in use.
        file.set_len(2 * page).unwrap();
        let pipe = spliced(rig, &file, rig.bytes());
        // A file that is cut is empty behind its end.
        assert!(matches!(prove(), Holder::Pinned(1)));
        drop(pipe);
        assert!(matches!(prove(), Holder::Nobody(_)));

        // A length of more pages than fit into 32 bits.
        file.set_len(page << 33).unwrap();
        assert!(matches!(prove(), Holder::Nobody(_)));
        file.set_len(0).unwrap();
        behind(0);
        assert!(matches!(prove(), Holder::Altered(1)), "a file without length");
        file.set_len(0).unwrap();
        assert_eq!(rig.probe.look(file.as_fd(), 0, rest, None).unwrap().pages, 0);
    });
}

// Promise P252 (isolation): No watch, mark, lock, lease or inode reference of a borrower outlives
// its loan on a kernel that shows pins: a block that has one goes back to the kernel.
#[test]
fn inode_marks_are_seen_except_the_provers_own_watch() {
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init, remove_watch};
    Rig::each(2, |rig| {
        let rest = rig.rest();
        let file = rig.file("a", 1);
        let [own, other] = [0, 1].map(|_| init(CreateFlags::CLOEXEC).unwrap());
        let path = rig.dir.path().join("ready/a/pages");
        let watch = |by: &OwnedFd| add_watch(by, &path, WatchFlags::CLOSE_WRITE).unwrap();
        let prove = || rig.probe.prove(&file, rest, Some(own.as_fd()), None).unwrap();
        let ours = watch(&own);
        assert!(matches!(prove(), Holder::Nobody(_)), "its own");
        watch(&other);
        assert!(matches!(prove(), Holder::Marked), "another's beside its own");
        remove_watch(&own, ours).unwrap();
        assert!(matches!(prove(), Holder::Marked), "another's alone");
        drop(other);
        assert!(matches!(prove(), Holder::Nobody(_)));

        let shared = rustix::fs::FlockOperation::LockShared;
        rustix::fs::flock(&file, shared).unwrap();
        assert!(matches!(prove(), Holder::Marked), "a lock");
        rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock).unwrap();
        assert!(matches!(prove(), Holder::Nobody(_)));
    });
}

// Promise P250.
#[test]
fn lent_pages_pinned_outside_their_file_are_seen_until_free() {
    Rig::each(4, |rig| {
        let rest = rig.rest();
        let file = rig.file("a", 2);
        let page = rig.page.bytes();
        let mut lent = rig.probe.lent(&file, rest).unwrap();
        let mut prove = || rig.probe.prove(&file, rest, None, Some(&mut lent)).unwrap();
        assert!(matches!(prove(), Holder::Nobody(_)));

        // Free, they are unused, also where others take their place.
        punch(&file, 0..page).unwrap();
        assert!(matches!(prove(), Holder::Nobody(_)), "a hole");
        file.allocate(0, page).unwrap();
        assert!(matches!(prove(), Holder::Nobody(_)), "filled");

        let pipe = spliced(rig, &file, rig.bytes());
        punch(&file, page..2 * page).unwrap();
        assert!(matches!(prove(), Holder::Pinned(1)), "in no file, and not free");
        file.allocate(page, page).unwrap();
        assert!(matches!(prove(), Holder::Pinned(1)), "with another in its place");
        drop(pipe);
        assert!(matches!(prove(), Holder::Nobody(_)), "let go");
    });
}
