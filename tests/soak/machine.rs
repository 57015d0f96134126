// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What others do to the machine meanwhile: the kernel's pool, the CPUs, the clock.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use linux::{Roots, hugetlb};
use prezero_tests::Page;
use rand::Rng;
use rand::rngs::StdRng;
use testkit::child::{Child, fork};
use testkit::skip;
use units::Node;

/// The library that moves the clock of the programs that load it, as Debian packages it.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// The machine, as it was and as it is made to be.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The size of the kernel's pool.
    pages: u64,
    burners: Vec<Child>,
    until: Instant,
    clock: Option<PathBuf>,
}

/// The event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Doing {
    Resized,
    Burdened,
    ClockStepped,
    Nothing,
}

impl Machine {
    /// As it is; the clock is a file of that directory.
    pub(crate) fn new(dir: &Path) -> Self {
        let configured = hugetlb::configured(&Roots::default(), Page::Mib2.size(), Some(Node(0)));
        let pages = configured.expect("2 MiB pages");
        let clock = Path::new(FAKETIME).exists().then(|| dir.join("clock"));
        if let Some(clock) = &clock {
            std::fs::write(clock, "+0").expect("a file of the test's");
        } else {
            skip("libfaketime is not installed, and the clock goes its way");
        }
        Self { pages, burners: Vec::new(), until: Instant::now(), clock }
    }

    /// A command that goes by the clock that jumps.
    pub(crate) fn on_its_clock(&self, mut command: Command) -> Command {
        if let Some(clock) = &self.clock {
            command.env("LD_PRELOAD", FAKETIME).env("FAKETIME_TIMESTAMP_FILE", clock);
            command.env("FAKETIME_NO_CACHE", "1").env("DONT_FAKE_MONOTONIC", "1");
        }
        command
    }

    fn resize(&self, pages: u64) {
        // Fewer than it has in use is what the kernel then comes near to.
        hugetlb::set_total(&Roots::default(), Page::Mib2.size(), Some(Node(0)), pages)
            .expect("root");
    }

    /// Something at random; most of the time nothing.
    pub(crate) fn disturb(&mut self, random: &mut StdRng) -> Doing {
        if Instant::now() >= self.until {
            self.burners.clear();
        }
        match random.random_range(0..600) {
            0..=3 => {
                self.resize(random.random_range(self.pages - 64..=self.pages + 64));
                Doing::Resized
            }
            4 if self.burners.is_empty() => {
                let burn = |_: u32| {
                    fork(|_| {
                        loop {
                            std::hint::spin_loop()
                        }
                    })
                };
                self.burners = (0..4).map(burn).collect();
                self.until = Instant::now() + Duration::from_millis(random.random_range(500..6000));
                Doing::Burdened
            }
            5 | 6 => {
                let Some(clock) = &self.clock else { return Doing::Nothing };
                let seconds = random.random_range(-200_000..200_000);
                std::fs::write(clock, format!("{seconds:+}")).expect("a file of the test's");
                Doing::ClockStepped
            }
            _ => Doing::Nothing,
        }
    }

    /// As it was, but for the clock.
    pub(crate) fn calm(&mut self) {
        self.burners.clear();
        self.resize(self.pages);
        if self.clock.is_some() {
            clean();
        }
    }
}

/// Removes the files that libfaketime makes for each process, by its id, of killed processes, which
/// left them: version 0.9.10 has no option against them.
fn clean() {
    for entry in std::fs::read_dir("/dev/shm").expect("a directory").flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let made_by = ["faketime_shm_", "sem.faketime_sem_"].map(|of| name.strip_prefix(of));
        let Some(id) = made_by.into_iter().flatten().next() else { continue };
        if id.parse::<u32>().is_ok() && !Path::new("/proc").join(id).exists() {
            // Another cleaner may be faster.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.calm();
    }
}
