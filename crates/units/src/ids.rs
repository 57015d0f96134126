// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Identities: blocks, leases, jobs, pools, owners.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::quantities::{Node, PageSize, Pages};

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number_id! {
    /// One block file, unique for the life of its mount.
    BlockId, "b"
}
number_id! {
    /// One loan to one client.
    LeaseId, "l"
}
impl FromStr for LeaseId {
    type Err = BadLease;

    /// The number alone, or as the names of files have it, with `l` before it.
    fn from_str(text: &str) -> Result<Self, BadLease> {
        let number = text.strip_prefix('l').unwrap_or(text);
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let lease = number.parse().ok().filter(|_| is_number).map(Self);
        lease.ok_or_else(|| BadLease(text.to_owned()))
    }
}

/// A text that is no loan's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLease(String);

impl fmt::Display for BadLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no loan's number: `prezero status` lists them as LEASE", self.0)
    }
}

impl std::error::Error for BadLease {}

number_id! {
    /// One block in one worker's hands.
    JobId, "j"
}

/// A user's number, as the kernel reports it for a socket's peer.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Uid(pub u32);

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One page size on one node: what the control tree has a directory for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Domain {
    /// The node.
    pub node: Node,
    /// The size of its pages.
    pub page_size: PageSize,
}

impl Domain {
    /// Whether it is of that node and page size; `None` is any.
    #[must_use]
    pub fn fits(self, node: Option<Node>, page_size: Option<PageSize>) -> bool {
        node.is_none_or(|node| node == self.node)
            && page_size.is_none_or(|size| size == self.page_size)
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} {}", self.node, self.page_size)
    }
}

/// A pool: blocks of one shape on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolKey {
    /// The node its pages lie on.
    pub node: Node,
    /// The size of its pages.
    pub page_size: PageSize,
    /// The pages of one block; 0 means blocks of several sizes, which are the pool's matter.
    pub pages_per_block: Pages,
}

impl PoolKey {
    /// The domain that its pages lie in.
    #[must_use]
    pub const fn domain(self) -> Domain {
        Domain { node: self.node, page_size: self.page_size }
    }

    /// The pool of all sizes of blocks of a domain.
    #[must_use]
    pub const fn mixed(domain: Domain) -> Self {
        let Domain { node, page_size } = domain;
        Self { node, page_size, pages_per_block: Pages::ZERO }
    }

    /// Whether its blocks are of several sizes.
    #[must_use]
    pub const fn is_mixed(self) -> bool {
        self.pages_per_block.0 == 0
    }
}

impl fmt::Display for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_mixed() {
            return self.domain().fmt(f);
        }
        write!(f, "node {} {} x {}", self.node, self.page_size, self.pages_per_block)
    }
}

/// A named owner, for which returned content may be kept.
///
/// 1 to 64 characters of `A-Z a-z 0-9 . _`: the name is part of a file name with fields separated
/// by `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Owner(String);

/// An invalid name of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadOwner(pub String);

impl std::error::Error for BadOwner {}

impl fmt::Display for BadOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not an owner name: use 1 to 64 letters, digits, dots or underscores",
            self.0
        )
    }
}

impl Owner {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Owner {
    type Err = BadOwner;
    fn from_str(text: &str) -> Result<Self, BadOwner> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
        let good = (1..=64).contains(&text.len()) && text.chars().all(allowed);
        if good { Ok(Self(text.to_owned())) } else { Err(BadOwner(text.to_owned())) }
    }
}

impl TryFrom<String> for Owner {
    type Error = BadOwner;
    fn try_from(text: String) -> Result<Self, BadOwner> {
        text.parse()
    }
}

impl From<Owner> for String {
    fn from(owner: Owner) -> Self {
        owner.0
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a loan that lasts by it.
///
/// 1 to 118 characters of `A-Z a-z 0-9 . _ -` in parts separated by `/`, each beginning with a
/// letter or digit: the name is the end of a file name, which has room for 118. The scope may be
/// two such parts with `@` between them, as `TENANT@INCARNATION`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LoanName(String);

/// The part of a scope that names a tenant: all of it, or what stands before its `@`.
#[must_use]
pub fn tenant_of(scope: &str) -> &str {
    scope.split_once('@').map_or(scope, |(tenant, _)| tenant)
}

/// An invalid name of a loan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLoanName(pub String);

impl std::error::Error for BadLoanName {}

impl fmt::Display for BadLoanName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What a client sends may be of any length.
        let shown: String = self.0.chars().take(LoanName::MAX_CHARACTERS).collect();
        write!(
            f,
            "`{shown}` is no name of a loan: use 1 to {} letters, digits, dots, underscores and hyphens \
             in parts that / separates, each beginning with a letter or digit, the first of several as \
             TENANT@INCARNATION where tenants come and go",
            LoanName::MAX_CHARACTERS
        )
    }
}

impl LoanName {
    /// The most characters of a name.
    pub const MAX_CHARACTERS: usize = 118;

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part before the first `/`: the tenant, where several have quotas of their own.
    #[must_use]
    pub fn scope(&self) -> Option<&str> {
        self.0.split_once('/').map(|(scope, _)| scope)
    }

    /// The tenant that pays for the loan: the scope up to its `@`. A tenant that is deleted and
    /// made anew, as a namespace of a cluster, is another scope of the same quota.
    #[must_use]
    pub fn tenant(&self) -> Option<&str> {
        self.scope().map(tenant_of)
    }

    /// Whether the name begins with `prefix`, which may be any text.
    #[must_use]
    pub fn begins_with(&self, prefix: &str) -> bool {
        self.0.starts_with(prefix)
    }
}

impl FromStr for LoanName {
    type Err = BadLoanName;
    fn from_str(text: &str) -> Result<Self, BadLoanName> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let good = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(allowed)
        };
        let (scope, rest) = text.split_once('/').map_or((None, text), |(s, r)| (Some(s), r));
        let is_scope = |scope: &str| match scope.split_once('@') {
            Some((tenant, incarnation)) => good(tenant) && good(incarnation),
            None => good(scope),
        };
        let fits = text.len() <= Self::MAX_CHARACTERS
            && scope.is_none_or(is_scope)
            && rest.split('/').all(good);
        if fits { Ok(Self(text.to_owned())) } else { Err(BadLoanName(text.to_owned())) }
    }
}

impl TryFrom<String> for LoanName {
    type Error = BadLoanName;
    fn try_from(text: String) -> Result<Self, BadLoanName> {
        text.parse()
    }
}

impl From<LoanName> for String {
    fn from(name: LoanName) -> Self {
        name.0
    }
}

impl fmt::Display for LoanName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise P150.
    // Promise P272.
    #[test]
    fn names_of_loans_have_their_characters_and_length_and_a_scope() {
        let longest = "x".repeat(118);
        for good in ["a", "team-a/0f3c.1", "0", "a/b/c-d_e.f", "a-b@c.1/d", &longest] {
            assert_eq!(good.parse::<LoanName>().expect(good).as_str(), good);
        }
        for bad in [
            "", "/", "a/", "/a", "a//b", "-a", ".", "..", "a/..", "a b", "a+b", "ä", "a\0", "@",
            "a@b", "@b/c", "a@/c", "a@-b/c", "a@b@c/d", "a/b@c", "a/b@c/d",
        ] {
            assert_eq!(bad.parse::<LoanName>(), Err(BadLoanName(bad.to_owned())), "{bad}");
        }
        let long = "x".repeat(119).parse::<LoanName>().expect_err("a character too many");
        assert!(long.to_string().contains("1 to 118"), "{long}");
        let endless = "y".repeat(4000).parse::<LoanName>().expect_err("much too long");
        assert!(endless.to_string().len() < 400, "{endless}");
        let scope = |name: &str| name.parse::<LoanName>().expect(name).scope().map(str::to_owned);
        assert_eq!((scope("a/b/c"), scope("ab")), (Some("a".to_owned()), None));
        assert_eq!(scope("a@1/b"), Some("a@1".to_owned()));
        let tenant = |name: &str| name.parse::<LoanName>().expect(name).tenant().map(str::to_owned);
        assert_eq!((tenant("a@1/b"), tenant("a/b")), (Some("a".to_owned()), Some("a".to_owned())));
        assert_eq!(tenant("a"), None);
    }

    #[test]
    fn names_of_loans_begin_with_what_they_begin_with() {
        let name: LoanName = "team-a/0f3c".parse().expect("a name");
        for prefix in ["", "team-a", "team-a/", "team-a/0f3c"] {
            assert!(name.begins_with(prefix), "{prefix}");
        }
        for prefix in ["eam-a", "team-b", "team-a/0f3c1"] {
            assert!(!name.begins_with(prefix), "{prefix}");
        }
    }

    #[test]
    fn owners_have_their_characters_and_length() {
        for good in ["a", "Z9._x", ".", &"x".repeat(64)] {
            let owner: Owner = good.parse().expect(good);
            assert_eq!((owner.as_str(), owner.to_string().as_str()), (good, good));
            assert_eq!(Owner::try_from(good.to_owned()), Ok(owner.clone()));
            assert_eq!(String::from(owner), good);
        }
        for bad in ["", "a-b", "a/b", "a b", "ä", "a\0", &"x".repeat(65)] {
            let refused = bad.parse::<Owner>().expect_err(bad).to_string();
            assert!(refused.contains(&format!("`{bad}`")), "{refused}");
        }
    }

    #[test]
    fn each_kind_of_number_says_what_it_is_of() {
        let (block, lease, job) = (BlockId(7), LeaseId(7), JobId(7));
        assert_eq!(format!("{block} {lease} {job} {}", Uid(7)), "b7 l7 j7 7");
        for text in ["7", "l7"] {
            assert_eq!(text.parse(), Ok(lease), "{text}");
        }
        for bad in ["", "l", "ll7", "+7", "b7", "7 ", "99999999999999999999"] {
            let error = bad.parse::<LeaseId>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{bad}`")) && error.contains("LEASE"), "{error}");
        }
        let name: LoanName = "a/x".parse().expect("a name");
        assert_eq!((name.to_string(), String::from(name)), ("a/x".to_owned(), "a/x".to_owned()));
    }

    #[test]
    fn a_domain_is_of_its_node_and_of_its_page_size() {
        let domain = Domain { node: Node(1), page_size: PageSize::MIB_2 };
        for (node, is_its_node) in [(None, true), (Some(Node(1)), true), (Some(Node(0)), false)] {
            let sizes =
                [(None, true), (Some(PageSize::MIB_2), true), (Some(PageSize::GIB_1), false)];
            for (size, is_its_size) in sizes {
                let fits = domain.fits(node, size);
                assert_eq!(fits, is_its_node && is_its_size, "{node:?} {size:?}");
            }
        }
    }

    #[test]
    fn pool_shows_its_domain_and_its_block_size_if_any() {
        let domain = Domain { node: Node(1), page_size: PageSize::MIB_2 };
        let mixed = PoolKey::mixed(domain);
        let plain = PoolKey { pages_per_block: Pages(3), ..mixed };
        assert_eq!((mixed.domain(), plain.domain()), (domain, domain));
        assert_eq!((mixed.is_mixed(), plain.is_mixed()), (true, false));
        assert_eq!(
            (mixed.to_string(), domain.to_string()),
            ("node 1 2M".into(), "node 1 2M".into())
        );
        assert_eq!(plain.to_string(), "node 1 2M x 3");
    }
}
