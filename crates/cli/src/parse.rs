// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the words of a command line to arguments, or to one line about their error.

use std::ffi::OsString;
use std::io::Write;

use clap::Parser;
use clap::error::ErrorKind;

use crate::exit::Failure;

/// What the command line says; `None` if it asked for help or the version, which are printed.
pub(crate) fn parse<T: Parser>() -> Result<Option<T>, Failure> {
    parse_words(&std::env::args_os().collect::<Vec<_>>())
}

fn parse_words<T: Parser>(words: &[OsString]) -> Result<Option<T>, Failure> {
    let error = match T::try_parse_from(words) {
        Ok(parsed) => return Ok(Some(parsed)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            write!(std::io::stdout().lock(), "{}", error.render())?;
            Ok(None)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Asked for nothing: the help is the error.
            let _ = write!(std::io::stderr().lock(), "{}", error.render());
            Err(Failure::usage("name a verb"))
        }
        kind => {
            let line = one_line(&error.render().to_string());
            Err(Failure::usage(if kind == ErrorKind::UnknownArgument && lacks_dashes(words) {
                format!("{line}; write `--` before the command")
            } else {
                line
            }))
        }
    }
}

/// Whether it is a verb that runs a command, without what comes before one.
fn lacks_dashes(words: &[OsString]) -> bool {
    let runs = words.get(1).is_some_and(|verb| verb == "lend" || verb == "run");
    runs && !words.iter().any(|word| word == "--")
}

/// Clap explains an error in paragraphs: the first names the error, tips name the allowed words.
fn one_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim);
    let first: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    let first = first.join(" ");
    let mut line = first.strip_prefix("error: ").unwrap_or(&first).to_owned();
    for tip in lines.filter_map(|line| line.strip_prefix("tip: ")) {
        line = format!("{line}; {tip}");
    }
    line
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::command_line::Cli;

    // Promise P130.
    #[test]
    fn command_without_its_dashes_gets_advice() {
        let lacks = |line: &str| lacks_dashes(&line.split(' ').map(Into::into).collect::<Vec<_>>());
        assert!(lacks("prezero lend 1G true") && lacks("prezero run qemu"));
        assert!(!lacks("prezero lend --nodes 1 -- true") && !lacks("prezero zero --nodes"));
    }

    // Promise P226 (years): Words of a command line that are no text are refused in a line, as any
    // others are.
    #[test]
    fn words_that_are_no_text_are_refused_as_any_others() {
        let odd = || OsString::from_vec(b"--\xff".to_vec());
        let error = |words: &[OsString]| parse_words::<Cli>(words).unwrap_err().to_string();
        let said = error(&["prezero".into(), odd()]);
        assert!(said.contains("unexpected argument") && !said.contains('\n'), "{said}");
        let said = error(&["prezero".into(), "lend".into(), "1G".into(), "true".into(), odd()]);
        assert!(said.contains("write `--` before the command"), "{said}");
    }

    #[test]
    fn errors_are_one_line_with_allowed_values() {
        let error = |line: &str| {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            one_line(&error.render().to_string())
        };
        let page_size = error("prezero zero --page-size 3M");
        assert!(page_size.contains("`3M` is not a page size"), "{page_size}");
        let size = error("prezero lend 1.5X -- true");
        assert!(size.contains("write a number with K, M, G or T"), "{size}");
        let missing = error("prezero lend");
        assert!(missing.contains("<SIZE>") && missing.contains("<CMD>"), "{missing}");
        assert!(!missing.contains('\n'));
    }
}
