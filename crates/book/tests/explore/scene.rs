// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bounds an exploration. No bound is on the number of steps: within a scene every state that
//! can be reached is, unless the scene says after how many it is left.

use wire::Recycle;

/// See the module's documentation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) pages_per_block: u64,
    /// What the kernel's pool has.
    pub(crate) pages: u64,
    /// Files at a time, those included that are unlinked and still held.
    pub(crate) files: usize,
    pub(crate) workers: usize,
    /// How many pages loans have.
    pub(crate) sizes: &'static [u64],
    /// Whether loans are one file.
    pub(crate) single: bool,
    /// Whether programs ask in the name of an owner with kept content.
    pub(crate) keeps: bool,
    /// How many names an agent asks by, each of a scope of its own.
    pub(crate) names: usize,
    /// Whether it asks in the name of an owner, too.
    pub(crate) owned: bool,
    pub(crate) recycle: Recycle,
    pub(crate) pins: bool,
    /// Whether a mapping outlives its descriptor: to the book that is as if it was open.
    pub(crate) maps: bool,
    /// Whether the kernel shows who pins.
    pub(crate) shows_pins: bool,
    /// Whether programs free pages of their files.
    pub(crate) punches: bool,
    /// Whether programs leave a watch on their files, or pages where they have ended.
    pub(crate) marks: bool,
    /// Whether any effect can fail, its file be left behind, and the next start find it.
    pub(crate) fails: bool,
    /// Whether the operator revokes, gives back, and takes the pool out of the configuration.
    pub(crate) operator: bool,
    /// The most pages that a user may hold.
    pub(crate) quota: u64,
    /// After how many states it is left: `usize::MAX` is none too many.
    pub(crate) most: usize,
}

/// What every scene has unless it says otherwise: three blocks of one page.
pub(crate) const PLAIN: Scene = Scene {
    name: "plain",
    pages_per_block: 1,
    pages: 3,
    files: 4,
    workers: 1,
    sizes: &[1],
    single: false,
    keeps: false,
    names: 0,
    owned: false,
    recycle: Recycle::Auto,
    pins: true,
    maps: false,
    shows_pins: true,
    punches: false,
    marks: false,
    fails: false,
    operator: false,
    quota: 3,
    most: usize::MAX,
};
