// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several configuration files as one: the main file, and its drop-ins in their order.
//!
//! A later file goes over an earlier one, key by key, also within tables. Lists are replaced as a
//! whole. `[[pool]]` and `[[reserve]]` are lists of tables that belong together: those of a later
//! file replace the earlier ones of the same node and page size, and leave the others.

use toml::{Table, Value};
use units::PageSize;

use super::{Config, ConfigError, reading};

/// Lists in which tables of one node and page size belong together.
const LISTS: [&str; 2] = ["pool", "reserve"];

/// A file that is at fault, by its place in the list, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFault {
    /// Its place.
    pub file: usize,
    /// What is wrong with it, alone or over the files before it.
    pub why: ConfigError,
}

impl Config {
    /// The texts of several files as the text of one, each over those before it.
    ///
    /// # Errors
    /// The first file that is wrong, or makes wrong what the files before it said.
    pub fn merge(texts: &[String]) -> Result<String, FileFault> {
        let mut all = Table::new();
        for (file, text) in texts.iter().enumerate() {
            let at_fault = |why| FileFault { file, why };
            let in_file = |error| at_fault(reading::in_file(text, &error));
            // Unknown keys and wrong values first: they are reported by line.
            let _: Self = toml::from_str(text).map_err(in_file)?;
            put_over(&mut all, toml::from_str(text).map_err(in_file)?);
            let merged: Self = all.clone().try_into().map_err(in_file)?;
            merged.check().map_err(at_fault)?;
        }
        match texts {
            // One file keeps its lines.
            [text] => Ok(text.clone()),
            _ => Ok(all.to_string()),
        }
    }
}

fn put_over(all: &mut Table, file: Table) {
    for (key, value) in file {
        match (all.get_mut(&key), value) {
            (Some(Value::Table(earlier)), Value::Table(later)) => put_over(earlier, later),
            (Some(Value::Array(earlier)), Value::Array(later)) if LISTS.contains(&key.as_str()) => {
                earlier.retain(|one| !later.iter().any(|other| place(one) == place(other)));
                earlier.extend(later);
            }
            (_, value) => {
                all.insert(key, value);
            }
        }
    }
}

/// The node and page size of a table.
fn place(table: &Value) -> (Option<i64>, Option<PageSize>) {
    let size = table.get("page_size").and_then(Value::as_str);
    (table.get("node").and_then(Value::as_integer), size.and_then(|size| size.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merge(texts: &[&str]) -> Result<Config, (usize, String)> {
        let texts: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
        let merged = Config::merge(&texts).map_err(|fault| (fault.file, fault.why.to_string()))?;
        Ok(Config::from_toml(&merged).expect("what was merged is good"))
    }

    const MAIN: &str = r#"
        quota = "1G"
        [workers]
        max = 2
        cpus = "0-1"
        [metrics]
        listen = "127.0.0.1:9464"
        hosts = ["a", "b"]
        [[pool]]
        page_size = "2M"
        ready = "4G"
        [[pool]]
        node = 1
        page_size = "1G"
        ready = "8G"
    "#;

    // Promise P392 (operator): Drop-ins go over the main file in the order of their names, and a
    // wrong one is named.
    #[test]
    fn later_files_go_over_earlier_ones() {
        assert_eq!(merge(&[MAIN]), Ok(Config::from_toml(MAIN).unwrap()));
        let site = "lend_group = \"kvm\"\n[workers]\nmax = 8\n[metrics]\nhosts = [\"c\"]\n";
        let host =
            "quota = \"2G\"\n[[pool]]\npage_size = \"2MiB\"\nready = \"6G\"\nleave_free = \"1G\"\n";
        let all = merge(&[MAIN, site, host]).unwrap();
        assert_eq!((all.workers.max, all.workers.cpus.as_deref()), (8, Some("0-1")));
        assert_eq!(all.quota.map(|quota| quota.0), Some(2 << 30));
        assert_eq!(all.metrics.hosts, ["c"]);
        let pools: Vec<_> = all.pools.iter().map(|p| (p.page_size, p.ready_high.0)).collect();
        assert_eq!(pools, [(PageSize::GIB_1, 8), (PageSize::MIB_2, 3072)]);
        assert_eq!(merge(&[]), Ok(Config::default()));
    }

    #[test]
    fn file_at_fault_is_named() {
        for (texts, file, says) in [
            (&[MAIN, "workers.max = 1\nquotta = 1"][..], 1, "line 2: `quotta` is no key"),
            (&[MAIN, "", "[workers]\nmax = \"x\""], 2, "line 2: `x` is not"),
            (&["quota = ", ""], 0, "line 1"),
            (&[MAIN, "[workers]\npause_above_pressure = 101"], 1, "101"),
            // Each is good alone.
            (
                &[
                    MAIN,
                    "[[pool]]\nnode = 1\npage_size = \"1G\"\nready = 1\n[[pool]]\nnode = 1\n\
                          page_size = \"1G\"\nready_high = 2",
                ],
                1,
                "`ready` is for blocks of all sizes",
            ),
        ] {
            let (at, why) = merge(texts).unwrap_err();
            assert!(at == file && why.contains(says), "{texts:?}: {at}: {why}");
        }
    }
}
