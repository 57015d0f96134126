// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program on a terminal of its own.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, Command};

use nix::pty::{OpenptyResult, openpty};
use rustix::termios::{Winsize, tcsetwinsize};

/// A program and the terminal of its session, as of a login shell.
#[derive(Debug)]
pub struct Terminal {
    /// The program.
    pub child: Child,
    master: Option<File>,
}

impl Terminal {
    /// Starts the command on a terminal of that size.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(command: &Command, columns: u16, rows: u16) -> Self {
        let OpenptyResult { master, slave } = openpty(None, None).expect("a terminal");
        let slave = || slave.try_clone().expect("a descriptor");
        // setsid(1) makes a session with the terminal, and goes on as the command.
        let mut leader = Command::new("setsid");
        leader.arg("--ctty").arg(command.get_program()).args(command.get_args());
        leader.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        leader.stdin(slave()).stdout(slave()).stderr(slave()).env("TERM", "xterm-256color");
        rustix::io::fcntl_setfd(&master, rustix::io::FdFlags::CLOEXEC).expect("a descriptor");
        let terminal = File::from(master);
        set_size(&terminal, columns, rows);
        let child = leader.spawn().expect("it starts");
        Self { child, master: Some(terminal) }
    }

    /// The other end: it reads the output of the program, and writes its input.
    ///
    /// # Panics
    /// If the terminal is closed.
    #[must_use]
    pub fn other_end(&self) -> File {
        self.master.as_ref().and_then(|master| master.try_clone().ok()).expect("it is open")
    }

    /// Changes its size.
    pub fn resize(&self, columns: u16, rows: u16) {
        set_size(self.other_end(), columns, rows);
    }

    /// Closes it, as a lost ssh connection does.
    pub fn close(&mut self) {
        drop(self.master.take());
    }
}

fn set_size(terminal: impl AsFd, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("a terminal");
}
