// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes ten days of one host as a trace. From 8 to 18 o'clock ten times as many loans come as at
//! night, of 4, 8, 16 and 32 GiB, half of them for five minutes or longer. Each day at nine o'clock
//! eight of 16 GiB come at once. `cargo run --example days -p prezero-plan > days.csv`

use plan::{Ask, trace};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha12Rng;
use rand_distr::{Distribution as _, Exp, LogNormal};
use units::Bytes;

const DAYS: u32 = 10;
const DAY_SECONDS: f64 = 86_400.0;
const SIZES_GIB: [u64; 5] = [4, 8, 8, 16, 32];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut dice = ChaCha12Rng::seed_from_u64(5);
    let lifetimes = LogNormal::new(300.0_f64.ln(), 0.8)?;
    let ask = |arrival, gib: u64, lifetime| Ask {
        arrival,
        bytes: Bytes(gib << 30),
        lifetime,
        node: None,
    };
    let mut asks = Vec::new();
    let mut now = 0.0;
    while now < f64::from(DAYS) * DAY_SECONDS {
        let is_day = (8.0..18.0).contains(&(now / 3600.0 % 24.0));
        let each_seconds = if is_day { 60.0 } else { 600.0 };
        now += Exp::new(1.0 / each_seconds)?.sample(&mut dice);
        let size = SIZES_GIB[dice.random_range(0..SIZES_GIB.len())];
        asks.push(ask(now, size, lifetimes.sample(&mut dice)));
    }
    for day in 0..DAYS {
        let nine = f64::from(day) * DAY_SECONDS + 9.0 * 3600.0;
        asks.extend((0..8).map(|one| ask(nine + f64::from(one) * 0.2, 16, 1800.0)));
    }
    trace::write(&trace::ordered(asks), std::io::stdout().lock())?;
    Ok(())
}
