// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a VM shall do between boot and power-off.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Carried out in the order of its fields.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Plan {
    /// Kernel modules to load, uncompressed, in order of dependency.
    pub modules: Vec<Module>,
    /// Files to write: pool sizes, knobs of sysfs and procfs.
    pub settings: Vec<Setting>,
    /// Programs to run, one after another.
    pub programs: Vec<Program>,
}

/// One kernel module.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Module {
    /// Absolute path.
    pub path: String,
    /// `NAME=VALUE`, by blanks.
    pub parameters: String,
}

/// One value for one file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Setting {
    /// Absolute path.
    pub path: String,
    /// Written as it is.
    pub value: String,
    /// The file must read back as `value`: a pool that stayed smaller ends the run.
    pub verify: bool,
}

/// One program.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Program {
    /// Unique in the plan.
    pub name: String,
    /// Absolute path and arguments.
    pub argv: Vec<String>,
    /// Added to `PATH`, `HOME` and `TMPDIR`, which are always set.
    pub env: BTreeMap<String, String>,
    /// Working directory; made if absent.
    pub dir: String,
    /// After this number of seconds everything it started is killed.
    pub timeout_s: u64,
}
