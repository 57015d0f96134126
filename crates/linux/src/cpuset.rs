// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sets of CPUs, and the list notation that the kernel uses for CPUs and nodes alike.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Above every kernel's `NR_CPUS` (8192 on x86-64); keeps `0-4294967295` from eating memory.
const LIMIT: u32 = 65_536;

/// CPUs by number, written as the kernel writes them: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// How many CPUs it names.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Empty, as on a node that has only memory.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether CPU `cpu` is in it.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs in rising order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The CPUs that are in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }
}

/// CPUs at or above 65536 are left out: kernels stop below.
impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().filter(|&cpu| cpu < LIMIT).collect())
    }
}

/// Reads the kernel's list notation; empty text is the empty set, steps (`0-8:2/4`) are refused.
impl FromStr for CpuSet {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = || Error::invalid("list", format!("{text:?}"), "is not of the form 0-3,8");
        let number = |part: &str| match part.parse::<u32>() {
            Ok(number) if number < LIMIT && !part.starts_with('+') => Ok(number),
            _ => Err(refuse()),
        };
        let mut set = BTreeSet::new();
        let text_trimmed = text.trim();
        if text_trimmed.is_empty() {
            return Ok(Self(set));
        }
        for part in text_trimmed.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(refuse());
            }
            set.extend(first..=last);
        }
        Ok(Self(set))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if_eq(&(last + 1)) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}
