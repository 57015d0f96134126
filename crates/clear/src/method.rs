// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The name of an instruction sequence that clears memory: printable, parseable, forceable.

use core::fmt;
use core::str::FromStr;

/// Which instructions store the zeros.
///
/// Every method has a name on every architecture, so that a configuration file can be read
/// anywhere; [`Method::is_available`] says whether this CPU can execute it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Method {
    /// x86-64: 64-byte non-temporal stores (AVX-512F).
    Avx512Nt,
    /// x86-64: 32-byte non-temporal stores (AVX).
    Avx2Nt,
    /// x86-64: 16-byte non-temporal stores (SSE2, every x86-64).
    Sse2Nt,
    /// x86-64, AMD: one cache line per instruction, without reading it first.
    Clzero,
    /// x86-64: the string instruction on bytes. Microcode picks the protocol by length: on Zen 4 it
    /// stops reading the lines first only above the size of the last-level cache.
    RepStosb,
    /// x86-64: the string instruction on 8-byte words.
    RepStosq,
    /// x86-64: 32-byte cached stores (AVX).
    Avx2,
    /// aarch64: one block (64 bytes on most CPUs) per instruction, without reading it first.
    DcZva,
    /// aarch64: pairs of 16-byte stores with a non-temporal hint.
    Stnp,
    /// aarch64: pairs of 16-byte cached stores.
    Stp,
    /// Any architecture: what the compiler and the C library make of a fill with zero.
    Portable,
}

impl Method {
    /// Every method, available here or not; cached and portable ones last.
    pub const ALL: [Self; 11] = [
        Self::Avx512Nt,
        Self::Avx2Nt,
        Self::Sse2Nt,
        Self::Clzero,
        Self::DcZva,
        Self::Stnp,
        Self::RepStosb,
        Self::RepStosq,
        Self::Avx2,
        Self::Stp,
        Self::Portable,
    ];

    /// Whether this CPU can execute the method. Constant for the life of the process.
    #[must_use]
    pub fn is_available(self) -> bool {
        crate::arch::Engine::new(self).is_some()
    }

    /// The methods that this CPU can execute; never empty, [`Method::Portable`] last.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|method| method.is_available())
    }

    /// Whether the lines bypass the cache: good for memory that nobody touches soon, bad for memory
    /// about to be used.
    #[must_use]
    pub const fn bypasses_cache(self) -> bool {
        matches!(self, Self::Avx512Nt | Self::Avx2Nt | Self::Sse2Nt | Self::Clzero | Self::Stnp)
    }

    /// Whether a page that cannot be written ends the clear with
    /// [`Outcome::Poisoned`](crate::Outcome::Poisoned) once the guard is installed. All but the
    /// portable one, whose stores are the compiler's.
    #[must_use]
    pub const fn recovers(self) -> bool {
        !matches!(self, Self::Portable)
    }

    /// The name, as printed and parsed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Avx512Nt => "avx512-nt",
            Self::Avx2Nt => "avx2-nt",
            Self::Sse2Nt => "sse2-nt",
            Self::Clzero => "clzero",
            Self::RepStosb => "rep-stosb",
            Self::RepStosq => "rep-stosq",
            Self::Avx2 => "avx2",
            Self::DcZva => "dc-zva",
            Self::Stnp => "stnp",
            Self::Stp => "stp",
            Self::Portable => "portable",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Method {
    type Err = UnknownMethod;

    fn from_str(text: &str) -> Result<Self, UnknownMethod> {
        Self::ALL.into_iter().find(|method| method.name() == text).ok_or(UnknownMethod)
    }
}

/// A text that names no method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownMethod;

impl fmt::Display for UnknownMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such clearing method: give one of")?;
        Method::ALL.into_iter().try_for_each(|method| write!(f, " {method}"))
    }
}

impl core::error::Error for UnknownMethod {}

/// A method that this CPU cannot execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable(pub Method);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this CPU cannot execute {}: give one of", self.0)?;
        Method::available().try_for_each(|method| write!(f, " {method}"))
    }
}

impl core::error::Error for Unavailable {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_survives_print_and_parse() {
        for method in Method::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        assert_eq!("AVX512-NT".parse::<Method>(), Err(UnknownMethod));
    }

    #[test]
    fn portable_is_always_there_and_last() {
        assert_eq!(Method::available().last(), Some(Method::Portable));
    }

    #[test]
    fn errors_name_what_is_allowed() {
        assert!(UnknownMethod.to_string().contains("rep-stosb"));
        let foreign = if cfg!(target_arch = "aarch64") { Method::RepStosb } else { Method::DcZva };
        let text = Unavailable(foreign).to_string();
        assert!(text.contains(foreign.name()) && text.ends_with("portable"), "{text}");
    }
}
