// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every command of this program that a document shows is one that it takes, and the page of verbs
//! is the help.
//!
//! Commands are looked for in blocks of code, and between backquotes. Words in capitals stand for
//! values. What the laboratory's verbs take is the laboratory's, and is not looked at here.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;

use crate::command_line::command;
use crate::environment::{self, Part};
use crate::exit;

/// What words in capitals stand for.
const VALUES: &[(&str, &str)] = &[
    ("SIZE", "8G"),
    ("NUMBER", "1"),
    ("PAGES", "1"),
    ("NAME", "a"),
    ("THREAD", "1"),
    ("OWNER", "a"),
    ("TIME", "1m"),
    ("FILE", "file"),
    ("PATH", "path"),
    ("DIR", "dir"),
    ("KEY=VALUE", "ready=8G"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages() -> Vec<PathBuf> {
    let root = root();
    let mut folders = vec![root.join("docs")];
    let mut pages = vec![root.join("README.md"), root.join("crates/python/README.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") && !path.ends_with("verbs.md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// The words of a command as a shell splits them, to its end.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ';' | '|' | '&' | '>' | '<' | '#') if word.is_none() => return words,
            (None, '>') if word.as_ref().is_some_and(|fd| fd.parse::<u32>().is_ok()) => {
                return words;
            }
            (None, ';' | '|' | ')') => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// A command of a page.
struct Shown {
    line: usize,
    words: Vec<String>,
    /// In a sentence, where it may be a part of one.
    is_inline: bool,
}

/// A word with a number for each variable of a shell.
fn expanded(word: &str) -> String {
    let mut parts = word.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push('1');
        text += part.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
    }
    text
}

fn commands(text: &str) -> Vec<Shown> {
    let mut found = Vec::new();
    let mut is_fenced = false;
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let fence = line.trim_start().starts_with("```");
        is_fenced ^= fence;
        let mut shown = Vec::new();
        let is_inline = !(is_fenced && !fence || line.starts_with("    "));
        if (is_fenced && !fence) || line.starts_with("    ") {
            let mut line = line.trim().to_owned();
            while line.ends_with('\\') {
                line.pop();
                let Some((_, next)) = lines.next() else { break };
                line.push_str(next.trim());
            }
            let line = line.trim_start_matches(['$', '#', ' ']);
            let line = line.strip_prefix("sudo ").unwrap_or(line);
            shown.push(line.strip_prefix("time ").unwrap_or(line).to_owned());
        } else if !fence {
            shown.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
        for line in shown.iter().flat_map(|line| line.split("&& ")) {
            if line.starts_with("prezero ") {
                found.push(Shown { line: at + 1, words: words(line), is_inline });
            }
        }
    }
    found
}

#[test]
fn commands_of_documents_are_taken() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        for Shown { line, words, is_inline } in commands(&text) {
            let verb = words.get(1).map_or("", String::as_str);
            let is_verb = command().find_subcommand(verb).is_some();
            // Output of the program, or a verb named without its words.
            if !is_verb || words.len() < 3 || ["bench", "demo", "plan"].contains(&verb) {
                continue;
            }
            seen += 1;
            let value = |word: &String| {
                let stands = VALUES.iter().find(|(name, _)| name == word);
                stands.map_or_else(|| expanded(word), |(_, value)| (*value).to_owned())
            };
            let given: Vec<_> = words.iter().map(value).collect();
            let Err(error) = command().try_get_matches_from(&given) else { continue };
            let is_part = is_inline && error.kind() == ErrorKind::MissingRequiredArgument;
            if error.use_stderr() && !is_part {
                let why = error.to_string();
                let why = why.lines().next().unwrap_or_default().to_owned();
                wrong.push(format!("{}:{line}: {}: {why}", page.display(), words.join(" ")));
            }
        }
    }
    assert!(seen > 60, "only {seen} commands");
    assert!(wrong.is_empty(), "{seen} commands, wrong:\n{}", wrong.join("\n"));
}

const HEAD: &str = "\
# Verbs

The help of each verb, as `prezero VERB --help` prints it. [Commands](commands.md) has them in one
table. The package `prezero-lab` brings `bench`, `demo` and `plan`, which have
their own help.
";

/// The help of a verb and of those below it, under a heading each.
fn write_help(page: &mut String, verb: &clap::Command, name: &str) {
    let verb = verb.clone().mut_args(|argument| argument.hide_env_values(true));
    let help = verb.clone().bin_name(name).term_width(90).render_long_help().to_string();
    let lines: Vec<_> = help.lines().map(str::trim_end).collect();
    let _ = write!(page, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"));
    let below = verb.get_subcommands().filter(|below| below.get_name() != "help");
    below.for_each(|below| write_help(page, below, &format!("{name} {}", below.get_name())));
}

#[test]
fn page_of_verbs_is_the_help() {
    let mut page = HEAD.to_owned();
    for verb in command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let name = verb.get_name();
        if !["bench", "demo", "help", "plan"].contains(&name) {
            write_help(&mut page, verb, &format!("prezero {name}"));
        }
    }
    is_written("verbs", &page);
}

/// That a page of the reference is this text; it is written anew where that is asked for.
fn is_written(name: &str, page: &str) {
    let path = root().join(format!("docs/reference/{name}.md"));
    if std::env::var_os("PREZERO_WRITE_DOCS").is_some() {
        fs::write(&path, page).expect("the page can be written");
        return;
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "{name}.md: write it anew: PREZERO_WRITE_DOCS=1 cargo test -p prezero-cli --lib documents"
    );
}

const ENVIRONMENT: &str = "\
# Environment

The variables that prezero reads, and those that it sets for programs. prezero(1) has the same list.
";

#[test]
fn page_of_the_environment_is_its_table() {
    let mut page = ENVIRONMENT.to_owned();
    for (part, heading, after) in [
        (
            Part::Lent,
            "Set for a program by `prezero lend`",
            "A pod gets `PREZERO_MEM` and `PREZERO_MEM_BYTES` for a request called `mem`.\n",
        ),
        (Part::Commands, "Read by the commands and the libraries", ""),
        (
            Part::Shim,
            "Read by the shim",
            "`prezero run` sets them; `LD_PRELOAD` alone works, too. A malformed value is ignored, and \
             the log\nsays so.\n",
        ),
    ] {
        let has_options = part != Part::Lent;
        let head = if has_options { "variable | option | meaning" } else { "variable | value" };
        let rule = "---|".repeat(head.split('|').count());
        let _ = write!(page, "\n## {heading}\n\n| {head} |\n|{rule}\n");
        for row in environment::TABLE.iter().filter(|row| row.part == part) {
            let code =
                |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
            let option =
                if has_options { format!(" {} |", code(row.option)) } else { String::new() };
            let _ = writeln!(page, "| `{}` |{option} {} |", row.name, row.meaning);
        }
        if !after.is_empty() {
            let _ = write!(page, "\n{after}");
        }
    }
    is_written("environment", &page);
}

const EXIT_CODES: &str = "\
# Exit codes

Every command of prezero ends by one of these codes. Scripts may depend on them.

| code | meaning |
|---|---|
";

const AFTER_EXIT_CODES: &str = "
`lend` and `run` give the command their own place, so any other code is the command's.
[Errors](errors.md) has the code of each refusal, and
[troubleshooting](../guides/troubleshooting.md#a-loan-is-refused) explains the messages.
";

#[test]
fn page_of_the_exit_codes_is_their_table() {
    let mut page = EXIT_CODES.to_owned();
    for line in exit::TABLE.lines() {
        let row = line.trim_start().split_once(' ').filter(|(code, _)| code.parse::<u8>().is_ok());
        if let Some((code, meaning)) = row {
            let _ = writeln!(page, "| {code} | {} |", meaning.trim_start());
        }
    }
    is_written("exit-codes", &(page + AFTER_EXIT_CODES));
}

const ERRORS: &str = "\
# Errors

Each method of the varlink interfaces is refused by one of these errors. Commands print its message
and end by its [exit code](exit-codes.md). The libraries return the error with its fields.
[Interfaces as files](interfaces.md) has the definitions.
";

/// One error of a definition: its comment, and the names and types of its fields.
struct ErrorOf {
    name: String,
    meaning: String,
    fields: Vec<(String, String)>,
}

/// The errors that a file of the interface defines.
fn errors_of(definition: &str) -> Vec<ErrorOf> {
    let mut found = Vec::new();
    let (mut comment, mut lines) = (Vec::new(), definition.lines());
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("# ") {
            comment.push(text);
            continue;
        }
        if let Some((name, _)) = line.strip_prefix("error ").and_then(|rest| rest.split_once(' ')) {
            let inside = lines.by_ref().take_while(|line| !line.starts_with(')'));
            let fields = inside.filter(|line| !line.trim_start().starts_with('#'));
            let field = |line: &str| {
                let (name, kind) = line.trim().trim_end_matches(',').split_once(": ")?;
                Some((name.to_owned(), kind.to_owned()))
            };
            let is_empty = line.ends_with("()");
            let fields = if is_empty { Vec::new() } else { fields.filter_map(field).collect() };
            found.push(ErrorOf { name: name.to_owned(), meaning: comment.join(" "), fields });
        }
        comment.clear();
    }
    found
}

/// The exit code of a command that is refused by it.
fn exit_of(error: &ErrorOf) -> u8 {
    let value = |(name, kind): &(String, String)| {
        let value = match (kind.as_str(), name.as_str()) {
            ("int", "page_bytes") => serde_json::json!(4096),
            ("int", _) => serde_json::json!(1),
            _ => serde_json::json!("a"),
        };
        (name.clone(), value)
    };
    let fields: serde_json::Map<_, _> = error.fields.iter().map(value).collect();
    let name = format!("{}.{}", wire::INTERFACE, error.name);
    let refused = if fields.is_empty() {
        serde_json::json!({ "error": name })
    } else {
        serde_json::json!({ "error": name, "parameters": fields })
    };
    let refused: wire::Error = serde_json::from_value(refused).expect("an error of the interface");
    exit::Failure::from(client::Error::Refused(refused)).exit as u8
}

#[test]
fn page_of_the_errors_is_the_interfaces() {
    let mut page = ERRORS.to_owned();
    let fields = |error: &ErrorOf| {
        let names: Vec<_> = error.fields.iter().map(|(name, _)| format!("`{name}`")).collect();
        names.join(", ")
    };
    let errors = errors_of(wire::DESCRIPTION);
    assert!(errors.len() > 10, "the errors are found");
    page += "\n## io.prezero and io.prezero.agent\n\n| error | exit | meaning | fields |\n|---|---|---|---|\n";
    for error in &errors {
        let (name, exit) = (&error.name, exit_of(error));
        let _ = writeln!(page, "| `{name}` | {exit} | {} | {} |", error.meaning, fields(error));
    }
    page += "\n## org.varlink.service\n\nFor calls that the interface does not have. A command of \
             the daemon's own version causes none.\n\n| error | meaning | fields |\n|---|---|---|\n";
    for error in &errors_of(wire::SERVICE.1) {
        let _ = writeln!(page, "| `{}` | {} | {} |", error.name, error.meaning, fields(error));
    }
    is_written("errors", &page);
}

#[test]
fn commands_end_where_a_shell_ends_them() {
    let text = "`prezero status`\n\n    # prezero lend 4G -- \\\n          ls -l '{path} a'  # why\n\n\
                ```sh\nprezero drain && systemctl stop x\nprezero serve 2> \"$d/log\" &\n```\n";
    let words: Vec<_> = commands(text).iter().map(|shown| shown.words.join(",")).collect();
    let lend = "prezero,lend,4G,--,ls,-l,{path} a";
    assert_eq!(words, ["prezero,status", lend, "prezero,drain", "prezero,serve"]);
    assert_eq!(expanded("slurm/$SLURM_JOB_ID.x"), "slurm/1.x");
}
