// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The variables of the environment, a row each: for prezero(1) and for the page of the book.

/// The part of prezero that a variable belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Set for a program by `prezero lend`.
    Lent,
    /// Read by the commands and by programs with the library.
    Commands,
    /// Read by the shim; `prezero run` sets it.
    Shim,
}

/// One variable.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// The part that it belongs to.
    pub part: Part,
    /// The option that it stands for; empty for none.
    pub option: &'static str,
    /// Its values and their meaning.
    pub meaning: &'static str,
}

const fn lent(name: &'static str, meaning: &'static str) -> Variable {
    Variable { name, part: Part::Lent, option: "", meaning }
}

const fn read(name: &'static str, option: &'static str, meaning: &'static str) -> Variable {
    Variable { name, part: Part::Commands, option, meaning }
}

const fn shim(name: &'static str, option: &'static str, meaning: &'static str) -> Variable {
    Variable { name, part: Part::Shim, option, meaning }
}

/// All of them.
pub const TABLE: &[Variable] = &[
    lent("PREZERO_PATH", "the memory's path, `/proc/self/fd/N`; `{path}` in arguments"),
    lent("PREZERO_FD", "its descriptor; `{fd}` in arguments"),
    lent("PREZERO_BYTES", "its size; `{bytes}` in arguments"),
    lent("PREZERO_PAGE_BYTES", "its page size"),
    lent("PREZERO_KEPT", "1 if the content is the owner's own, else 0"),
    lent("PREZERO_LEASE_FD", "the lease; the loan lasts until its last duplicate closes"),
    read("PREZERO_SOCKET", "--socket", "the daemon's socket; default `/run/prezero/io.prezero`"),
    read(
        "PREZERO_AGENT_SOCKET",
        "--agent-socket",
        "the agents' socket; default the other one's path with `.agent` behind it",
    ),
    read("PREZERO_LOG_LEVEL", "serve --log", "what the daemon logs; default `info`"),
    shim("PREZERO_ONLY", "--only", "serve only programs of these names"),
    shim("PREZERO_PRIVATE", "--private", "1: serve private memory, which forked children lack"),
    shim("PREZERO_SHM", "--shm", "1: serve `shmget(IPC_PRIVATE, SHM_HUGETLB)`"),
    shim(
        "PREZERO_ANONYMOUS",
        "--anonymous",
        "bytes: serve plain shared mappings from that size on",
    ),
    shim("PREZERO_COUNT_READY", "--count-ready", "1: count ready pages in `MemAvailable`"),
    shim("PREZERO_SHIM_LOG", "--log", "a line for each call: a file, or `stderr`"),
    shim("PREZERO_WAIT_MS", "", "timeout for the daemon's answer, 1 to 60000; default 100"),
    shim("PREZERO_PRELOAD", "--preload", "the shim's file, for `run` alone"),
    shim("PREZERO_SECCOMP_FILTERS", "", "set by `run`: the filters that were there before"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }

    // Promise P404 (operator): Each variable of the environment that a program reads or sets is in
    // prezero(1) and in the reference.
    #[test]
    fn each_variable_of_the_sources_has_its_row() {
        let mut files = Vec::new();
        for room in ["cli", "client", "daemon", "lab", "preload", "python", "worker"] {
            let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it lies in crates");
            sources(&crates.join(room).join("src"), &mut files);
        }
        let mut used = BTreeSet::new();
        for file in files {
            let text = fs::read_to_string(&file).expect("a source");
            for rest in text.split("\"PREZERO_").skip(1) {
                let name = rest.split('"').next().expect("a first part");
                let is_name = name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
                // Those of the tests and of the documents' own tests are no interface.
                if is_name && !name.is_empty() && name != "WRITE_DOCS" && !name.starts_with("TEST")
                {
                    used.insert(format!("PREZERO_{name}"));
                }
            }
        }
        let rows: BTreeSet<_> = TABLE.iter().map(|row| row.name.to_owned()).collect();
        assert_eq!(used, rows, "what the sources name, and the rows");
    }
}
