// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero completions`: what a shell needs to complete this command line.
//!
//! clap knows verbs, flags and fixed values. Objects (loans, names, keys, nodes, page sizes) come
//! from `prezero complete`, which the scripts below ask.

use std::io::Write;

use clap_complete::Shell;

use crate::exit::{Exit, Outcome};

/// Print a shell's completions of this command line
///
/// Packages install them; this is for other installations. They complete loans, names, keys, nodes
/// and page sizes as the daemon has them, and programs and files behind `--`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero completions bash > /etc/bash_completion.d/prezero
  prezero completions zsh > /usr/local/share/zsh/site-functions/_prezero
  prezero completions fish > ~/.config/fish/completions/prezero.fish")]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

/// A verb or a flag, and the kind of objects that it takes.
const VERBS: [(&str, &str); 5] = [
    ("revoke", "leases"),
    ("holders", "leases"),
    ("return", "names"),
    ("loans", "names"),
    ("set", "keys"),
];
const FLAGS: [(&str, &str); 3] =
    [("node", "nodes"), ("page-size", "page-sizes"), ("pool", "pools")];

pub(crate) fn run(args: &Args) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command_line::command(), "prezero", &mut text);
    let mut text = String::from_utf8(text).unwrap_or_default();
    match args.shell {
        Shell::Bash => text += &bash(),
        Shell::Fish => text += &fish(),
        Shell::Zsh => text = zsh(&text),
        _ => {}
    }
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(Exit::Done)
}

fn bash() -> String {
    let flags: String =
        FLAGS.iter().map(|(flag, kind)| format!("        --{flag}) kind={kind} ;;\n")).collect();
    let verbs: String =
        VERBS.iter().map(|(verb, kind)| format!("            {verb}) kind={kind} ;;\n")).collect();
    format!(
        r#"
# Objects by `prezero complete`; behind `--` what the command there takes.
_prezero_objects() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} kind= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${{COMP_WORDS[i]}} == -- ]]; then
            if declare -F _command_offset >/dev/null; then
                _command_offset $((i + 1))
            elif ((COMP_CWORD == i + 1)); then
                mapfile -t COMPREPLY < <(compgen -c -- "$cur")
            else
                mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            fi
            return
        fi
    done
    case $prev in
{flags}        *) case ${{COMP_WORDS[1]}} in
{verbs}        esac ;;
    esac
    if [[ -n $kind && $cur != -* ]]; then
        [[ $kind == keys || $kind == pools ]] && compopt -o nospace 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -W "$(prezero complete "$kind" 2>/dev/null)" -- "$cur")
    else
        _prezero "$@"
    fi
}}
complete -F _prezero_objects -o bashdefault -o default prezero
"#
    )
}

fn fish() -> String {
    let verbs = VERBS.iter().map(|(verb, kind)| {
        let when = format!("__fish_seen_subcommand_from {verb}");
        format!(
            "complete -c prezero -n \"{when}\" -f -a \"(prezero complete {kind} 2>/dev/null)\"\n"
        )
    });
    let flags = FLAGS.iter().map(|(flag, kind)| {
        let when = "not __fish_seen_subcommand_from complete";
        format!("complete -c prezero -n \"{when}\" -l {flag} -x -a \"(prezero complete {kind} 2>/dev/null)\"\n")
    });
    let command = "complete -c prezero -n \"contains -- -- (commandline -opc)\" \
                   -a \"(__fish_complete_subcommand --fcs-skip=3)\"\n";
    verbs.chain(flags).chain([command.to_owned()]).collect()
}

/// clap's script has `_default`, files, for each value that it does not know.
fn zsh(text: &str) -> String {
    let values = [
        (":N:_default", "nodes"),
        (":SIZE:_default", "page-sizes"),
        (":FIELD=VALUE,...:_default", "pools"),
        ("::lease", "leases"),
        (":lease", "leases"),
        (":name", "names"),
        ("::prefix", "names"),
        ("*::changes", "keys"),
    ];
    let line = |line: &str| {
        let is_flag = |flag: &str| line.trim_start().trim_start_matches('\'').starts_with(flag);
        let known = values.iter().find(|(value, _)| match value.strip_suffix(":_default") {
            Some(_) => {
                let flags = ["--node=", "--page-size=", "*--pool="];
                line.contains(value) && flags.iter().any(|flag| is_flag(flag))
            }
            None => is_flag(value) && line.contains(":_default"),
        });
        match known {
            Some((_, kind)) => {
                let objects = format!(":{{_prezero_objects {kind}}}");
                line.replacen(":_default", &objects, 1)
            }
            None => line.to_owned(),
        }
    };
    let objects = "\n_prezero_objects() {\n    local -a words\n    \
                   words=(${(f)\"$(prezero complete $1 2>/dev/null)\"})\n    \
                   compadd -S '' -a words\n}\n";
    let body: Vec<_> = text.lines().map(line).collect();
    let body = body.join("\n") + "\n";
    // The function has to be there before the script calls itself in its last lines.
    match body.find("\nif [ \"$funcstack[1]\"") {
        Some(at) => format!("{}{objects}{}", &body[..at], &body[at..]),
        None => body + objects,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(shell: Shell) -> String {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut crate::command_line::command(), "prezero", &mut text);
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn every_object_is_completed_in_zsh() {
        let text = zsh(&script(Shell::Zsh));
        for (_, kind) in VERBS.iter().chain(&FLAGS) {
            assert!(text.contains(&format!(":{{_prezero_objects {kind}}}")), "{kind}: {text}");
        }
        assert!(text.contains("_prezero_objects() {"));
    }

    #[test]
    fn objects_are_of_verbs_and_flags_that_there_are() {
        let command = crate::command_line::command();
        for (verb, _) in VERBS {
            assert!(command.find_subcommand(verb).is_some(), "{verb}");
        }
        for (flag, _) in FLAGS {
            let has = |verb: &clap::Command| {
                verb.get_arguments().any(|argument| argument.get_long() == Some(flag))
            };
            assert!(command.get_subcommands().any(has), "{flag}");
        }
    }
}
