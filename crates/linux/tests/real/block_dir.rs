// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use linux::{BlockDir, Errno};

use crate::memory::Memory;

#[test]
fn a_block_moves_from_state_to_state_and_keeps_its_pages() {
    Memory::each(1, |memory| {
        let dir = &memory.dir;
        let file = memory.block("a", 1);
        dir.rename("a", "ready", "b", "lent").unwrap();
        assert_eq!(
            (dir.list("ready").unwrap(), dir.list("lent").unwrap()),
            (vec![], vec!["b".into()])
        );
        assert_eq!(
            file.allocated_bytes().unwrap(),
            memory.bytes(1),
            "the descriptor is still good"
        );
        let again = dir.open_block("lent", "b").unwrap();
        assert_eq!(again.len().unwrap(), memory.bytes(1));
        dir.unlink("lent", "b").unwrap();
        assert!(dir.open_block("lent", "b").unwrap_err().is_not_found());
    });
}

#[test]
fn no_move_and_no_creation_replaces_a_block() {
    Memory::each(2, |memory| {
        let dir = &memory.dir;
        drop((memory.block("a", 1), memory.block("b", 1)));
        let error = dir.rename("a", "ready", "b", "ready").unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EXIST), "{error}");
        let error = dir.create("ready", "b").unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EXIST), "{error}");
        assert_eq!(dir.list("ready").unwrap(), ["a", "b"]);
        assert!(dir.rename("c", "ready", "d", "lent").unwrap_err().is_not_found());
    });
}

#[test]
fn another_opening_finds_the_same_blocks() {
    Memory::each(1, |memory| {
        drop(memory.block("a", 1));
        let again = BlockDir::open(memory.path(), &["lent", "ready", "kept"], 0o700).unwrap();
        assert_eq!(again.list("ready").unwrap(), ["a"]);
        assert_eq!(again.list("kept").unwrap(), [""; 0]);
    });
}

#[test]
fn modes_keep_paths_closed_and_descriptors_open() {
    Memory::each(0, |memory| {
        drop(memory.dir.create("ready", "a").unwrap());
        let state = memory.path().join("ready");
        let mode =
            |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&state), 0o700);
        assert_eq!(mode(&state.join("a")), 0o700);
        assert_eq!(mode(&state.join("a/pages")), 0o600, "whatever the umask is");
    });
}

#[test]
fn names_are_single_components_and_links_are_not_followed() {
    let memory = Memory::plain();
    let dir = &memory.dir;
    for name in ["", ".", "..", "a/b", "../ready/a", "a\0b"] {
        let error = dir.create("ready", name).unwrap_err().to_string();
        assert_eq!(error, format!("name {name:?} is not one path component of 1 to 255 bytes"));
    }
    assert!(
        dir.create("reddy", "a")
            .unwrap_err()
            .to_string()
            .starts_with("state \"reddy\" was not named")
    );

    let outside = memory.path().join("outside");
    std::fs::write(&outside, "x").unwrap();
    symlink(&outside, memory.path().join("ready/link")).unwrap();
    let error = dir.open_block("ready", "link").unwrap_err();
    assert_eq!(error.errno(), Some(Errno::NOTDIR), "{error}");

    symlink("/tmp", memory.path().join("kept")).unwrap();
    let error = BlockDir::open(memory.path(), &["kept"], 0o700).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::NOTDIR), "{error}");
}

#[test]
fn name_that_is_not_text_is_unknown() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let memory = Memory::plain();
    std::fs::write(memory.path().join("ready").join(OsStr::from_bytes(b"\xff")), "").unwrap();
    let error = memory.dir.list("ready").unwrap_err().to_string();
    assert!(error.ends_with("is not prezero's: remove the file"), "{error}");
}

#[test]
fn an_unlinked_block_lives_until_its_last_description_closes() {
    Memory::each_huge(2, |memory| {
        let free = memory.free().unwrap();
        let file = memory.block("a", 2);
        memory.dir.unlink("ready", "a").unwrap();
        assert_eq!(memory.free().unwrap(), free - 2);
        assert_eq!(std::fs::metadata(memory.path().join("ready")).unwrap().nlink(), 2);
        drop(file);
        assert_eq!(memory.free().unwrap(), free);
    });
}

// Promise P33.
#[test]
fn moves_and_opens_do_not_wait_for_a_filler() {
    use std::time::{Duration, Instant};
    const PAGES: u64 = 64;
    let Some(memory) = Memory::huge(units::PageSize::MIB_2, PAGES) else { return };
    let file = memory.dir.create("ready", "a").unwrap();
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        let filling = scope.spawn(|| {
            // Idle: beside a busy thread it hardly runs, and keeps the inode's lock meanwhile.
            linux::sched::set_idle().unwrap();
            file.allocate(0, memory.bytes(PAGES)).unwrap();
        });
        let mut at = "ready";
        while !filling.is_finished() {
            let begun = Instant::now();
            let to = if at == "ready" { "lent" } else { "ready" };
            memory.dir.rename("a", at, "a", to).unwrap();
            drop(memory.dir.open_block(to, "a").unwrap());
            memory.dir.allocated_bytes(to, "a").unwrap();
            at = to;
            longest = longest.max(begun.elapsed());
        }
    });
    assert!(longest < Duration::from_millis(500), "a move took {longest:?}");
}
