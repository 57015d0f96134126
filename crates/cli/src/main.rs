// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `prezero` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
