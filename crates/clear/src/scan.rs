// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Is it zero? And where is it nonzero?

use core::fmt;
use core::str::FromStr;

use crate::arch;
use crate::arch::portable::first_nonzero_block;
use crate::arch::table::scans;

/// Finds a block with a nonzero byte: the offset of its first byte. Blocks lie back to back from
/// offset 0.
pub(crate) type BlockScan = fn(&[u8]) -> Option<usize>;

/// Whether every byte is zero, by the widest loads of this CPU. True for no bytes.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    Scanner::best().is_zero(bytes)
}

/// The offset of the first nonzero byte, by the widest loads of this CPU.
#[must_use]
pub fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    Scanner::best().first_nonzero(bytes)
}

macro_rules! declare {
    ($($isa:ident { $($(#[$doc:meta])* $method:ident $name:literal $search:ident;)* })*) => {
        /// Which loads look for a nonzero byte. Every name exists on every architecture.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum ScanMethod {
            $($($(#[$doc])* $method,)*)*
            /// Any architecture: what the compiler makes of a plain loop.
            Portable,
        }

        impl ScanMethod {
            /// Every method, best first, available here or not.
            pub const ALL: [Self; [$($($name,)*)* "portable"].len()] =
                [$($(Self::$method,)*)* Self::Portable];

            /// The name, as printed and parsed.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Self::$method => $name,)*)*
                    Self::Portable => "portable",
                }
            }
        }
    };
}
scans!(declare);

impl ScanMethod {
    /// Whether this CPU can execute the method. Constant for the life of the process.
    #[must_use]
    pub fn is_available(self) -> bool {
        Scanner::new(self).is_some()
    }
}

impl fmt::Display for ScanMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ScanMethod {
    type Err = UnknownScanMethod;

    fn from_str(text: &str) -> Result<Self, UnknownScanMethod> {
        Self::ALL.into_iter().find(|method| method.name() == text).ok_or(UnknownScanMethod)
    }
}

/// An unknown scan method's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownScanMethod;

impl fmt::Display for UnknownScanMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such scan method: give one of")?;
        ScanMethod::ALL.into_iter().try_for_each(|method| write!(f, " {method}"))
    }
}

impl core::error::Error for UnknownScanMethod {}

/// A scan method that this CPU has.
#[derive(Clone, Copy, Debug)]
pub struct Scanner {
    method: ScanMethod,
    blocks: BlockScan,
}

impl Scanner {
    /// A scanner, where this CPU can execute the method.
    #[must_use]
    pub fn new(method: ScanMethod) -> Option<Self> {
        arch::scanner(method).map(|blocks| Self { method, blocks })
    }

    /// The first available one of [`ScanMethod::ALL`].
    #[must_use]
    pub fn best() -> Self {
        let portable = Self { method: ScanMethod::Portable, blocks: first_nonzero_block };
        ScanMethod::ALL.into_iter().find_map(Self::new).unwrap_or(portable)
    }

    /// What it scans with.
    #[must_use]
    pub const fn method(&self) -> ScanMethod {
        self.method
    }

    /// The offset of the first nonzero byte.
    #[must_use]
    pub fn first_nonzero(&self, bytes: &[u8]) -> Option<usize> {
        let block = (self.blocks)(bytes)?;
        bytes[block..].iter().position(|byte| *byte != 0).map(|at| block + at)
    }

    /// Whether every byte is zero. True for no bytes.
    #[must_use]
    pub fn is_zero(&self, bytes: &[u8]) -> bool {
        (self.blocks)(bytes).is_none()
    }
}
