// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics' labels. Page sizes are written as everywhere else: `2M`, `1G`.

use book::Refusal;
use prometheus_client::encoding::EncodeLabelSet;
use units::Bytes;
use wire::{PoolStatus, Status};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BuildInfo {
    version: String,
    provider: String,
}

impl BuildInfo {
    pub(super) fn of(status: &Status) -> Self {
        Self { version: status.version.clone(), provider: status.provider.to_string() }
    }
}

/// A node and page size.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Shape {
    node: u32,
    page_size: String,
}

impl Shape {
    pub(super) fn of(pool: &PoolStatus) -> Self {
        Self { node: pool.node, page_size: Bytes(pool.page_bytes).to_string() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PageSizeLabel {
    pub(super) page_size: String,
}

/// A user.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct UserLabels {
    pub(super) uid: u32,
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PoolLabels {
    node: u32,
    page_size: String,
    pages_per_block: u64,
}

impl PoolLabels {
    pub(super) fn of(pool: &PoolStatus) -> Self {
        let page_size = Bytes(pool.page_bytes).to_string();
        Self { node: pool.node, page_size, pages_per_block: pool.pages_per_block }
    }
}

/// A pool's pages in one state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StateLabels {
    node: u32,
    page_size: String,
    pages_per_block: u64,
    state: &'static str,
}

impl StateLabels {
    pub(super) fn of(pool: &PoolStatus, state: &'static str) -> Self {
        let PoolLabels { node, page_size, pages_per_block } = PoolLabels::of(pool);
        Self { node, page_size, pages_per_block, state }
    }
}

/// What a loan found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Outcome {
    outcome: &'static str,
}

impl Outcome {
    pub(super) const READY: Self = Self { outcome: "ready" };
    pub(super) const PARTLY_READY: Self = Self { outcome: "partly_ready" };
    pub(super) const NOT_READY: Self = Self { outcome: "not_ready" };
    pub(super) const KEPT: Self = Self { outcome: "kept" };
}

/// Why a loan was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Reason {
    reason: &'static str,
}

impl Reason {
    pub(super) fn of(refusal: Option<&Refusal>) -> Self {
        let reason = match refusal {
            None => "permission",
            Some(Refusal::Size(_)) => "bad_size",
            Some(Refusal::NoSuchPool) => "no_such_pool",
            Some(Refusal::Quota { .. }) => "quota",
            Some(Refusal::NotEnough { .. }) => "not_enough",
            Some(Refusal::OwnerLingers) => "owner_lingers",
            Some(Refusal::NameTaken | Refusal::NameBusy) => "name_taken",
            Some(Refusal::TooManyNames) => "too_many_names",
            Some(Refusal::ScopeQuota { .. }) => "scope_quota",
        };
        Self { reason }
    }
}

/// How something ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Result {
    result: &'static str,
}

impl Result {
    pub(super) fn of(good: bool) -> Self {
        Self { result: if good { "done" } else { "refused" } }
    }
}
