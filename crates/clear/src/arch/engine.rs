// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the rows of one instruction set become: a type per method, the dispatch over them, and the
//! dispatch over scans.
//!
//! # Safety
//!
//! A value of a method's type exists only where the row's condition held. [`units`](super::leaf)
//! gives a loop whole aligned units only.
#![allow(unsafe_code, reason = "what the macro makes implements the raw entry")]

/// Declares a type per row and the `Engine` that holds one of them.
macro_rules! engine {
    ($($(#[$doc:meta])* $method:ident $name:literal
       [$available:expr] $unit:expr, $leaf:ident, $cache:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $method(());

            impl StoreZeros for $method {
                const METHOD: Method = Method::$method;

                fn new() -> Option<Self> {
                    ($available).then_some(Self(()))
                }

                #[inline]
                unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
                    // SAFETY: the caller's obligations; `self` proves that the CPU executes the
                    // loop, and the unit is the row's.
                    unsafe { units(start, len, $unit, leaf::$leaf) }
                }
            }
        )*

        /// A method that this CPU has.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Engine {
            $($method($method),)*
            Portable(Portable),
        }

        impl Engine {
            pub(crate) fn new(method: Method) -> Option<Self> {
                match method {
                    $(Method::$method => $method::new().map(Self::$method),)*
                    Method::Portable => Some(Self::Portable(Portable::always())),
                    // Methods of other instruction sets.
                    _ => None,
                }
            }

            /// The best one.
            pub(crate) fn first() -> Self {
                let portable = Self::Portable(Portable::always());
                Method::ALL.into_iter().find_map(Self::new).unwrap_or(portable)
            }

            pub(crate) const fn method(self) -> Method {
                match self {
                    $(Self::$method(_) => Method::$method,)*
                    Self::Portable(_) => Method::Portable,
                }
            }

            /// # Safety
            ///
            /// As for [`StoreZeros::store`].
            #[inline]
            pub(crate) unsafe fn store(self, start: *mut u8, len: usize) -> Result<(), Fault> {
                match self {
                    // SAFETY: the caller keeps the obligations of the raw entry, which are the
                    // same; so for each arm.
                    $(Self::$method(method) => unsafe { method.store(start, len) },)*
                    // SAFETY: as above.
                    Self::Portable(method) => unsafe { method.store(start, len) },
                }
            }
        }
    };
}
pub(crate) use engine;

/// Declares `scanner`, which gives the search that a [`ScanMethod`](crate::ScanMethod) names.
macro_rules! scanner {
    ($($(#[$doc:meta])* $method:ident $name:literal $search:ident;)*) => {
        /// The search that `method` names, where this CPU executes it.
        pub(crate) fn scanner(method: ScanMethod) -> Option<BlockScan> {
            match method {
                $(ScanMethod::$method => scan::$search(),)*
                ScanMethod::Portable => Some(first_nonzero_block),
                // Scans of other instruction sets.
                _ => None,
            }
        }
    };
}
pub(crate) use scanner;
