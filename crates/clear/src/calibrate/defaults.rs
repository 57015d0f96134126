// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The choice before any measurement, or where the machine was too noisy to tell.
//!
//! | CPU | method | why (GB/s, one core) |
//! |---|---|---|
//! | AMD with AVX-512 (Zen 4 on) | AVX-512 non-temporal | 86; `clzero` 77, `rep stosb` 31 below 32 MiB, 75 above (this crate) |
//! | AMD before, Hygon | `clzero` | Milan: 46; `movnti` 19, `rep stosb` 14 at 2 MiB [1] |
//! | Intel Skylake, Cascade Lake servers | `rep stosb` | non-temporal stores are slower there [1] |
//! | Intel else | AVX non-temporal | Ice Lake: 24.5; `rep stosb` 12.4. Broadwell: 3.4 times `rep stosb` [1, 2] |
//! | aarch64 | `dc zva` | what the kernel's own `clear_page` uses |
//! | else | `rep stosb`, or portable | needs no knowledge |
//!
//! [1]: <https://lore.kernel.org/lkml/20220606202109.1306034-1-ankur.a.arora@oracle.com/>
//! [2]: <https://lore.kernel.org/linux-mm/20180725182303.GA1366@bombadil.infradead.org/>

use super::{Basis, Choice, Cpu, Setting, Vendor};
use crate::{Chunk, Method};

/// Family 6, model 85: Skylake, Cascade Lake and Cooper Lake servers.
const SKYLAKE_SERVER: u32 = 85;

/// The stated default for a CPU, limited to what the CPU under this process can execute.
#[must_use]
pub fn choice(cpu: &Cpu) -> Choice {
    let setting = Setting { method: first_available(wishes(cpu)), chunk: Chunk::DEFAULT };
    Choice { setting, basis: Basis::NotMeasured }
}

/// Best first.
fn wishes(cpu: &Cpu) -> &'static [Method] {
    match &cpu.vendor {
        Vendor::Amd => &[Method::Avx512Nt, Method::Clzero, Method::Avx2Nt, Method::Sse2Nt],
        Vendor::Hygon => &[Method::Clzero, Method::RepStosb],
        Vendor::Intel if cpu.family == 6 && cpu.model == SKYLAKE_SERVER => &[Method::RepStosb],
        Vendor::Intel => &[Method::Avx2Nt, Method::Sse2Nt],
        Vendor::Arm(_) | Vendor::Other(_) => &[Method::DcZva, Method::Stp, Method::RepStosb],
    }
}

fn first_available(wishes: &[Method]) -> Method {
    wishes.iter().copied().find(|method| method.is_available()).unwrap_or(Method::Portable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(vendor: Vendor, family: u32, model: u32) -> Cpu {
        Cpu { vendor, family, model, stepping: 0, microcode: 0 }
    }

    #[test]
    fn every_vendor_has_a_default_that_can_be_executed_here() {
        let vendors = [
            Vendor::Amd,
            Vendor::Hygon,
            Vendor::Intel,
            Vendor::Arm(0x41),
            Vendor::Other(String::new()),
        ];
        for vendor in vendors {
            let choice = choice(&cpu(vendor.clone(), 6, 0));
            assert!(choice.setting.clearer().is_ok(), "{vendor:?}: {choice}");
        }
    }

    #[test]
    fn skylake_does_not_get_non_temporal_stores_but_ice_lake_does() {
        assert_eq!(wishes(&cpu(Vendor::Intel, 6, 85)), [Method::RepStosb]);
        assert_eq!(wishes(&cpu(Vendor::Intel, 6, 106))[0], Method::Avx2Nt);
    }
}
