// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answers that are too long for zlink to write.
//!
//! zlink 0.8 writes an answer into a buffer, and begins anew with 256 bytes more where that is too
//! small: a report of 818 loans, 130 kB, it wrote 512 times, which took the daemon's thread 0.1 s
//! and more, and four times as long for twice as many loans. So a long answer is written here,
//! once, and sent by the connection's [`socket`](super::socket) in place of the short one that
//! zlink gets to write.

use std::cell::RefCell;
use std::rc::Rc;

use serde::Serialize;
use wire::agent::Loans;
use wire::{Holders, Lent, Status};

/// Answers with so many entries are short: 5 kB, 20 attempts, 0.2 ms.
const FEW: usize = 32;

/// An answer that may have many entries.
pub(super) trait Entries: Serialize {
    /// How many they are.
    fn many(&self) -> usize;
    /// Leaves them away.
    fn clear(&mut self);
}

impl Entries for Status {
    fn many(&self) -> usize {
        self.loans.len().max(self.users.len()).max(self.pools.len())
    }
    fn clear(&mut self) {
        (self.loans, self.users, self.pools) = (Vec::new(), Vec::new(), Vec::new());
    }
}

impl Entries for Lent {
    fn many(&self) -> usize {
        self.parts.len()
    }
    fn clear(&mut self) {
        self.parts = Vec::new();
    }
}

impl Entries for Holders {
    fn many(&self) -> usize {
        self.holders.len()
    }
    fn clear(&mut self) {
        self.holders = Vec::new();
    }
}

impl Entries for Loans {
    fn many(&self) -> usize {
        self.loans.len()
    }
    fn clear(&mut self) {
        self.loans = Vec::new();
    }
}

/// The long answer of a connection to the call at hand, if there is one.
#[derive(Debug, Clone, Default)]
pub(super) struct Long(Rc<RefCell<Option<Vec<u8>>>>);

#[derive(Serialize)]
struct Answer<'a, T> {
    parameters: &'a T,
}

impl Long {
    /// What zlink is to write: of a long answer nothing but its head.
    pub(super) fn shorten<T: Entries>(&self, mut entries: T) -> T {
        if entries.many() <= FEW {
            return entries;
        }
        if let Ok(mut answer) = serde_json::to_vec(&Answer { parameters: &entries }) {
            // Messages end with a zero byte.
            answer.push(0);
            *self.0.borrow_mut() = Some(answer);
            entries.clear();
        }
        entries
    }

    /// What is to be sent in place of an answer.
    pub(super) fn take(&self) -> Option<Vec<u8>> {
        self.0.borrow_mut().take()
    }

    /// Another call begins: one that wants no answer has left its own here.
    pub(super) fn forget(&self) {
        *self.0.borrow_mut() = None;
    }
}
