// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Borrows 64 MiB, writes to them, and returns them; allocates by itself where the daemon is
//! missing: `cargo run -p prezero --example lend`.
#![expect(clippy::print_stdout, reason = "a program that prints")]

use std::error::Error;

use prezero::{Client, DEFAULT_SOCKET, LendRequest};

fn main() -> Result<(), Box<dyn Error>> {
    let socket = std::env::var("PREZERO_SOCKET").unwrap_or_else(|_| DEFAULT_SOCKET.to_owned());
    let mut client = match Client::connect(&socket) {
        Ok(client) => client,
        Err(error @ prezero::Error::NoDaemon { .. }) => {
            eprintln!("{error}");
            let mut memory = vec![0; 64 << 20];
            return work(&mut memory);
        }
        Err(error) => return Err(error.into()),
    };

    // The mapping holds the loan: dropping it returns the memory.
    let mut memory = client.lend(&LendRequest::new("64M".parse()?))?.map()?;
    let loan = memory.loan();
    println!("loan {}: {} of {} were ready", loan.id(), loan.ready_bytes(), loan.bytes());
    work(&mut memory)
}

/// The memory is a slice of bytes, and zero.
fn work(memory: &mut [u8]) -> Result<(), Box<dyn Error>> {
    if memory.iter().any(|byte| *byte != 0) {
        return Err("the memory is not zero".into());
    }
    memory[..5].copy_from_slice(b"hello");
    println!("{} bytes, all zero before \"{}\"", memory.len(), str::from_utf8(&memory[..5])?);
    Ok(())
}
