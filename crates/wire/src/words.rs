// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of the interface that there is a fixed choice of: texts on the wire, values here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A word that is none of those there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// The word.
    pub word: String,
    /// Those there are.
    pub known: &'static [&'static str],
}

impl std::error::Error for Unknown {}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = match self.known {
            [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
            all => all.join(""),
        };
        write!(f, "`{}` is not {known}", self.word)?;
        match did_you_mean(&self.word, self.known.iter().copied()) {
            Some(meant) => write!(f, ": did you mean `{meant}`?"),
            None => Ok(()),
        }
    }
}

/// How alike two words are that one of them is taken for a typing error of the other: 1 is the same
/// word.
const MIN_LIKENESS: f64 = 0.75;

/// The known word that is most like `word`, if one is.
#[must_use]
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    let likeness = |known: &&str| strsim::jaro(&word, known);
    let best = known.into_iter().max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    best.filter(|best| likeness(best) >= MIN_LIKENESS)
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$of])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// All there are.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = Unknown;
            fn from_str(text: &str) -> Result<Self, Unknown> {
                let known = Self::ALL.into_iter().find(|word| word.as_str() == text);
                known.ok_or_else(|| Unknown { word: text.to_owned(), known: &[$($word),+] })
            }
        }
    };
}

words! {
    /// Where ready pages come from.
    Provider {
        /// The daemon owns blocks of huge pages and keeps them ready.
        Stock = "stock",
        /// The kernel's own pool.
        Kernel = "kernel",
        /// Plain memory in place of huge pages.
        Plain = "plain",
    }
}

words! {
    /// How the kernel came to know its zeroed pages.
    KernelKind {
        /// By a module of a stock kernel.
        Module = "module",
        /// By patches that it was built with.
        Series = "series",
    }
}

words! {
    /// How a returned block becomes zero again.
    #[derive(Default)]
    Recycle {
        /// In place where the daemon can prove that the file is closed, unmapped and unpinned;
        /// fresh elsewhere. For any client.
        #[default]
        Auto = "auto",
        /// The file is truncated and unlinked and a new one allocated: the kernel's own isolation,
        /// pins included. For any client.
        Fresh = "fresh",
        /// The file is cleared where it lies: no allocation, no faults. After the same proof as
        /// *auto* where it can be had; where the kernel does not show pinned pages (VFIO,
        /// `io_uring` buffers, vmsplice), without: for one trust domain only.
        InPlace = "in-place",
    }
}

words! {
    /// The states of a block by name: directories of the mount, and words of every report. In the
    /// order of a block's life.
    StateName {
        /// Free and possibly dirty.
        Zeroable = "zeroable",
        /// Being cleared.
        Zeroing = "zeroing",
        /// Free and known to be zero.
        Ready = "ready",
        /// In a client's hands.
        Lent = "lent",
        /// Returned, but perhaps still reachable.
        Draining = "draining",
        /// Returned, content preserved for its owner.
        Kept = "kept",
    }
}
