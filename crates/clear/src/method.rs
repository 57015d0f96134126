// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The name of an instruction sequence that clears memory: printable, parseable, forceable.

use core::fmt;
use core::str::FromStr;

use crate::arch::table::methods;

macro_rules! declare {
    ($($isa:ident { $($(#[$doc:meta])* $method:ident $name:literal
                     [$available:expr] $unit:expr, $leaf:ident, $cache:ident;)* })*) => {
        /// Which instructions store the zeros.
        ///
        /// Every method has a name on every architecture, so that a configuration file can be read
        /// anywhere; [`Method::is_available`] says whether this CPU can execute it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Method {
            $($($(#[$doc])* $method,)*)*
            /// Any architecture: what the compiler and the C library make of a fill with zero.
            Portable,
        }

        impl Method {
            /// Every method, available here or not: of each architecture the best one first, and
            /// the portable one last.
            pub const ALL: [Self; [$($($name,)*)* "portable"].len()] =
                [$($(Self::$method,)*)* Self::Portable];

            /// Whether the lines bypass the cache: good for memory that stays untouched for a
            /// while, bad for memory about to be used.
            #[must_use]
            pub const fn bypasses_cache(self) -> bool {
                #[expect(non_upper_case_globals, reason = "the words of the table")]
                const bypass: bool = true;
                #[expect(non_upper_case_globals, reason = "the words of the table")]
                const keep: bool = false;
                match self {
                    $($(Self::$method => $cache,)*)*
                    Self::Portable => keep,
                }
            }

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
methods!(declare);

impl Method {
    /// Whether this CPU can execute the method. Constant for the life of the process.
    #[must_use]
    pub fn is_available(self) -> bool {
        crate::arch::Engine::new(self).is_some()
    }

    /// The methods that this CPU can execute; never empty, [`Method::Portable`] last.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|method| method.is_available())
    }

    /// Whether an unwritable page ends the clear with
    /// [`Outcome::Poisoned`](crate::Outcome::Poisoned) once the guard is installed. All but the
    /// portable one, because the compiler makes its stores.
    #[must_use]
    pub const fn recovers(self) -> bool {
        !matches!(self, Self::Portable)
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

/// An unknown method's name.
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
    fn errors_name_allowed_values() {
        assert!(UnknownMethod.to_string().contains("rep-stosb"));
        let foreign = if cfg!(target_arch = "aarch64") { Method::RepStosb } else { Method::DcZva };
        let text = Unavailable(foreign).to_string();
        assert!(text.contains(foreign.name()) && text.ends_with("portable"), "{text}");
    }
}
