// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans by name. The daemon makes one ready before it puts the name on the file, because the loan
//! lasts from then on.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use book::{HeldByName, LoanPart};
use tokio::sync::oneshot;
use units::{BlockId, Bytes, Domain, LeaseId, LoanName, PageSize, Pages};
use wire::LoanPaths;
use wire::agent::Supply;

use super::{Granted, Handover, Shell};
use crate::storage::loan_paths::PathOwner;
use crate::storage::unbacked::Unbacked;

/// The longest path of Linux, without its end.
const MAX_PATH_BYTES: usize = 4095;

impl Shell {
    /// Zeroes the pages that a `whole` loan lacks, in the daemon's own context.
    ///
    /// # Errors
    /// More pages are missing than the daemon may zero.
    pub(crate) fn fill_whole(
        &self,
        granted: &Granted,
    ) -> Result<Vec<oneshot::Receiver<linux::Result<()>>>, wire::Error> {
        let Granted { handover: Handover { loan, blocks, .. }, stop, .. } = granted;
        let lacks = |part: &LoanPart| part.pages.saturating_sub(part.ready);
        let missing: Pages = loan.parts.iter().map(lacks).sum();
        let (missing, most) = (missing.bytes(loan.page_size), self.config.agent.fill_max);
        if missing > most {
            let reason = format!(
                "{missing} of it are not ready, and agent.fill_max lets the daemon zero {most}: wait until \
                 more is ready, or ask without"
            );
            return Err(wire::Error::bad_value("whole", reason));
        }
        let failed = |error: std::io::Error| wire::Error::Failed { what: error.to_string() };
        let lacking = loan.parts.iter().zip(blocks).filter(|(part, _)| lacks(part) > Pages::ZERO);
        let fill = |(part, file): (&LoanPart, &OwnedFd)| {
            let file = file.try_clone()?.into();
            let domain = Domain { node: part.node, page_size: loan.page_size };
            Unbacked { file, domain, pages: part.pages, stop: stop.clone() }.fill()
        };
        lacking.map(fill).collect::<io::Result<_>>().map_err(failed)
    }

    /// A loan has all of its pages.
    pub(crate) fn record_whole(&mut self, granted: &Granted) {
        let loan = &granted.handover.loan;
        let blocks: Vec<_> = loan.parts.iter().map(|part| part.block).collect();
        self.observed.unbacked.forget(&blocks);
        self.book.record_whole(loan.lease);
        blocks.into_iter().for_each(|block| self.store.record_filled(block));
        self.observed.expire();
    }

    /// Puts the name on a loan: from now on the loan lasts.
    ///
    /// # Errors
    /// The loan has ended, or no path reaches its file. Then nothing is lent.
    pub(crate) fn hold_by_name(&mut self, granted: Granted) -> Result<HeldByName, wire::Error> {
        let lease = granted.handover.loan.lease;
        drop(granted);
        self.apply(|book| book.hold_by_name(lease));
        let held = self.book.leases_name(lease).and_then(|name| self.book.named(&name));
        let is_there = |held: &HeldByName| {
            self.path_of(held.block).is_some_and(|path| path.symlink_metadata().is_ok())
        };
        match held.filter(|held| !held.is_pending && is_there(held)) {
            Some(held) => {
                self.loans.end_making(lease);
                Ok(held)
            }
            None => {
                self.end_lease(lease);
                let what = "the loan's file is not to be reached by a path: its mount is in another mount \
                            namespace, or its disk refused the name (see the daemon's log)";
                Err(wire::Error::Failed { what: what.to_owned() })
            }
        }
    }

    /// Ends a loan that could not be made ready, and releases the pages zeroed for it.
    pub(crate) fn drop_granted(&mut self, granted: Granted) {
        let lease = granted.handover.loan.lease;
        drop(granted);
        self.end_lease(lease);
        self.changes.wake();
    }

    /// Cancels the making of a loan, which ends within a page. No-op for a loan that is made.
    pub(crate) fn cancel_fill(&self, lease: LeaseId) {
        self.loans.cancel_fill(lease);
    }

    /// Ends a loan by its name; `discard` drops its owner's content. `None`: there is no such loan;
    /// `Some(false)`: it is being made.
    ///
    /// # Errors
    /// The file system refused the end. The loan stays, or ends at the next start.
    pub(crate) fn return_by_name(
        &mut self,
        name: &LoanName,
        discard: bool,
    ) -> Result<Option<bool>, wire::Error> {
        let Some(found) = self.book.named(name) else { return Ok(None) };
        if found.is_pending {
            return Ok(Some(false));
        }
        self.end(found.lease, !discard);
        match self.book.block(found.block) {
            Some(_) => Ok(Some(true)),
            None => Err(wire::Error::Failed {
                what: format!(
                    "`{name}` could not be returned on disk: return it again after the daemon's next start"
                ),
            }),
        }
    }

    /// Names the program that removes paths which callers made, and has it remove those of loans
    /// that have ended.
    pub(crate) fn use_path_program(&mut self, program: Option<&Path>) {
        self.loan_paths.use_program(program);
        let ended: Vec<_> = self.loan_paths.leases().filter(|l| !self.book.has_lease(*l)).collect();
        for remove in ended.into_iter().filter_map(|lease| self.loan_paths.remove(lease)) {
            self.store.submit_for(None, remove);
        }
    }

    /// Checks the paths of a request.
    ///
    /// # Errors
    /// A path that the daemon could not remove again.
    pub(crate) fn check_paths(&self, paths: &LoanPaths) -> Result<(), wire::Error> {
        for (field, path) in paths.made_by_caller() {
            if !self.loan_paths.has_program() {
                return Err(wire::Error::bad_value(
                    field,
                    "this daemon has no program to remove it",
                ));
            }
            let is_plain = path.starts_with('/') && !path.contains(['\n', '\0']);
            if !is_plain || path.len() > MAX_PATH_BYTES {
                let reason = format!("is no absolute path of one line and {MAX_PATH_BYTES} bytes");
                return Err(wire::Error::bad_value(field, reason));
            }
        }
        Ok(())
    }

    /// Gives a loan by name its paths.
    ///
    /// # Errors
    /// The kernel's. The loan stays as it is.
    pub(crate) fn add_paths(
        &mut self,
        held: &HeldByName,
        paths: &LoanPaths,
        owner: PathOwner,
    ) -> Result<(), wire::Error> {
        if *paths == LoanPaths::default() {
            return Ok(());
        }
        let Some(file) = self.store.path_of(held.block) else {
            return Err(wire::Error::NoSuchName { name: held.name.to_string() });
        };
        let added = self.loan_paths.add(held.lease, (&file, held.uid), paths, owner);
        added.map_err(|error| wire::Error::Failed { what: error.to_string() })
    }

    /// The path of a loan by name: the one that its user can open, if it has one.
    pub(crate) fn path_of_loan(&self, held: &HeldByName) -> Option<PathBuf> {
        self.loan_paths.reachable(held.lease).or_else(|| self.path_of(held.block))
    }

    /// The path of a block's file.
    pub(crate) fn path_of(&self, block: BlockId) -> Option<PathBuf> {
        self.store.path_of(block)
    }

    /// Bytes of a block that have memory.
    pub(crate) fn memory_of(&self, block: BlockId, page_size: PageSize) -> Bytes {
        self.store.allocated(block, page_size).unwrap_or_default().bytes(page_size)
    }

    /// What agents can borrow, for each node and page size.
    pub(crate) fn supply(&mut self) -> Vec<Supply> {
        self.observed.expire();
        self.observe();
        self.book.supply_by_domain()
    }
}
