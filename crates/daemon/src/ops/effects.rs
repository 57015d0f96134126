// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one way from the book to the file system: the daemon carries out what the book decides,
//! whole and in order, before any call sees either.

use book::{Book, Effect};
use linux::BlockFile;
use units::{BlockId, Pages};

use super::Shell;

/// The decision of a method of the book: an answer, and its effects.
pub(super) trait Decision {
    /// The answer that remains when the effects are done.
    type Answer;
    fn split(self) -> (Self::Answer, Vec<Effect>);
}

impl Decision for Vec<Effect> {
    type Answer = ();
    fn split(self) -> ((), Vec<Effect>) {
        ((), self)
    }
}

impl<A> Decision for (A, Vec<Effect>) {
    type Answer = A;
    fn split(self) -> (A, Vec<Effect>) {
        self
    }
}

impl<A, B> Decision for (A, B, Vec<Effect>) {
    type Answer = (A, B);
    fn split(self) -> ((A, B), Vec<Effect>) {
        ((self.0, self.1), self.2)
    }
}

impl<D: Decision> Decision for Option<D> {
    type Answer = Option<D::Answer>;
    fn split(self) -> (Self::Answer, Vec<Effect>) {
        self.map_or((None, Vec::new()), |decided| {
            let (answer, effects) = decided.split();
            (Some(answer), effects)
        })
    }
}

impl<D: Decision, E> Decision for Result<D, E> {
    type Answer = Result<D::Answer, E>;
    fn split(self) -> (Self::Answer, Vec<Effect>) {
        match self {
            Ok(decided) => {
                let (answer, effects) = decided.split();
                (Ok(answer), effects)
            }
            Err(error) => (Err(error), Vec::new()),
        }
    }
}

/// A new file.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) block: BlockId,
    pub(super) file: BlockFile,
    /// Pages that it takes from the kernel's pool before its borrower gets it.
    pub(super) fill: Pages,
}

impl Shell {
    /// Asks the book and carries out its decision. An effect that fails costs its block: the daemon
    /// forgets a file that it cannot make, move or open, and the next start removes or adopts it.
    pub(super) fn apply<D: Decision>(
        &mut self,
        decide: impl FnOnce(&mut Book) -> D,
    ) -> (D::Answer, Vec<Made>) {
        let (answer, effects) = decide(&mut self.book).split();
        let made = effects.iter().filter_map(|effect| self.carry_out(effect)).collect();
        if !effects.is_empty() {
            self.changes.wake();
        }
        let pages = |effect: &Effect| {
            matches!(effect, Effect::Remove(_) | Effect::Unlink(_) | Effect::Resize { .. })
        };
        if effects.iter().any(pages) {
            // The kernel has more free pages than at the last look.
            self.observed.expire();
        }
        (answer, made)
    }

    fn carry_out(&mut self, effect: &Effect) -> Option<Made> {
        let file = match self.store.carry_out(&self.book, effect) {
            Ok(file) => file?,
            Err(error) if let Effect::Mark(block) = *effect => {
                tracing::warn!(%error, %block, "what its owner leaves is not kept");
                self.book.mark_failed(block);
                return None;
            }
            Err(error) => {
                tracing::error!(%error, ?effect, "a block is lost");
                self.give_up(effect);
                return None;
            }
        };
        match *effect {
            Effect::Create { block, fill, .. } => Some(Made { block, file, fill }),
            _ => None,
        }
    }

    /// Forgets the block of an effect that failed.
    fn give_up(&mut self, effect: &Effect) {
        if let Effect::Remove(_) | Effect::Unlink(_) = effect {
            return;
        }
        let block = effect.block();
        self.book.forget(block);
        // Best effort: the next start finds a file that cannot be removed now.
        if let Err(error) = self.store.carry_out(&self.book, &Effect::Remove(block)) {
            tracing::debug!(%error, "nor could its file be removed");
        }
    }
}
