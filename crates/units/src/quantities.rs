// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Quantities that must not be mixed up: page sizes, page counts, byte counts, nodes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The reason why a text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParseError {
    /// Not `NUMBER[K|M|G|T][iB]`.
    Size(String),
    /// More bytes than any machine can address.
    TooLarge(String),
    /// A size that no huge page can have.
    PageSize(String),
    /// A byte count with a fraction of a page.
    NotWholePages {
        /// The size asked for.
        bytes: Bytes,
        /// The page size it should be a multiple of.
        page: PageSize,
        /// The next multiple above it.
        next: Bytes,
    },
    /// Nothing was asked for.
    Zero,
}

impl std::error::Error for ParseError {}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(text) => write!(
                f,
                "`{text}` is not a size: write a number with K, M, G or T, as in 2M or 16G"
            ),
            Self::TooLarge(text) => {
                write!(f, "`{text}` is too large: no machine has 16 million terabytes")
            }
            Self::PageSize(text) => write!(
                f,
                "`{text}` is not a page size: it must be a power of two of at least 4K, as in 2M or 1G"
            ),
            Self::NotWholePages { bytes, page, next } => write!(
                f,
                "{bytes} is not a whole number of {page} pages: the next larger size is {next}"
            ),
            Self::Zero => f.write_str("the size is zero: ask for at least one page"),
        }
    }
}

/// A count of bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A count of huge pages; the context's [`PageSize`] gives their size.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Pages(pub u64);

/// A NUMA node's number, as in `/sys/devices/system/node/nodeN`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Node(pub u32);

/// The size of one page in bytes: a power of two, at least 4 KiB.
///
/// 4 KiB is no huge page; it is allowed because the fallback without huge pages uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct PageSize(u64);

impl Bytes {
    /// The whole pages of `size` that fit into the bytes; the rest is cut off, see
    /// [`PageSize::pages_in`] for exact division.
    #[must_use]
    pub const fn whole_pages(self, size: PageSize) -> Pages {
        Pages(self.0 / size.0)
    }
}

impl Bytes {
    /// `self - other`, never below zero.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl std::ops::Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self(0), |a, b| a + b)
    }
}

impl Pages {
    /// No pages.
    pub const ZERO: Self = Self(0);

    /// The bytes of the pages of `size`; saturates, which no machine's memory can reach.
    #[must_use]
    pub fn bytes(self, size: PageSize) -> Bytes {
        Bytes(self.0.saturating_mul(size.bytes()))
    }

    /// `self - other`, at least zero.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl std::ops::Add for Pages {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::AddAssign for Pages {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::ops::Mul<u64> for Pages {
    type Output = Self;
    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

impl std::iter::Sum for Pages {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, |a, b| a + b)
    }
}

impl PageSize {
    /// 2 MiB.
    pub const MIB_2: Self = Self(2 << 20);
    /// 1 GiB.
    pub const GIB_1: Self = Self(1 << 30);
    /// 4 KiB: plain memory, where huge pages cannot be had.
    pub const KIB_4: Self = Self(4 << 10);

    /// A page size of `bytes`, if that is a power of two of at least 4 KiB.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes >= Self::KIB_4.0 && bytes.is_power_of_two() { Some(Self(bytes)) } else { None }
    }

    /// A page size of `kib` KiB, the unit of `/sys/kernel/mm/hugepages`.
    #[must_use]
    pub const fn from_kib(kib: u64) -> Option<Self> {
        match kib.checked_mul(1 << 10) {
            Some(bytes) => Self::new(bytes),
            None => None,
        }
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// In KiB, as sysfs names its directories.
    #[must_use]
    pub const fn kib(self) -> u64 {
        self.0 >> 10
    }

    /// How many whole pages `bytes` is.
    ///
    /// # Errors
    /// [`ParseError::Zero`] for no bytes, [`ParseError::NotWholePages`] for a remainder.
    pub fn pages_in(self, bytes: Bytes) -> Result<Pages, ParseError> {
        if bytes.0 == 0 {
            return Err(ParseError::Zero);
        }
        if bytes.0.is_multiple_of(self.0) {
            return Ok(Pages(bytes.0 / self.0));
        }
        let next = Bytes((bytes.0 / self.0).saturating_add(1).saturating_mul(self.0));
        Err(ParseError::NotWholePages { bytes, page: self, next })
    }
}

impl Default for PageSize {
    /// The most common size: 2 MiB.
    fn default() -> Self {
        Self::MIB_2
    }
}

impl TryFrom<u64> for PageSize {
    type Error = ParseError;
    fn try_from(bytes: u64) -> Result<Self, ParseError> {
        Self::new(bytes).ok_or_else(|| ParseError::PageSize(bytes.to_string()))
    }
}

impl From<PageSize> for u64 {
    fn from(size: PageSize) -> Self {
        size.0
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Bytes {
    /// The largest unit that leaves at most one decimal: `16G`, `1.5G`, `4K`, `17`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')] {
            let (whole, rest) = (self.0 >> shift, self.0 & ((1 << shift) - 1));
            if whole == 0 {
                continue;
            }
            if rest == 0 {
                return f.pad(&format!("{whole}{unit}"));
            }
            // Tenths by integer arithmetic: a u64 does not fit a float.
            let tenths = (u128::from(rest) * 10) >> shift;
            return f.pad(&format!("{whole}.{tenths}{unit}"));
        }
        f.pad(&self.0.to_string())
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bytes(self.0).fmt(f)
    }
}

/// What a size with a fraction is rounded up to that is no whole number of bytes.
const FRACTION_STEP: u64 = 2 << 20;
/// Digits behind the point.
const MAX_FRACTION: usize = 9;

impl FromStr for Bytes {
    type Err = ParseError;

    /// `NUMBER[K|M|G|T][i][B]`, powers of 1024, case ignored. The number may have a fraction. Where
    /// that is not a whole number of bytes, as in Slurm's `9.77G`, it stands for a size that was
    /// rounded, and is rounded up to 2 MiB.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let error = || ParseError::Size(text.to_owned());
        let is_digit = |c: char| c.is_ascii_digit() || c == '.';
        let end = text.find(|c: char| !is_digit(c)).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "ki" | "kb" | "kib" => 10,
            "m" | "mi" | "mb" | "mib" => 20,
            "g" | "gi" | "gb" | "gib" => 30,
            "t" | "ti" | "tb" | "tib" => 40,
            _ => return Err(error()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let is_number =
            |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        if !is_number(whole) || !is_number(fraction) || fraction.len() > MAX_FRACTION {
            return Err(error());
        }
        let too_large = || ParseError::TooLarge(text.to_owned());
        let whole = whole.parse::<u64>().map_err(|_| too_large())?;
        let bytes = whole.checked_mul(1 << shift).ok_or_else(too_large)?;
        // At most 10^9 times 2^40: a u128 has room.
        let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| error())?);
        let scaled = fraction.parse::<u128>().map_err(|_| error())? << shift;
        let part = u64::try_from(scaled / scale).map_err(|_| too_large())?;
        if scaled % scale == 0 {
            return bytes.checked_add(part).map(Self).ok_or_else(too_large);
        }
        if shift == 0 {
            return Err(error());
        }
        let step = FRACTION_STEP.min(1 << shift);
        let sum = bytes.checked_add(part + 1).ok_or_else(too_large)?;
        sum.checked_next_multiple_of(step).map(Self).ok_or_else(too_large)
    }
}

impl FromStr for PageSize {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let Bytes(bytes) =
            text.parse().map_err(|_: ParseError| ParseError::PageSize(text.to_owned()))?;
        Self::new(bytes).ok_or_else(|| ParseError::PageSize(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back_as_they_print() {
        for text in ["4K", "2M", "1G", "16G", "3T", "17"] {
            assert_eq!(text.parse::<Bytes>().unwrap().to_string(), text);
        }
        assert_eq!(Bytes(3 << 29).to_string(), "1.5G");
        assert_eq!("2MiB".parse::<Bytes>().unwrap(), Bytes(2 << 20));
        assert_eq!("1gb".parse::<Bytes>().unwrap(), Bytes(1 << 30));
    }

    #[test]
    fn units_are_read_in_any_case_with_or_without_i_and_b() {
        for (unit, shift) in [("", 0), ("k", 10), ("m", 20), ("g", 30), ("t", 40)] {
            for suffix in ["", "b", "i", "ib"] {
                let text = format!("3{unit}{suffix}");
                if text == "3i" || text == "3ib" {
                    continue;
                }
                for text in [text.to_uppercase(), text] {
                    assert_eq!(text.parse(), Ok(Bytes(3 << shift)), "{text}");
                }
            }
        }
    }

    #[test]
    fn a_size_prints_whole_or_in_tenths_cut_off() {
        for (shift, unit) in [(10, "K"), (20, "M"), (30, "G"), (40, "T")] {
            let one = 1u64 << shift;
            assert_eq!(Bytes(one).to_string(), format!("1{unit}"));
            assert_eq!(Bytes(one + 1).to_string(), format!("1.0{unit}"));
            assert_eq!(Bytes(2 * one - 1).to_string(), format!("1.9{unit}"));
            assert_eq!(Bytes(5 * one + one / 4).to_string(), format!("5.2{unit}"));
        }
        assert_eq!(Bytes(1023).to_string(), "1023");
        assert_eq!(Bytes(0).to_string(), "0");
        // A column of a table is as wide as it says, of any size.
        for bytes in [Bytes(17), Bytes(4096), Bytes(3 << 29)] {
            assert_eq!(format!("{bytes:>8}").len(), 8, "{bytes}");
        }
    }

    #[test]
    fn bad_sizes_are_refused_with_the_text_at_fault() {
        for text in
            ["", "M", "-1", "1.5", "2X", "99999999999T", "1 G", ".5G", "1.G", "1.2.3G", "1e3"]
        {
            let error = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
        for text in ["3M", "1K", "0"] {
            assert!(text.parse::<PageSize>().is_err(), "{text}");
        }
    }

    // Promise P324.
    #[test]
    fn spellings_of_kubernetes_and_slurm_are_sizes() {
        for (text, bytes) in [
            ("8Gi", 8 << 30),
            ("512Mi", 512 << 20),
            ("1.5G", 3 << 29),
            ("120.0G", 120 << 30),
            ("0.5T", 512 << 30),
            ("1.5K", 1536),
            // 10,004.48 MiB, which Slurm has cut to two digits.
            ("9.77G", 10_006 << 20),
            ("0.3K", 1024),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["99999999999T", "99999999999999999999", "16777216T", "16777215.999999999T"] {
            assert_eq!(text.parse::<Bytes>(), Err(ParseError::TooLarge(text.into())), "{text}");
        }
        assert_eq!("16777215T".parse(), Ok(Bytes(16_777_215 << 40)));
    }

    #[test]
    fn a_page_size_is_a_power_of_two_of_at_least_4_kib() {
        for bytes in [0, 512, 2048, 3 << 20, u64::MAX] {
            assert_eq!(PageSize::new(bytes), None, "{bytes}");
        }
        assert_eq!(PageSize::from_kib(u64::MAX), None);
        assert_eq!(PageSize::from_kib(2048), Some(PageSize::MIB_2));
        for page in [PageSize::KIB_4, PageSize::MIB_2, PageSize::GIB_1] {
            assert_eq!(PageSize::from_kib(page.kib()), Some(page));
            assert_eq!(PageSize::try_from(u64::from(page)), Ok(page));
        }
        let refused = PageSize::try_from(3 << 20).unwrap_err().to_string();
        assert!(refused.contains("`3145728` is not a page size"), "{refused}");
    }

    #[test]
    fn a_page_size_prints_in_its_largest_unit() {
        let print = |bytes| PageSize::new(bytes).map(|page| page.to_string());
        for (bytes, text) in [(4096, "4K"), (2 << 20, "2M"), (512 << 20, "512M"), (16 << 30, "16G")]
        {
            assert_eq!(print(bytes).as_deref(), Some(text));
        }
    }

    #[test]
    fn arithmetic_stays_at_its_bounds() {
        assert_eq!(Pages(u64::MAX) + Pages(1), Pages(u64::MAX));
        assert_eq!(Pages(u64::MAX) * 2, Pages(u64::MAX));
        assert_eq!(Pages(u64::MAX).bytes(PageSize::GIB_1), Bytes(u64::MAX));
        assert_eq!(Pages(1).saturating_sub(Pages(2)), Pages::ZERO);
        assert_eq!(Bytes(3 << 20).whole_pages(PageSize::MIB_2), Pages(1));
        assert_eq!(Bytes(u64::MAX) + Bytes(1), Bytes(u64::MAX));
    }

    #[test]
    fn sums_and_additions_lose_nothing() {
        assert_eq!([1, 2, 4].map(Pages).into_iter().sum::<Pages>(), Pages(7));
        assert_eq!([1, 2, 4].map(Bytes).into_iter().sum::<Bytes>(), Bytes(7));
        let (mut pages, mut bytes) = (Pages(3), Bytes(3));
        pages += Pages(4);
        bytes += Bytes(4);
        assert_eq!((pages * 3, bytes), (Pages(21), Bytes(7)));
        assert_eq!(Pages(3).bytes(PageSize::MIB_2), Bytes(6 << 20));
        assert_eq!(Pages(5).saturating_sub(Pages(2)), Pages(3));
        assert_eq!(format!("{} {}", Pages(5), Node(2)), "5 2");
    }

    #[test]
    fn a_size_that_is_not_whole_pages_names_the_next_that_is() {
        let error = PageSize::GIB_1.pages_in(Bytes(3 << 29)).unwrap_err().to_string();
        assert!(error.contains("1.5G") && error.contains("2G"), "{error}");
        assert_eq!(PageSize::MIB_2.pages_in(Bytes(1 << 30)), Ok(Pages(512)));
        assert_eq!(PageSize::MIB_2.pages_in(Bytes(0)), Err(ParseError::Zero));
        assert_eq!(ParseError::Zero.to_string(), "the size is zero: ask for at least one page");
    }
}
