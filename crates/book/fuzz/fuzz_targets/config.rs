// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any text as a configuration: it is refused, or means the same when it is written out and read
//! again. Any text as a pool's flag: the same.
#![no_main]

use book::config::{Config, PoolConfig};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(config) = Config::from_toml(text) {
        let again = toml::to_string(&config).expect("what was read can be written");
        assert_eq!(Config::from_toml(&again), Ok(config), "{again}");
    }
    if let Ok(pool) = text.parse::<PoolConfig>() {
        assert_eq!(pool.check(), Ok(()), "{text}");
    }
});
