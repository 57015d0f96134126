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
use wire::Status;

/// Reports of so many loans are short: 5 kB, 20 attempts, 0.2 ms.
const FEW: usize = 32;

/// The long answer of a connection to the call at hand, if there is one.
#[derive(Debug, Clone, Default)]
pub(super) struct Long(Rc<RefCell<Option<Vec<u8>>>>);

#[derive(Serialize)]
struct Answer<'a> {
    parameters: &'a Status,
}

impl Long {
    /// What zlink is to write: of a long report nothing but its head.
    pub(super) fn shorten(&self, status: Status) -> Status {
        if status.loans.len() <= FEW {
            return status;
        }
        match serde_json::to_vec(&Answer { parameters: &status }) {
            Ok(mut answer) => {
                // Messages end with a zero byte.
                answer.push(0);
                *self.0.borrow_mut() = Some(answer);
                Status { loans: Vec::new(), ..status }
            }
            Err(_) => status,
        }
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
