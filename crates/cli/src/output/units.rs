// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Times and rates in three significant digits, and counts.

use std::time::Duration;

/// `31.2 us`, `4.56 ms`, `1.23 s`.
pub fn seconds(time: Duration) -> String {
    let s = time.as_secs_f64();
    if s >= 1.0 {
        digits(s, "s")
    } else if s >= 1e-3 {
        digits(s * 1e3, "ms")
    } else {
        digits(s * 1e6, "us")
    }
}

/// Bytes in a second; 0 for no time at all.
#[expect(clippy::cast_precision_loss, reason = "a rate is a measurement: 53 bits are plenty")]
pub fn bytes_per_second(bytes: u64, time: Duration) -> f64 {
    let s = time.as_secs_f64();
    if s > 0.0 { bytes as f64 / s } else { 0.0 }
}

/// `25.8 GB/s`, decimal as memory bandwidth is quoted.
pub fn rate(bytes_per_second: f64) -> String {
    if bytes_per_second >= 1e9 {
        digits(bytes_per_second / 1e9, "GB/s")
    } else {
        digits(bytes_per_second / 1e6, "MB/s")
    }
}

/// `1 page`, `2 pages`.
pub fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn digits(value: f64, unit: &str) -> String {
    if value >= 100.0 {
        format!("{value:.0} {unit}")
    } else if value >= 10.0 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.2} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_have_three_digits() {
        for (us, text) in
            [(31.2, "31.2 us"), (4_560.0, "4.56 ms"), (123_400.0, "123 ms"), (2e6, "2.00 s")]
        {
            assert_eq!(seconds(Duration::from_secs_f64(us / 1e6)), text);
        }
        assert_eq!(rate(bytes_per_second(1 << 30, Duration::from_millis(40))), "26.8 GB/s");
        assert_eq!(rate(bytes_per_second(1 << 20, Duration::from_secs(1))), "1.05 MB/s");
        assert!(bytes_per_second(1, Duration::ZERO).abs() < f64::EPSILON);
    }
}
