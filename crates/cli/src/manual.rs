// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero man`: the manual pages of a command line, for packages. Hidden: who builds a package
//! runs it, through `cargo xtask man`. The laboratory has the same verb for its own.

use std::io::Write as _;
use std::path::PathBuf;

use clap::Command;
use clap_mangen::Man;

use crate::environment::{self, Variable};
use crate::exit::{self, Exit, Outcome};

/// Write the manual pages of this command line, prezero.1, prezero-serve.1 and so on
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero man target/man")]
pub struct Args {
    /// Where to; made if it is missing
    dir: PathBuf,
}

impl Args {
    /// Writes a page for the command and each of its verbs with a name that `wanted` accepts.
    ///
    /// # Errors
    /// Those of the files.
    pub fn write(&self, command: Command, wanted: impl Fn(&str) -> bool) -> Outcome {
        std::fs::create_dir_all(&self.dir)?;
        let mut command = command.disable_help_subcommand(true);
        command.build();
        let root = Some(&command).filter(|root| wanted(root.get_name()));
        let verbs = command.get_subcommands().filter(|verb| wanted(verb.get_name()));
        for page in root.into_iter().chain(verbs.flat_map(with_subcommands)) {
            if !page.is_hide_set() {
                let path = self.dir.join(Man::new(page.clone()).get_filename());
                std::fs::write(path, render(page)?)?;
            }
        }
        Ok(Exit::Done)
    }
}

/// A verb and its verbs: `prezero-module.1` names `prezero-module-load.1`.
fn with_subcommands(verb: &Command) -> Vec<&Command> {
    std::iter::once(verb).chain(verb.get_subcommands().flat_map(with_subcommands)).collect()
}

/// One page. What clap_mangen writes of a command's arguments and text, with what it lacks: a
/// synopsis with `--`, examples that can be copied, exit codes, variables of the environment.
fn render(page: &Command) -> std::io::Result<Vec<u8>> {
    let man = Man::new(page.clone().after_help("").after_long_help(""));
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    let usage = page.clone().render_usage().to_string();
    section(&mut out, "SYNOPSIS")?;
    literal(&mut out, usage.trim_start_matches("Usage: "))?;
    man.render_description_section(&mut out)?;
    if page.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut out)?;
    }
    if page.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    let after = page.get_after_help().map(ToString::to_string).unwrap_or_default();
    for paragraph in after.split("\n\n") {
        let (heading, text) = paragraph.split_once('\n').unwrap_or(("", paragraph));
        match heading {
            "Examples:" => section(&mut out, "EXAMPLES")?,
            // The same for all, below.
            "Exit codes:" => continue,
            other => section(&mut out, &other.trim_end_matches(':').to_uppercase())?,
        }
        literal(&mut out, text)?;
    }
    let mut variables: Vec<_> = page
        .get_arguments()
        .filter_map(|argument| {
            let (name, flag) = (argument.get_env()?, argument.get_long()?);
            Some(format!("{:<20} the default of --{flag}", name.display()))
        })
        .collect();
    if page.get_name() == "prezero" {
        let row = |row: &Variable| format!("{:<24} {}", row.name, row.meaning);
        variables = environment::TABLE.iter().map(row).collect();
    }
    if !variables.is_empty() {
        section(&mut out, "ENVIRONMENT")?;
        literal(&mut out, &variables.join("\n"))?;
    }
    section(&mut out, "EXIT STATUS")?;
    literal(&mut out, exit::TABLE.trim_start_matches("Exit codes:\n"))?;
    section(&mut out, "SEE ALSO")?;
    let others = if page.get_name() == "prezero" { "" } else { "prezero(1), " };
    literal(&mut out, &format!("{others}prezero.toml(5), libprezero(3)"))?;
    Ok(out)
}

fn section(out: &mut Vec<u8>, name: &str) -> std::io::Result<()> {
    writeln!(out, ".SH {name}")
}

/// Text as it stands: not filled, not hyphenated, with signs that can be copied.
fn literal(out: &mut Vec<u8>, text: &str) -> std::io::Result<()> {
    writeln!(out, ".nf")?;
    for line in text.lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        // A line that begins with a dot is a request.
        let dot = if line.starts_with('.') { "\\&" } else { "" };
        writeln!(out, "{dot}{line}")?;
    }
    writeln!(out, ".fi")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of a verb.
    fn page(verb: &str) -> String {
        let mut command = crate::command_line::command().disable_help_subcommand(true);
        command.build();
        let page = command.get_subcommands().find(|page| page.get_name() == verb).unwrap();
        String::from_utf8(render(page).unwrap()).unwrap()
    }

    // Promise P131 (operator): Manual pages have a synopsis with `--`, examples as they are typed,
    // exit codes and variables.
    #[test]
    fn manual_page_has_dashed_synopsis_and_typed_examples() {
        let lend = page("lend");
        let of = |name: &str| {
            let (_, rest) = lend.split_once(&format!(".SH {name}\n.nf\n")).expect(name);
            rest.split(".fi").next().unwrap().replace("\\-", "-").replace("\\e", "\\")
        };
        assert!(of("SYNOPSIS").contains("-- <CMD>..."), "{lend}");
        let help = crate::command_line::command()
            .find_subcommand("lend")
            .unwrap()
            .get_after_help()
            .unwrap()
            .to_string();
        let (_, examples) = help.split_once("Examples:\n").unwrap();
        assert_eq!(of("EXAMPLES").trim_end(), examples.trim_end());
        assert!(of("ENVIRONMENT").contains("PREZERO_SOCKET") && of("EXIT STATUS").contains("127"));
    }
}
