// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which CPU this is, so that a measurement is used only where it holds.

use std::fmt;
use std::io;
use std::path::Path;

/// A CPU model with its microcode: microcode decides how string instructions store.
///
/// Prints as one word, `AuthenticAMD-25-17-1-0x1000065`. Cores of other models in the same machine
/// are ignored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpu {
    /// Who made it.
    pub vendor: Vendor,
    /// x86-64: family. aarch64: part.
    pub family: u32,
    /// x86-64: model. aarch64: variant.
    pub model: u32,
    /// x86-64: stepping. aarch64: revision.
    pub stepping: u32,
    /// 0: unknown, as behind some hypervisors and on aarch64.
    pub microcode: u64,
}

/// Who made a CPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vendor {
    /// AMD.
    Amd,
    /// Hygon, with AMD's Zen cores.
    Hygon,
    /// Intel.
    Intel,
    /// An implementer of aarch64, by its number in MIDR_EL1.
    Arm(u32),
    /// Another vendor, by the name that the CPU gives; spaces removed.
    Other(String),
}

impl Cpu {
    /// The first CPU that `proc_root`/cpuinfo lists.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn read(proc_root: &Path) -> io::Result<Self> {
        std::fs::read_to_string(proc_root.join("cpuinfo")).map(|text| Self::from_cpuinfo(&text))
    }

    /// The first CPU in a text shaped like `/proc/cpuinfo`. What it doesn't say is 0, or a vendor
    /// without a name.
    #[must_use]
    pub fn from_cpuinfo(text: &str) -> Self {
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| key.trim() == name).map_or("", |(_, value)| value.trim())
        };
        let number = |name: &str| {
            let value = field(name);
            let parsed = match value.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16),
                None => value.parse(),
            };
            parsed.unwrap_or(0)
        };
        let small = |name: &str| u32::try_from(number(name)).unwrap_or(0);
        if !field("CPU implementer").is_empty() {
            return Self {
                vendor: Vendor::Arm(small("CPU implementer")),
                family: small("CPU part"),
                model: small("CPU variant"),
                stepping: small("CPU revision"),
                microcode: 0,
            };
        }
        let vendor = match field("vendor_id") {
            "AuthenticAMD" => Vendor::Amd,
            "HygonGenuine" => Vendor::Hygon,
            "GenuineIntel" => Vendor::Intel,
            other => Vendor::Other(other.chars().filter(|c| !c.is_whitespace()).collect()),
        };
        Self {
            vendor,
            family: small("cpu family"),
            model: small("model"),
            stepping: small("stepping"),
            microcode: number("microcode"),
        }
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.vendor {
            Vendor::Amd => f.write_str("AuthenticAMD")?,
            Vendor::Hygon => f.write_str("HygonGenuine")?,
            Vendor::Intel => f.write_str("GenuineIntel")?,
            Vendor::Arm(implementer) => write!(f, "arm-{implementer:#x}")?,
            Vendor::Other(name) if name.is_empty() => f.write_str("unknown")?,
            Vendor::Other(name) => f.write_str(name)?,
        }
        write!(f, "-{}-{}-{}-{:#x}", self.family, self.model, self.stepping, self.microcode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_x86_cpuinfo_is_read() {
        let text = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\
                    stepping\t: 1\nmicrocode\t: 0x1000065\n\nprocessor\t: 1\nvendor_id\t: GenuineIntel\n";
        assert_eq!(Cpu::from_cpuinfo(text).to_string(), "AuthenticAMD-25-17-1-0x1000065");
    }

    #[test]
    fn an_arm_cpuinfo_is_read() {
        let text = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU architecture: 8\n\
                    CPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n";
        assert_eq!(Cpu::from_cpuinfo(text).to_string(), "arm-0x41-3340-3-1-0x0");
    }

    #[test]
    fn an_empty_or_strange_cpuinfo_is_one_word_all_the_same() {
        assert_eq!(Cpu::from_cpuinfo("").to_string(), "unknown-0-0-0-0x0");
        let strange = Cpu::from_cpuinfo("vendor_id : Some Body\ncpu family : 99999999999999\n");
        assert_eq!(strange.to_string(), "SomeBody-0-0-0-0x0");
    }
}
