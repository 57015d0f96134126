// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Polls a future once: tests ask whether it waits.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

pub(crate) trait NowOrNever: Future + Sized {
    /// Its output, if it has one without waiting.
    fn now_or_never(self) -> Option<Self::Output> {
        match pin!(self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
}

impl<F: Future> NowOrNever for F {}
