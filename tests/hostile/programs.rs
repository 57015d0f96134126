// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that runs from lent memory after its loan was returned: while it runs, the kernel lets
//! no process open the file for writing.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use linux::Mapping;
use prezero_tests::{Daemon, Page};
use rustix::fs::{Mode, fchmod};

use crate::attack::Attack;
use crate::scene::{Got, Scene, path_of, path_only};
use crate::stage::Stage;
use crate::users::User;

/// Programs at a time: the pool has blocks for victims beside them.
const PROGRAMS: usize = 3;
/// How long the daemon may take to close its copy of a sent descriptor.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Lines of the log that a borrower may cause in one window.
const MAX_WARNINGS: usize = 3;

/// The first byte of the code, behind the headers.
const ENTRY: usize = 0x200;
/// `for (;;) pause();`
const CODE: [u8; 9] = [0xB8, 34, 0, 0, 0, 0x0F, 0x05, 0xEB, 0xF7];

/// An ELF executable with one segment, a whole page of 2 MiB.
fn executable() -> Vec<u8> {
    const ADDRESS: u64 = 0x40_0000;
    const SIZE: u64 = 2 << 20;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    // ET_EXEC for x86-64, version 1.
    elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [ADDRESS + ENTRY as u64, 64, 0] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(0_u32.to_le_bytes());
    // One program header of 56 bytes behind this header of 64.
    for half in [64_u16, 56, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    // PT_LOAD, readable and executable.
    for word in [1_u32, 5] {
        elf.extend(word.to_le_bytes());
    }
    for word in [0, ADDRESS, ADDRESS, SIZE, SIZE, SIZE] {
        elf.extend(word.to_le_bytes());
    }
    elf.resize(ENTRY, 0);
    elf.extend(CODE);
    elf
}

/// Borrows a page, writes a program there, starts it and returns the page.
fn start_from_a_loan(scene: &Scene<'_>) -> std::io::Result<Child> {
    let (lease, file) = scene.borrow_file(|_| {});
    let memory = Mapping::map(&file, 2 << 20, Page::Mib2.size()).expect("lent memory");
    for (at, byte) in executable().into_iter().enumerate() {
        memory.fill(at..at + 1, byte);
    }
    drop(memory);
    fchmod(&file, Mode::RWXU).expect("its own file");
    let name = path_only(&file.as_fd());
    // A file that is open for writing is not executed, and the daemon closes its copy of the
    // descriptor in the borrower's queue, a moment after the reply.
    drop(file);
    let begun = Instant::now();
    let started = loop {
        match Command::new(path_of(&name)).stdin(Stdio::null()).spawn() {
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy
                    && begun.elapsed() < CLOSE_TIMEOUT =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            started => break started,
        }
    };
    drop(lease);
    started
}

fn warnings(daemon: &Daemon) -> usize {
    daemon.log().lines().filter(|line| line.contains("WARN")).count()
}

fn run_programs(scene: &mut Scene<'_>) -> Got {
    let before = warnings(scene.daemon);
    let mut programs = Vec::new();
    for _ in 0..PROGRAMS {
        match start_from_a_loan(scene) {
            Ok(program) => programs.push(program),
            Err(error) => return Err(format!("the program is not started: {error}")),
        }
    }
    scene.set_up();
    scene.wait();
    // The daemon looks at a returned block several times a second.
    std::thread::sleep(Duration::from_millis(500));
    let mut running = 0;
    for program in &mut programs {
        running += usize::from(matches!(program.try_wait(), Ok(None)));
    }
    let warned = warnings(scene.daemon) - before;
    for mut program in programs {
        program.kill().ok();
        program.wait().ok();
    }
    if running < PROGRAMS {
        return Err(format!("{running} of {PROGRAMS} programs run"));
    }
    if warned > MAX_WARNINGS {
        return Err(format!("{warned} warnings in the log"));
    }
    Ok(format!("{running} programs, and blocks that are draining"))
}

pub(crate) fn programs_in_returned_blocks_delay_no_user_and_fill_no_log(stage: &mut Stage) {
    let name = format!("programs run from returned blocks, {}", stage.recycle);
    Attack::new(name, User::Borrower, run_programs).run(stage);
}
