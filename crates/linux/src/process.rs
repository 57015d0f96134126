// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What other processes have used: `/proc/PID/stat`.

use std::time::Duration;

use crate::roots::Roots;

/// CPU time that all threads of a process have used so far, in user and kernel mode, to the
/// kernel's tick (10 ms on most). `None` once it was waited for.
#[must_use]
pub fn cpu_time(roots: &Roots, pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(roots.proc.join(format!("{pid}/stat"))).ok()?;
    // The name in parentheses may have spaces and parentheses; the state follows the last one.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    let micros = user.saturating_add(kernel).saturating_mul(1_000_000) / ticks_per_second.max(1);
    Some(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_name_with_parentheses_hides_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("7")).unwrap();
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 6 7 39 19 1 0 1 2 3\n";
        fs::write(dir.path().join("7/stat"), stat).unwrap();
        let roots = Roots { proc: dir.path().to_owned(), ..Roots::default() };
        let ticks = u32::try_from(rustix::param::clock_ticks_per_second()).unwrap();
        assert_eq!(cpu_time(&roots, 7), Some(Duration::from_secs(200) / ticks));
        assert_eq!(cpu_time(&roots, 8), None);
    }
}
