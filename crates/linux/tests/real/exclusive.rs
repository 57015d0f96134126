// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The write lease as a proof: what it sees, what it does not, and that asking is harmless.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use linux::Exclusivity::{Shared, Sole, Unsupported};
use linux::exclusive::prove;
use linux::{BlockFile, Exclusivity, Mapping};
use rustix::fs::{Mode, OFlags};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use testkit::{child, skip};

use crate::memory::Memory;

/// The kernel drops a process's last references a moment after its end is reported.
fn soon(file: &BlockFile) -> Exclusivity {
    let begun = Instant::now();
    loop {
        match prove(file).unwrap() {
            Shared if begun.elapsed() < Duration::from_secs(5) => {
                std::thread::sleep(Duration::from_millis(1))
            }
            answer => return answer,
        }
    }
}

#[test]
fn the_only_description_is_sole() {
    Memory::each(1, |memory| {
        let file = memory.block("a", 1);
        assert_eq!(prove(&file).unwrap(), Sole);
        assert_eq!(prove(&file).unwrap(), Sole, "the lease was given back");
        memory.dir.rename("a", "ready", "a", "lent").unwrap();
        assert_eq!(prove(&file).unwrap(), Sole);
    });
}

#[test]
fn another_description_is_seen_with_any_mode() {
    Memory::each(1, |memory| {
        let file = memory.block("a", 1);
        let other = memory.dir.open_block("ready", "a").unwrap();
        assert_eq!(prove(&file).unwrap(), Shared);
        drop(other);
        assert_eq!(soon(&file), Sole);
        let reader = std::fs::File::open(memory.path().join("ready/a/pages")).unwrap();
        assert_eq!(prove(&file).unwrap(), Shared);
        drop(reader);
        assert_eq!(soon(&file), Sole);
    });
}

#[test]
fn the_provers_own_mapping_is_not_another_holder() {
    Memory::each(1, |memory| {
        let file = memory.block("a", 1);
        let mapping = Mapping::map(&file, memory.bytes(1), memory.page).unwrap();
        assert_eq!(prove(&file).unwrap(), Sole);
        drop(mapping);
    });
}

#[test]
fn a_mapping_counts_after_its_process_closed_the_descriptor() {
    Memory::each(1, |memory| {
        let file = memory.block("a", 1);
        let borrower = child::fork(|ready| {
            let own = memory.dir.open_block("ready", "a").unwrap();
            let mapping = Mapping::map(&own, memory.bytes(1), memory.page).unwrap();
            drop(own);
            mapping.fill(0..1, 1);
            ready.signal();
            ready.hold()
        });
        borrower.wait_ready();
        assert_eq!(prove(&file).unwrap(), Shared);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(prove(&file).unwrap(), Shared, "and goes on counting");
        borrower.kill();
        assert_eq!(soon(&file), Sole);
    });
}

#[test]
fn a_mapping_counts_in_a_child_of_a_dead_borrower() {
    Memory::each(1, |memory| {
        let file = memory.block("a", 1);
        let until_gone = tempfile::NamedTempFile::new().unwrap();
        let borrower = child::fork(|ready| {
            let own = memory.dir.open_block("ready", "a").unwrap();
            let _mapping = Mapping::map(&own, memory.bytes(1), memory.page).unwrap();
            drop(own);
            let grandchild = child::fork(|ready| {
                child::outlive_parent();
                ready.signal();
                while until_gone.path().exists() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                0
            });
            grandchild.wait_ready();
            std::mem::forget(grandchild);
            ready.signal();
            0
        });
        borrower.wait_ready();
        assert_eq!(borrower.wait(), Some(0));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(prove(&file).unwrap(), Shared, "the grandchild still maps it");
        until_gone.close().unwrap();
        assert_eq!(soon(&file), Sole);
    });
}

#[test]
fn a_duplicate_of_the_provers_description_is_not_seen() {
    // Why BlockFile says never to hand one out.
    Memory::each(1, |memory| {
        let file = memory.block("a", 1);
        let duplicate = rustix::io::dup(&file).unwrap();
        assert_eq!(prove(&file).unwrap(), Sole);
        drop(duplicate);
    });
}

#[test]
fn path_descriptor_is_unseen_but_opens_only_for_the_files_user() {
    const NO_USER: u32 = 65534;
    Memory::each(1, |memory| {
        if !rustix::process::geteuid().is_root() {
            return skip("lending to another user needs root");
        }
        let file = memory.block("a", 1);
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let kept =
            rustix::fs::open(memory.path().join("ready/a/pages"), flags, Mode::empty()).unwrap();
        assert_eq!(prove(&file).unwrap(), Sole, "O_PATH is no open of the file");

        let may_open = |uid| opens_again(&kept, uid);
        assert!(file.is_private().unwrap() && !may_open(NO_USER), "as it was made");
        file.give_access((1234, 1234)).unwrap();
        assert!(!file.is_private().unwrap());
        assert!(may_open(1234), "the borrower can open it by /proc/self/fd");
        assert!(!may_open(NO_USER), "nobody else can");
        assert_eq!(soon(&file), Sole, "the owner may ask about a file that it gave to a user");
        // As its owner may by way of the descriptor, whatever the mode says.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o666)).unwrap();
        assert!(may_open(NO_USER));
        file.take_access().unwrap();
        assert!(file.is_private().unwrap() && !may_open(1234) && !may_open(NO_USER));
        assert_eq!(soon(&file), Sole);
    });
}

// Promise P95.
#[test]
fn borrower_that_keeps_changing_the_mode_loses_access_each_time() {
    const BORROWER: u32 = 1234;
    Memory::each(1, |memory| {
        if !rustix::process::geteuid().is_root() {
            return skip("lending to another user needs root");
        }
        let file = memory.block("a", 1);
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let kept =
            rustix::fs::open(memory.path().join("ready/a/pages"), flags, Mode::empty()).unwrap();
        let path = format!("/proc/self/fd/{}", kept.as_raw_fd());
        let cheat = child::fork(|ready| {
            rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(BORROWER)).unwrap();
            ready.signal();
            loop {
                // Refused whenever it is not the owner.
                rustix::fs::chmod(&path, Mode::from_raw_mode(0o666)).ok();
            }
        });
        cheat.wait_ready();
        let mut opened = 0;
        for _ in 0..MEETINGS * 10 {
            file.give_access((BORROWER, BORROWER)).unwrap();
            std::thread::yield_now();
            opened += u32::from(!file.is_private().unwrap());
            file.take_access().unwrap();
            assert!(file.is_private().unwrap());
        }
        assert!(opened > 0);
        cheat.kill();
    });
}

// Promise P32.
#[test]
fn a_lease_of_its_owner_is_not_waited_for() {
    Memory::each(1, |memory| {
        let file = memory.block("a", 1);
        testkit::hold_lease(&file).unwrap();
        let begun = Instant::now();
        let error = memory.dir.open_block("ready", "a").unwrap_err();
        assert!(error.is_leased(), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(5), "lease-break-time is 45 s");
    });
}

/// Whether a process of user `uid` that was left a descriptor can open its file for writing.
fn opens_again(kept: &OwnedFd, uid: u32) -> bool {
    // dup without CLOEXEC, so that the shell inherits it.
    let left = rustix::io::dup(kept).unwrap();
    let script = format!("exec 3<>/proc/self/fd/{}", left.as_raw_fd());
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &script]).uid(uid).gid(uid).stderr(Stdio::null());
    shell.status().unwrap().success()
}

/// How often the proof must meet the other process, so that some opens fall into the moment of the
/// lease; with SIGIO unchanged the first few ended this process.
const MEETINGS: usize = 300;

#[test]
fn open_during_the_proof_harms_no_process() {
    // The kernel signals a lease holder when another process opens the file; SIGIO would end this
    // process.
    Memory::each(1, |memory| {
        let file = memory.block("a", 1);
        let opener = child::fork(|ready| {
            ready.signal();
            loop {
                match memory.dir.open_block("ready", "a") {
                    Err(error) if !error.is_leased() => return 1,
                    _ => {}
                }
            }
        });
        opener.wait_ready();
        let begun = Instant::now();
        let (mut sole, mut shared) = (0, 0);
        while sole < MEETINGS || shared < MEETINGS {
            match prove(&file).unwrap() {
                Sole => sole += 1,
                Shared => shared += 1,
                Unsupported => panic!("it was supported before"),
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{sole} sole, {shared} shared");
        }
        opener.kill();
        assert_eq!(soon(&file), Sole);
    });
}

#[test]
fn file_without_lease_support_is_unsupported() {
    // The kernel leases regular files only, and answers EINVAL for the rest.
    let (pipe, _) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    assert_eq!(prove(&BlockFile::from(pipe)).unwrap(), Unsupported);
}

#[test]
fn a_kernel_that_refuses_leases_is_unsupported() {
    Memory::each(1, |memory| {
        let file = memory.block("a", 1);
        // In a thread of its own, since a filter cannot be taken off again.
        let answer = std::thread::scope(|scope| {
            let ask = || {
                seccompiler::apply_filter(&refusing_leases()).unwrap();
                prove(&file).unwrap()
            };
            scope.spawn(ask).join().unwrap()
        });
        assert_eq!(answer, Unsupported);
        assert_eq!(prove(&file).unwrap(), Sole, "other threads still may");
    });
}

/// Answers EINVAL to `fcntl(_, F_SETLEASE, _)`, as a kernel without `CONFIG_FILE_LOCKING` does.
fn refusing_leases() -> BpfProgram {
    let is_set_lease = SeccompCondition::new(
        1,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::Eq,
        u64::try_from(libc::F_SETLEASE).unwrap(),
    );
    let rule = SeccompRule::new(vec![is_set_lease.unwrap()]).unwrap();
    let filter = SeccompFilter::new(
        [(libc::SYS_fcntl, vec![rule])].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(u32::try_from(libc::EINVAL).unwrap()),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    filter.unwrap().try_into().unwrap()
}
