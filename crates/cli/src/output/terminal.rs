// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The terminal: its width, its character set, and its end.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::tcgetwinsize;
use worker::Stop;

use crate::exit::Exit;

/// The width of a terminal that does not report one.
const DEFAULT_COLUMNS: usize = 80;

thread_local! {
    /// The width that records are printed for; `None` where lines may be of any width.
    static COLUMNS: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The width that records are printed for. Files and pipes get lines of any width.
pub(crate) fn columns() -> Option<usize> {
    COLUMNS.get()
}

/// Prints for a terminal of that width.
pub(crate) fn with_columns<T>(columns: Option<usize>, print: impl FnOnce() -> T) -> T {
    let before = COLUMNS.replace(columns);
    let printed = print();
    COLUMNS.set(before);
    printed
}

/// The width of a file that is a terminal.
pub(crate) fn columns_of(output: &(impl AsFd + IsTerminal)) -> Option<usize> {
    if !output.is_terminal() {
        return None;
    }
    let columns = tcgetwinsize(output).map_or(0, |size| usize::from(size.ws_col));
    Some(if columns == 0 { DEFAULT_COLUMNS } else { columns })
}

/// Whether the locale has characters beyond ASCII.
pub(crate) fn is_utf8() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    locale.is_some_and(|locale| is_utf8_locale(&locale))
}

fn is_utf8_locale(locale: &OsStr) -> bool {
    let name = locale.as_bytes().to_ascii_lowercase();
    name.ends_with(b".utf-8") || name.ends_with(b".utf8") || has_modifier(&name)
}

/// As in `de_DE.utf8@euro`.
fn has_modifier(name: &[u8]) -> bool {
    let end = name.iter().position(|byte| *byte == b'@');
    end.is_some_and(|end| name[..end].ends_with(b".utf-8") || name[..end].ends_with(b".utf8"))
}

/// The sign for text that was cut.
pub(crate) fn ellipsis() -> char {
    if is_utf8() { '\u{2026}' } else { '~' }
}

/// What a terminal has for its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// Nothing yet.
    None,
    /// Keys.
    Some,
    /// It is gone.
    Ended,
}

/// Waits for keys, a signal, or the end of the terminal behind `file`.
pub(crate) fn wait_for_input(file: impl AsFd, timeout: Duration) -> io::Result<Input> {
    let mut input = [PollFd::new(&file, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(&mut input, Some(&timeout)) {
        Ok(0) | Err(Errno::INTR) => Ok(Input::None),
        Ok(_) if input[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) => Ok(Input::Ended),
        Ok(_) => Ok(Input::Some),
        Err(error) => Err(error.into()),
    }
}

/// Does `ended` on a thread of its own once the terminal behind `file` is gone. Other files do not
/// end.
pub(crate) fn at_end_of(file: impl AsFd, ended: impl FnOnce() + Send + 'static) {
    if !file.as_fd().is_terminal() {
        return;
    }
    let Ok(terminal) = file.as_fd().try_clone_to_owned() else { return };
    thread::spawn(move || {
        // Without events poll(2) reports the end alone.
        while let Err(error) = poll(&mut [PollFd::new(&terminal, PollFlags::empty())], None) {
            if error != Errno::INTR {
                return;
            }
        }
        ended();
    });
}

/// Asks to stop once the terminal that this process prints to is gone.
pub(crate) fn stop_at_end_of_output(stop: &Stop) {
    let stop = stop.clone();
    at_end_of(io::stdout(), move || stop.hang_up());
}

/// Ends this process once the terminal that it prints to is gone.
pub(crate) fn end_with_output() {
    at_end_of(io::stdout(), || signal_hook::low_level::exit(Exit::HungUp as i32));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locales_of_utf8_are_known_in_every_spelling() {
        for locale in ["C.UTF-8", "de_DE.utf8", "en_GB.UTF8", "sr_RS.utf8@latin"] {
            assert!(is_utf8_locale(OsStr::new(locale)), "{locale}");
        }
        for locale in ["C", "POSIX", "de_DE.ISO-8859-1", "de_DE@euro", ""] {
            assert!(!is_utf8_locale(OsStr::new(locale)), "{locale}");
        }
    }

    #[test]
    fn width_is_that_of_the_printing_alone() {
        assert_eq!(with_columns(Some(40), columns), Some(40));
        assert_eq!(columns(), None);
    }
}
