// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writing patterns into borrowed memory, and looking for them.

use client::Loan;
use linux::Mapping;

/// Maps a loan as a program may that keeps nothing but the mapping: the mapping outlives the loan.
pub trait MapAlone {
    /// All blocks in a row.
    ///
    /// # Errors
    /// As [`Mapping::map_row`].
    fn map_alone(&self) -> linux::Result<Mapping>;
}

impl MapAlone for Loan {
    fn map_alone(&self) -> linux::Result<Mapping> {
        let row: Vec<_> = self.parts().map(|(fd, part)| (fd, part.bytes.0)).collect();
        Mapping::map_row(&row, self.page_size())
    }
}

/// Fills all of it with a byte that is not zero.
pub fn soil(memory: &Mapping, byte: u8) {
    assert_ne!(byte, 0, "a pattern that can be told from zero");
    memory.fill(0..memory.len(), byte);
}

/// The first byte that is not zero, by reading every one of them.
#[must_use]
pub fn first_dirty(memory: &Mapping) -> Option<usize> {
    const STEP: usize = 1 << 20;
    let (mut buffer, zeros) = (vec![0_u8; STEP], vec![0_u8; STEP]);
    for offset in (0..memory.len()).step_by(STEP) {
        let piece = &mut buffer[..STEP.min(memory.len() - offset)];
        memory.read(offset, piece);
        // One memcmp per MiB, which is fast in unoptimised builds as well.
        if *piece != zeros[..piece.len()] {
            return piece.iter().position(|byte| *byte != 0).map(|at| offset + at);
        }
    }
    None
}

/// # Panics
/// If a byte of it is not zero.
pub fn assert_zero(memory: &Mapping) {
    let dirty = first_dirty(memory);
    assert_eq!(dirty, None, "borrowed memory has a byte that is not zero");
}

/// # Panics
/// Unless its first and last byte are `byte`.
pub fn assert_soiled(memory: &Mapping, byte: u8) {
    for at in [0, memory.len() - 1] {
        let mut found = [0_u8];
        memory.read(at, &mut found);
        assert_eq!(found[0], byte, "byte {at} of content that must have stayed");
    }
}

/// Writes a byte to each page and returns how many page faults that took (`minflt` of
/// proc_pid_stat(5)).
///
/// # Panics
/// If the kernel does not say.
#[must_use]
pub fn faults_of_touching(memory: &Mapping, page_bytes: u64) -> u64 {
    let faults = || {
        let text = std::fs::read_to_string("/proc/thread-self/stat").expect("/proc");
        let (_, fields) = text.rsplit_once(") ").expect("a command in parentheses");
        fields.split(' ').nth(7).and_then(|f| f.parse::<u64>().ok()).expect("a number")
    };
    let step = usize::try_from(page_bytes).expect("fits");
    let before = faults();
    for at in (0..memory.len()).step_by(step) {
        memory.fill(at..at + 1, 1);
    }
    faults() - before
}

/// The bytes at one place.
#[must_use]
pub fn at<const N: usize>(memory: &Mapping, offset: usize) -> [u8; N] {
    let mut found = [0; N];
    memory.read(offset, &mut found);
    found
}
