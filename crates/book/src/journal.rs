// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A block's file name: with its directory, all that a restarted daemon knows.
//!
//! ```text
//! b17-n0-p8                                  block 17, node 0, 8 pages
//! b17-n0-p8-l5-i0-u1000-g8                   part 0 of lease 5, uid 1000, file now 8 pages
//! b17-n0-p8-l5-i0-u100033-a1000-g8           the same of a subordinate of uid 1000
//! b17-n0-p8-l5-i0-u1000-g8-k300-oguest1      its content is kept 300 s for `guest1`
//! b17-n0-p8-l5-i0-u1000-g8-k300-oguest1-t91  ... until second 91 of CLOCK_BOOTTIME
//! b17-n0-p8-l5-i0-u1000-g8-hteam-a+0f3c      lent by the name `team-a/0f3c`
//! b17-n0-p8-l5-i0-u1000-g8-k300-ox-steam+a-t91  kept for `x` of the scope `team-a`
//! b17-n0-p8-l5-i0-u1000-g8-hteam-a@7f3c+0f3c  the scope says which `team-a` it is
//! ```
//! The page size is the mount's. A loan's name stands last, since it may have hyphens; it says the
//! scope of an owner, which where the loan has no name is written out. A rename
//! moves a block and rewrites its name in one step, so a crash leaves either the old truth or the
//! new one.

use std::str::FromStr;

use units::{BlockId, LeaseId, LoanName, Node, PageSize, Pages, PoolKey, Uid};

use crate::block::{Block, Keep, Part, State};

/// What a file name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The block.
    pub block: BlockId,
    /// Its pool.
    pub pool: PoolKey,
    /// The loan it is or was part of.
    pub part: Option<Part>,
    /// When kept content is given up.
    pub until: Option<u64>,
}

/// The name of `block`'s file in its state's directory.
#[must_use]
pub fn name_of(block: &Block) -> String {
    let (part, until) = match block.state() {
        State::Lent(part) | State::Draining(Some(part)) => (Some(part), None),
        State::Kept { part, until } => (Some(part), Some(*until)),
        State::Zeroable { .. }
        | State::Zeroing { .. }
        | State::Ready(_)
        | State::Draining(None) => (None, None),
    };
    format(block.id(), block.pool(), part, until)
}

/// The most characters that a loan's name and its owner's have together: a file name has 255 bytes,
/// and a call stays well below the 4 KiB that a daemon reads.
pub const MAX_OWNED_CHARACTERS: usize = 124;

/// What a loan's name stands behind. No field before it has a hyphen.
const NAMED: &str = "-h";

fn format(block: BlockId, pool: PoolKey, part: Option<&Part>, until: Option<u64>) -> String {
    let mut name = format!("{block}-n{}-p{}", pool.node, pool.pages_per_block);
    if let Some(part) = part {
        let Part { lease, index, uid, account, pages, keep, name: loan } = part;
        name += &format!("-{lease}-i{index}-u{uid}");
        if account != uid {
            name += &format!("-a{account}");
        }
        name += &format!("-g{pages}");
        if let Some(Keep { owner, scope, seconds }) = keep {
            name += &format!("-k{seconds}-o{owner}");
            if let (Some(scope), None) = (scope, loan) {
                name += &format!("-s{}", scope.replace('-', "+"));
            }
        }
        if let Some(loan) = loan {
            name += &format!("{NAMED}{}", loan.as_str().replace('/', "+"));
        }
    }
    if let Some(until) = until {
        name += &format!("-t{until}");
    }
    name
}

/// Reads a name that [`name_of`] wrote, from the mount of `page_size`; `None` for any other.
#[must_use]
pub fn parse(name: &str, page_size: PageSize) -> Option<Entry> {
    let (head, loan) = match name.split_once(NAMED) {
        Some((head, loan)) => (head, Some(loan.replace('+', "/").parse().ok()?)),
        None => (name, None),
    };
    let mut fields = head.split('-').peekable();
    let block = BlockId(number(fields.next()?, 'b')?);
    let node = Node(number(fields.next()?, 'n')?);
    let pages_per_block = Pages(number(fields.next()?, 'p')?);
    if pages_per_block == Pages::ZERO {
        return None;
    }
    let pool = PoolKey { node, page_size, pages_per_block };
    let (mut part, mut until) = (None, None);
    if fields.peek().is_some() {
        let lease = LeaseId(number(fields.next()?, 'l')?);
        let index = number(fields.next()?, 'i')?;
        let uid = Uid(number(fields.next()?, 'u')?);
        let account = match fields.next_if(|field| field.starts_with('a')) {
            Some(field) => Uid(number(field, 'a')?),
            None => uid,
        };
        let pages = Pages(number(fields.next()?, 'g')?);
        let keep = match fields.next() {
            None => None,
            Some(field) => {
                let seconds = number(field, 'k')?;
                let owner = fields.next()?.strip_prefix('o')?.parse().ok()?;
                let written = fields.next_if(|field| field.starts_with('s'));
                let scope = match (&loan, written) {
                    (Some(loan), _) => LoanName::scope(loan).map(str::to_owned),
                    (None, written) => written.map(|field| field[1..].replace('+', "-")),
                };
                // As that of a name.
                let is_good = |scope: &String| {
                    let name = format!("{scope}/0").parse::<LoanName>();
                    name.is_ok_and(|name| name.scope() == Some(scope))
                };
                if !scope.as_ref().is_none_or(is_good) {
                    return None;
                }
                Some(Keep { owner, scope, seconds })
            }
        };
        part = Some(Part { lease, index, uid, account, keep, pages, name: loan });
        if let Some(field) = fields.next() {
            until = Some(number(field, 't')?);
        }
    }
    let entry = Entry { block, pool, part, until };
    // Only what we would write ourselves: no leading zeros, no trailing fields.
    let again = format(block, pool, entry.part.as_ref(), until);
    (fields.next().is_none() && again == name).then_some(entry)
}

fn number<T: FromStr>(field: &str, prefix: char) -> Option<T> {
    field.strip_prefix(prefix)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keep() -> impl Strategy<Value = Option<Keep>> {
        proptest::option::of(("[A-Za-z0-9._]{1,64}", any::<u64>()).prop_map(|(owner, seconds)| {
            let owner = owner.parse().expect("the pattern is the rule");
            Keep { owner, scope: None, seconds }
        }))
    }

    fn loan() -> impl Strategy<Value = Option<LoanName>> {
        let part = |most: usize| format!("[A-Za-z0-9][A-Za-z0-9._-]{{0,{most}}}");
        let name = format!("{}((@{})?/{})?", part(50), part(8), part(55));
        let name = proptest::string::string_regex(&name).expect("a pattern");
        proptest::option::of(name.prop_map(|text| text.parse().expect("the pattern is the rule")))
    }

    proptest! {
        // Promise P35.
        #[test]
        fn every_name_reads_back(
            (id, node, k) in (any::<u64>(), any::<u32>(), 1..=u64::MAX),
            (lease, index, uid, pages) in (any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>()),
            account in proptest::option::of(any::<u32>()),
            keep in keep(),
            loan in loan(),
            until in proptest::option::of(any::<u64>()),
            lent in any::<bool>(),
        ) {
            let pool = PoolKey { node: Node(node), page_size: PageSize::MIB_2, pages_per_block: Pages(k) };
            let part = lent.then(|| Part {
                lease: LeaseId(lease), index, uid: Uid(uid), account: Uid(account.unwrap_or(uid)),
                keep: keep.clone().filter(|_| loan.is_none()), pages: Pages(pages), name: loan,
            });
            let is_kept = part.as_ref().is_some_and(|part| part.keep.is_some());
            let until = until.filter(|_| is_kept);
            let name = format(BlockId(id), pool, part.as_ref(), until);
            prop_assert!(name.len() <= 255, "{} bytes do not fit a file name", name.len());
            let entry = Entry { block: BlockId(id), pool, part, until };
            prop_assert_eq!(parse(&name, PageSize::MIB_2), Some(entry));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = parse(&text, PageSize::GIB_1);
        }
    }

    proptest! {
        /// Of loans by name that an owner returns to: at most `MAX_OWNED_CHARACTERS` characters of
        /// both.
        #[test]
        fn every_name_of_a_loan_by_name_with_an_owner_reads_back(
            (id, node, k) in (0..1_000_000_000_000u64, 0..1024u32, 1..1_000_000_000u64),
            (lease, uid, account) in (0..1_000_000_000_000u64, any::<u32>(), any::<u32>()),
            (seconds, until) in (any::<u32>(), proptest::option::of(0..10_000_000_000u64)),
            (scope, rest) in (
                "[A-Za-z0-9][A-Za-z0-9._-]{0,62}(@[A-Za-z0-9]{1,10})?",
                "[A-Za-z0-9][A-Za-z0-9._-]{0,42}",
            ),
            owner in "[A-Za-z0-9._]{1,64}",
            is_held in any::<bool>(),
        ) {
            let name: LoanName = format!("{scope}/{rest}").parse().expect("the pattern is the rule");
            let owner = &owner[..owner.len().min(MAX_OWNED_CHARACTERS - name.as_str().len())];
            let keep = Keep {
                owner: owner.parse().expect("the pattern is the rule"),
                scope: Some(scope),
                seconds: seconds.into(),
            };
            let pool = PoolKey { node: Node(node), page_size: PageSize::MIB_2, pages_per_block: Pages(k) };
            let until = until.filter(|_| !is_held);
            let part = Some(Part {
                lease: LeaseId(lease), index: 0, uid: Uid(uid), account: Uid(account),
                keep: Some(keep), pages: Pages(k), name: is_held.then_some(name),
            });
            let text = format(BlockId(id), pool, part.as_ref(), until);
            prop_assert!(text.len() <= 255, "{} bytes do not fit a file name", text.len());
            let entry = Entry { block: BlockId(id), pool, part, until };
            prop_assert_eq!(parse(&text, PageSize::MIB_2), Some(entry));
        }
    }

    #[test]
    fn name_without_account_is_of_its_own_user() {
        let entry = parse("b17-n0-p8-l5-i0-u1000-g8", PageSize::MIB_2).expect("a name");
        let part = entry.part.expect("it is lent");
        assert_eq!((part.uid, part.account), (Uid(1000), Uid(1000)));
    }

    #[test]
    fn unknown_and_malformed_names_parse_to_none() {
        for name in [
            "",
            "b1",
            "b1-n0",
            "b1-n0-p0",
            "b01-n0-p1",
            "b1-n0-p1-",
            "b1-n0-p1-l5",
            "x",
            "b1-n0-p1-l1-i0-u0-g1-k5",
            "b1-n0-p1-l1-i0-u0-g1-k5-o",
            "b1-n0-p1-l1-i0-u0-g1-t5",
            "b1-n0-p1-l1-i0-u0-g1-k5-oa-t1-t2",
            "b+1-n0-p1",
            "b1-n0-p1-l1-i0-u7-a7-g1",
            "b1-n0-p1-l1-i0-a7-g1",
            "b1-n0-p1-l1-i0-u7-a8",
            "b1-n0-p1-l1-i0-u0-g1-h",
            "b1-n0-p1-l1-i0-u0-g1-h+",
            "b1-n0-p1-l1-i0-u0-g1-h-a",
            "b1-n0-p1-ha",
            "b1-n0-p1-l1-i0-u0-g1-sa",
            "b1-n0-p1-l1-i0-u0-g1-k5-oa-s",
            "b1-n0-p1-l1-i0-u0-g1-k5-oa-s+",
            "b1-n0-p1-l1-i0-u0-g1-k5-oa-sa-ha+1",
            "b1-n0-p1-l1-i0-u0-g1-k5-oa-sa/b",
            "b1-n0-p1-l1-i0-u0-g1-k5-oa-sa@",
            "b1-n0-p1-l1-i0-u0-g1-ha@b",
        ] {
            assert_eq!(parse(name, PageSize::MIB_2), None, "{name}");
        }
    }
}
