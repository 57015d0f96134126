// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way out: events to the second serial port, marks to the kernel log.

use std::{
    fs::{self, File},
    io::{self, Write as _},
};

use rustix::termios::{OptionalActions, tcdrain, tcgetattr, tcsetattr};
use vm_guest::{EVENTS, Event, MARK};

pub(crate) struct GuestReport {
    channel: File,
}

impl GuestReport {
    pub(crate) fn open() -> io::Result<Self> {
        let channel = fs::OpenOptions::new().read(true).write(true).open(EVENTS)?;
        // Bytes as they are: no echo, no carriage returns.
        let mut mode = tcgetattr(&channel)?;
        mode.make_raw();
        tcsetattr(&channel, OptionalActions::Now, &mode)?;
        Ok(Self { channel })
    }

    /// Sends one line. A channel that fails cannot be reported on; the harness
    /// sees the stream end.
    pub(crate) fn send(&mut self, event: &Event) {
        let Ok(mut line) = serde_json::to_vec(event) else { return };
        line.push(b'\n');
        if let Err(error) = self.channel.write_all(&line) {
            eprintln!("vm-init: event channel: {error}");
        }
    }

    /// Waits until the port has sent everything.
    pub(crate) fn drain(&mut self) {
        let _ = tcdrain(&self.channel);
    }

    /// Leaves `MARK what name` in the kernel log.
    pub(crate) fn mark(&self, what: &str, name: &str) {
        let line = format!("<5>{MARK} {what} {name}\n");
        if let Err(error) = fs::write("/dev/kmsg", line) {
            eprintln!("vm-init: /dev/kmsg: {error}");
        }
    }
}
