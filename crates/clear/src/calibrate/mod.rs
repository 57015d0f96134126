// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which method and which chunk are best here, by measurement.
//!
//! Why measure: the order of the methods is different on every generation of CPUs. On Ice Lake
//! non-temporal stores are twice as fast as `rep stosb`, on Skylake slower; on Milan `clzero` is
//! 2.5 times as fast as non-temporal stores, on Zen 4 slower (figures and sources in [`defaults`]).
//! And `rep stosb` may be slow below one length and fast above.
//!
//! The walk: [`choice`] looks into a [`Cache`] for this [`Cpu`]; without an entry it maps a
//! [`Scratch`] and runs a [`Race`] over all candidates, which concludes with a [`Choice`]. On a
//! machine too noisy to tell, the race refuses to conclude; then the [`defaults`] of the CPU's
//! vendor stand, and the cache stays as it is.

mod cache;
mod cpu;
pub mod defaults;
mod race;
mod scratch;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

pub use cache::{Cache, CacheError};
pub use cpu::{Cpu, Vendor};
pub use race::{Candidate, Race};
pub use scratch::Scratch;

use crate::{Chunk, Clearer, Method, Unavailable};

/// How much CPU time a race takes, unless the machine is so noisy that it needs twice as much.
pub const DEFAULT_RACE_PERIOD: Duration = Duration::from_millis(400);

/// What a [`Clearer`] is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Setting {
    /// The method.
    pub method: Method,
    /// The bytes between two looks at the caller's wish to stop.
    pub chunk: Chunk,
}

impl Setting {
    /// The clearer.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] where this CPU cannot execute the method.
    pub fn clearer(self) -> Result<Clearer, Unavailable> {
        Clearer::new(self.method, self.chunk)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "method={} chunk={}", self.method, self.chunk)
    }
}

/// A setting, and why this one.
///
/// Printed and parsed as `method=avx512-nt chunk=256KiB basis=measured mb_per_s=82100
/// uncertainty_permille=12`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What to clear with.
    pub setting: Setting,
    /// Why.
    pub basis: Basis,
}

/// Why a setting was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// It won a race on this machine.
    Measured {
        /// Median rate, in 10^6 bytes per second.
        mb_per_s: u32,
        /// Half the 95 % confidence interval of that median, in thousandths of it.
        uncertainty_permille: u32,
    },
    /// The vendor's default: the race was too noisy to tell, by this much.
    TooNoisy {
        /// As above, at the end of the race.
        uncertainty_permille: u32,
    },
    /// The vendor's default, before any measurement.
    NotMeasured,
    /// Somebody said so.
    Forced,
}

impl Choice {
    /// The same with the forced parts in place.
    #[must_use]
    pub fn overridden(self, method: Option<Method>, chunk: Option<Chunk>) -> Self {
        if method.is_none() && chunk.is_none() {
            return self;
        }
        let setting = Setting {
            method: method.unwrap_or(self.setting.method),
            chunk: chunk.unwrap_or(self.setting.chunk),
        };
        Self { setting, basis: Basis::Forced }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} basis=", self.setting)?;
        match self.basis {
            Basis::Measured { mb_per_s, uncertainty_permille } => {
                write!(
                    f,
                    "measured mb_per_s={mb_per_s} uncertainty_permille={uncertainty_permille}"
                )
            }
            Basis::TooNoisy { uncertainty_permille } => {
                write!(f, "too-noisy uncertainty_permille={uncertainty_permille}")
            }
            Basis::NotMeasured => f.write_str("not-measured"),
            Basis::Forced => f.write_str("forced"),
        }
    }
}

impl FromStr for Choice {
    type Err = BadChoice;

    fn from_str(text: &str) -> Result<Self, BadChoice> {
        /// The value behind `name=`, which must be there.
        fn field<T: FromStr>(text: &str, name: &str) -> Result<T, BadChoice> {
            text.split_whitespace()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
                .and_then(|value| value.parse().ok())
                .ok_or_else(|| BadChoice(format!("{text} (field {name})")))
        }
        let setting = Setting { method: field(text, "method")?, chunk: field(text, "chunk")? };
        let basis = match field::<String>(text, "basis")?.as_str() {
            "measured" => Basis::Measured {
                mb_per_s: field(text, "mb_per_s")?,
                uncertainty_permille: field(text, "uncertainty_permille")?,
            },
            "too-noisy" => {
                Basis::TooNoisy { uncertainty_permille: field(text, "uncertainty_permille")? }
            }
            "not-measured" => Basis::NotMeasured,
            "forced" => Basis::Forced,
            _ => return Err(BadChoice(text.to_owned())),
        };
        Ok(Self { setting, basis })
    }
}

/// A malformed choice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read as a calibration: {0}")]
pub struct BadChoice(String);

/// The choice for this machine, from the cache, else measured and put there.
///
/// `again` measures even where the cache knows. Blocks for [`DEFAULT_RACE_PERIOD`], on a busy
/// machine up to four times that, when it measures, and maps [`Scratch::default_bytes`] meanwhile.
/// An unreadable or unwritable cache is an error. A choice that could not be measured (too little
/// memory, too much noise) is the vendor's default and stays out of the cache.
///
/// # Errors
///
/// [`CacheError`]. [`defaults::choice`] is there for callers that go on without.
pub fn choice(cache: &Path, cpu: &Cpu, again: bool) -> Result<Choice, CacheError> {
    let mut cache = Cache::load(cache)?;
    if !again && let Some(known) = cache.get(cpu) {
        return Ok(known);
    }
    let fallback = defaults::choice(cpu);
    let Ok(mut scratch) = Scratch::new(Scratch::default_bytes()) else { return Ok(fallback) };
    let choice = Race::run(&mut scratch.extent(), DEFAULT_RACE_PERIOD).conclude(fallback.setting);
    if matches!(choice.basis, Basis::Measured { .. }) {
        cache.set(cpu, choice);
        cache.save()?;
    }
    Ok(choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_survives_print_and_parse() {
        let setting = Setting { method: Method::Clzero, chunk: Chunk::WHOLE };
        let bases = [
            Basis::Measured { mb_per_s: 82_100, uncertainty_permille: 12 },
            Basis::TooNoisy { uncertainty_permille: 93 },
            Basis::NotMeasured,
            Basis::Forced,
        ];
        for basis in bases {
            let choice = Choice { setting, basis };
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
    }

    #[test]
    fn invalid_choice_is_named() {
        for (text, named) in [
            ("", "field method"),
            ("method=clzero", "field chunk"),
            ("method=mmx chunk=4KiB basis=forced", "field method"),
            ("method=clzero chunk=4KiB basis=measured mb_per_s=-1", "field mb_per_s"),
            ("method=clzero chunk=4KiB basis=gut", "basis=gut"),
        ] {
            let error = text.parse::<Choice>().unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn an_override_replaces_only_what_it_names() {
        let setting = Setting { method: Method::Clzero, chunk: Chunk::DEFAULT };
        let choice = Choice { setting, basis: Basis::NotMeasured };
        assert_eq!(choice.overridden(None, None), choice);
        let forced = choice.overridden(Some(Method::RepStosb), None);
        assert_eq!(
            forced,
            Choice {
                setting: Setting { method: Method::RepStosb, ..setting },
                basis: Basis::Forced
            }
        );
        assert_eq!(choice.overridden(None, Some(Chunk::WHOLE)).setting.chunk, Chunk::WHOLE);
    }
}
