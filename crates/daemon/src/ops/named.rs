// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans by name: made ready for whoever gets their file before the name is put on it, since from
//! that on they last.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use book::journal::MOST_OWNED;
use book::{Asked, HeldByName, Named, Refusal};
use linux::BlockFile;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use units::{BlockId, Bytes, Domain, LeaseId, LoanName, PageSize, Pages, Uid};
use wire::LendRequest;
use wire::agent::{LendByName, Supply};

use super::{Shell, failed};
use crate::base::error::{Error, Result};
use crate::storage::kernel::Fill;
use crate::storage::unbacked::Hole;

/// A loan that was granted and that its name does not hold yet.
#[derive(Debug)]
pub(crate) struct Pending {
    lease: LeaseId,
    /// Whether it has what its owner left.
    pub(crate) kept: bool,
    block: BlockId,
    domain: Domain,
    pages: Pages,
    pub(crate) ready: Pages,
    file: BlockFile,
    /// What takes its pages from the kernel's pool before that.
    pub(crate) fills: Vec<Fill>,
    /// Cancelled when nobody wants it any more: its agent hung up, or returned its name.
    pub(crate) stop: CancellationToken,
}

/// What came of asking for a loan by name.
#[derive(Debug)]
pub(crate) enum Step {
    /// It is there: whoever asked may have forgotten, or died before it heard.
    Found(HeldByName),
    /// Somebody else's call makes it just now.
    Busy,
    /// It is to be made ready.
    Begun(Pending),
}

impl Shell {
    /// An agent's request, with what the daemon knows of its name's scope.
    ///
    /// # Errors
    /// An owner that nobody can be, or that content is kept for too long.
    pub(crate) fn ask_by_name(
        &self,
        request: &LendByName,
        caller: Uid,
        account: Uid,
    ) -> Result<Asked, wire::Error> {
        let keep = request.keep_seconds.map(Duration::from_secs);
        self.check_keep(request.owner.as_ref(), keep)?;
        if let Some(owner) = &request.owner {
            if request.name.scope().is_none() {
                let reason = "is one within the scope of its loan's name, which has none: \
                              name the loan as SCOPE/REST";
                return Err(wire::Error::bad_value("owner", reason));
            }
            if !request.whole {
                let reason = "keeps nothing of a file that has a hole: ask for the loan whole";
                return Err(wire::Error::bad_value("owner", reason));
            }
            let length = owner.as_str().len() + request.name.as_str().len();
            if length > MOST_OWNED {
                let reason = format!(
                    "and the loan's name have {length} characters, more than the {MOST_OWNED} for which a \
                     block's file name has room"
                );
                return Err(wire::Error::bad_value("owner", reason));
            }
        }
        let agent = &self.config.agent;
        let named = Named {
            name: request.name.clone(),
            quota: agent.quota_for(&request.name),
            most: agent.names,
        };
        Ok(Asked {
            request: LendRequest {
                page_size: request.page_size,
                node: request.node,
                owner: request.owner.clone(),
                keep,
                single: true,
                ..LendRequest::new(request.bytes)
            },
            uid: request.uid.map_or(caller, Uid),
            account,
            // Whoever hands memory on to others is bound by what each of those may have.
            quota: None,
            await_owner: true,
            named: Some(named),
        })
    }

    /// Finds the loan of that name, or begins one.
    pub(crate) fn begin_by_name(
        &mut self,
        asked: &Asked,
        borrower: (u32, u32),
    ) -> Result<std::result::Result<Step, Refusal>, wire::Error> {
        if let Some(name) = asked.named.as_ref().map(|named| &named.name)
            && let Some(found) = self.book.named(name)
        {
            return Ok(match found {
                found if found.is_pending => Ok(Step::Busy),
                found if found.fits(asked) => Ok(Step::Found(found)),
                _ => Err(Refusal::NameTaken),
            });
        }
        self.observed = None;
        self.observe();
        self.measure(asked.account);
        let pending = self.tried(|shell| shell.try_begin(asked, borrower));
        let pending = pending.map_err(|error| failed(&error))?;
        Ok(pending.inspect_err(|refusal| self.note_refusal(asked, refusal)).map(Step::Begun))
    }

    fn try_begin(
        &mut self,
        asked: &Asked,
        borrower: (u32, u32),
    ) -> Result<std::result::Result<Pending, Refusal>> {
        let (granted, made) = self.apply(|book| book.lend(asked));
        let loan = match granted {
            Ok(loan) => loan,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.note_grant(&loan);
        let (lease, kept) = (loan.lease, loan.kept);
        let to_fill = made.iter().filter(|made| made.fill > Pages::ZERO);
        let to_fill = to_fill.map(|made| (made.block, made.fill)).collect();
        let pending = self.open_parts(&loan, made, &to_fill, borrower).and_then(|mut files| {
            let (Some(part), Some(file)) = (loan.parts.first(), files.pop()) else {
                return Err(Error::NoFile(BlockId(0)));
            };
            let domain = Domain { node: part.node, page_size: loan.page_size };
            let files = [file];
            let fills = self.fills(&loan, &files, &to_fill);
            let [file] = files;
            let (block, pages, ready) = (part.block, part.pages, part.ready);
            // Its pages are promised until they are there.
            self.holes.hand_out(block, domain, pages.saturating_sub(ready));
            let (file, stop) = (file.into(), CancellationToken::new());
            self.being_made.insert(lease, stop.clone());
            Ok(Pending { lease, kept, block, domain, pages, ready, file, fills, stop })
        });
        match pending {
            Ok(pending) => Ok(Ok(pending)),
            Err(error) => {
                self.end_lease(lease);
                Err(error)
            }
        }
    }

    /// Has the pages zeroed that a loan lacks, if it is to be whole. The daemon's own context pays.
    ///
    /// # Errors
    /// More is missing than the daemon may zero.
    pub(crate) fn fill_hole(
        &self,
        pending: &Pending,
    ) -> Result<Option<oneshot::Receiver<linux::Result<()>>>, wire::Error> {
        let size = pending.domain.page_size;
        let missing = pending.pages.saturating_sub(pending.ready).bytes(size);
        if missing == Bytes(0) {
            return Ok(None);
        }
        let most = self.config.agent.fill_max;
        if missing > most {
            let reason = format!(
                "{missing} of it are not ready, and agent.fill_max lets the daemon zero {most}: wait until \
                 more is ready, or ask without"
            );
            return Err(wire::Error::bad_value("whole", reason));
        }
        let failed = |error: std::io::Error| wire::Error::Failed { what: error.to_string() };
        let file = pending.file.as_fd().try_clone_to_owned().map_err(failed)?.into();
        let Pending { domain, pages, ref stop, .. } = *pending;
        Hole { file, domain, pages, stop: stop.clone() }.fill().map(Some).map_err(failed)
    }

    /// A loan has all of its pages.
    pub(crate) fn note_whole(&mut self, pending: &Pending) {
        self.holes.forget(&[pending.block]);
        self.book.note_whole(pending.lease);
        self.store.note_filled(pending.block);
        self.observed = None;
    }

    /// Puts its name on a loan: from now on it lasts.
    ///
    /// # Errors
    /// It is gone, or its file is not to be reached by a path; nothing is lent then.
    pub(crate) fn hold_by_name(&mut self, pending: Pending) -> Result<HeldByName, wire::Error> {
        let Pending { lease, block, file, .. } = pending;
        drop(file);
        self.apply(|book| book.hold_by_name(lease));
        let held = self.book.leases_name(lease).and_then(|name| self.book.named(&name));
        let is_there = self.path_of(block).is_some_and(|path| path.symlink_metadata().is_ok());
        match held.filter(|held| !held.is_pending && is_there) {
            Some(held) => {
                self.being_made.remove(&lease);
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

    /// Ends a loan that could not be made ready, and gives back what was zeroed for it.
    pub(crate) fn drop_pending(&mut self, pending: Pending) {
        drop(pending.file);
        self.end_lease(pending.lease);
        self.wake();
    }

    /// Has the making of a loan end within a page. No-op for one that its name holds.
    pub(crate) fn stop_making(&self, lease: LeaseId) {
        if let Some(stop) = self.being_made.get(&lease) {
            stop.cancel();
        }
    }

    /// Ends a loan by its name; `discard` keeps nothing of it for its owner. `None`: there is none;
    /// `Some(false)`: it is being made.
    ///
    /// # Errors
    /// It could not be ended on disk: it is as it was, or nobody's at the next start.
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

    /// The loans by name that begin with `prefix`, behind `after`.
    pub(crate) fn loans_by_name(
        &self,
        prefix: &str,
        after: Option<&LoanName>,
        most: usize,
    ) -> Vec<HeldByName> {
        self.book.named_loans(prefix, after).take(most).collect()
    }

    /// The loan of that name, pending or not.
    pub(crate) fn loan_by_name(&self, name: &LoanName) -> Option<HeldByName> {
        self.book.named(name)
    }

    /// The path of a block's file.
    pub(crate) fn path_of(&self, block: BlockId) -> Option<PathBuf> {
        self.store.path_of(block)
    }

    /// Bytes of a block that have memory.
    pub(crate) fn memory_of(&self, block: BlockId, page_size: PageSize) -> Bytes {
        self.store.allocated(block, page_size).unwrap_or_default().bytes(page_size)
    }

    /// What there is to lend by name.
    pub(crate) fn supply(&mut self) -> Vec<Supply> {
        self.observed = None;
        self.observe();
        self.book.supply_by_domain()
    }
}
