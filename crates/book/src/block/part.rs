// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A block's part in a loan: its borrower, and the owner of its content when it comes back.

use units::{LeaseId, LoanName, Owner, Pages, Uid};

/// Who returns to content that was left, and until when it stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep {
    /// The owner's name.
    pub owner: Owner,
    /// The scope of the loan's name, if it has one. An owner belongs to one scope. Loans that last
    /// by a descriptor have no scope.
    pub scope: Option<String>,
    /// How long content stays after its return, in seconds.
    pub seconds: u64,
}

/// One block's part in a loan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The loan.
    pub lease: LeaseId,
    /// This block's place in the loan, from 0, in the order in which it is mapped.
    pub index: u32,
    /// The borrower.
    pub uid: Uid,
    /// The user charged for it: the borrower, or the user to whom the borrower is subordinate.
    pub account: Uid,
    /// What to do with the content on return; `None` is to clear it.
    pub keep: Option<Keep>,
    /// The file's length while lent: a trimmed or grown block differs from its pool's shape.
    pub pages: Pages,
    /// The name by which the loan lasts without a descriptor. While the block is lent, the name is
    /// the loan; afterwards it says how the loan was held.
    pub name: Option<LoanName>,
}

impl Part {
    /// Who returns to it: an owner, and the scope in which it is one.
    pub(crate) fn kept_for(&self) -> Option<(&Owner, Option<&str>)> {
        self.keep.as_ref().map(|keep| (&keep.owner, keep.scope.as_deref()))
    }

    /// The scope of the name that its loan has or had, empty for a name without one; `None` for a
    /// loan without a name.
    #[must_use]
    pub fn scope(&self) -> Option<&str> {
        let kept = self.keep.as_ref().and_then(|keep| keep.scope.as_deref());
        self.name.as_ref().map(|name| name.scope().unwrap_or_default()).or(kept)
    }

    /// The same without an owner. A loan by name is still remembered as one.
    pub(crate) fn given_up(self) -> Self {
        let named = self.keep.filter(|keep| keep.scope.is_some());
        Self { keep: named.map(|keep| Keep { seconds: 0, ..keep }), ..self }
    }
}
