// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Single keys over a configuration file, as `workers.max=4`: the file's own keys are the one
//! definition of what can be said.

use std::str::FromStr;

use toml::{Table, Value};

use super::{Config, ConfigError, reading};

/// One key, and the value that it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// As in the file, with the sections before it: `["workers", "max"]`.
    path: Vec<String>,
    value: String,
}

impl FromStr for Set {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| format!("`{text}`: write KEY=VALUE, as in workers.max=4"))?;
        let path: Vec<_> = key.trim().split('.').map(str::to_owned).collect();
        if path.iter().any(String::is_empty) {
            return Err(format!("`{key}` is no key: write SECTION.KEY, as in workers.max"));
        }
        Ok(Self { path, value: value.trim().to_owned() })
    }
}

impl Set {
    /// The key as it is written.
    #[must_use]
    pub fn key(&self) -> String {
        self.path.join(".")
    }

    /// Puts the value into `table`, with the sections that are missing.
    fn put(&self, table: &mut Table, value: Value) -> Result<(), ConfigError> {
        let (last, sections) = self.path.split_last().expect("a key has a name");
        let mut table = table;
        for section in sections {
            let inner = table.entry(section.clone()).or_insert_with(|| Table::new().into());
            let Value::Table(inner) = inner else {
                return Err(ConfigError::Syntax(format!(
                    "{}: `{section}` has no keys",
                    self.key()
                )));
            };
            table = inner;
        }
        table.insert(last.clone(), value);
        Ok(())
    }
}

impl Config {
    /// Reads a configuration file's text with some keys over it, the last one where a key is given
    /// twice. A value is written as in the file; the quotes around text may be left away.
    ///
    /// Unlike [`Config::from_toml`] it does not check what concerns several keys: see
    /// [`Config::check`].
    ///
    /// # Errors
    /// [`ConfigError::Syntax`], naming the place in the file, or the key.
    pub fn from_toml_and(text: &str, set: &[Set]) -> Result<Self, ConfigError> {
        // The file alone, first: its errors are reported by line.
        let in_file = |error| reading::in_file(text, &error);
        let mut config: Self = toml::from_str(text).map_err(in_file)?;
        let mut table: Table = toml::from_str(text).map_err(in_file)?;
        for one in set {
            // Whether the value is of another type than the key's, and the whole refusal.
            let refused = |error: toml::de::Error| {
                let why = reading::plain(error.message());
                let refusal = ConfigError::Syntax(format!("{}={}: {why}", one.key(), one.value));
                (reading::is_of_other_type(&error), refusal)
            };
            let attempt = |value: Value| {
                let mut with = table.clone();
                one.put(&mut with, value).map_err(|error| (false, error))?;
                let config: Self = with.clone().try_into().map_err(refused)?;
                Ok((with, config))
            };
            // `lend_group=1000` is text to the file and a number as it is written. Where it is good
            // as neither, the reason that says more than another type is told.
            let text = attempt(Value::String(one.value.clone()));
            let best = match literal(&one.value).map(attempt) {
                Some(Ok(done)) => Ok(done),
                Some(Err((false, error))) => text.or(Err((false, error))),
                _ => text,
            };
            let (with, new) = best.map_err(|(_, error)| error)?;
            (table, config) = (with, new);
        }
        Ok(config)
    }
}

/// The value as the file's syntax has it, if it is one.
fn literal(text: &str) -> Option<Value> {
    let mut table: Table = toml::from_str(&format!("value = {text}")).ok()?;
    table.remove("value").filter(|_| table.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(words: &[&str]) -> Vec<Set> {
        words.iter().map(|word| word.parse().expect("KEY=VALUE")).collect()
    }

    const FILE: &str = r#"
        quota = "1G"
        quota_of = { 7 = "2G" }
        [workers]
        max = 3
        cpus = "0-1"
        [[pool]]
        page_size = "1G"
    "#;

    #[test]
    fn every_kind_of_value_says_the_same_as_in_the_file() {
        let words = [
            "provider=stock",
            "lend_group=kvm",
            "zero_group=1000",
            "quota=64G",
            "quota_of.1000=8G",
            "quota_of.1001=4096",
            "workers.max=4",
            "workers.cpus=0-3",
            "workers.nice=-5",
            "workers.sched_idle=false",
            "workers.cgroup=/a",
            "workers.pause_above_pressure=40",
            "tree.enabled=true",
            "tree.path=\"/run/zero\"",
            "tree.mode=0o660",
            "metrics.listen=[::1]:9464",
        ];
        let file = r#"
            provider = "stock"
            lend_group = "kvm"
            zero_group = "1000"
            quota = "64G"
            quota_of = { 1000 = "8G", 1001 = "4096" }
            [workers]
            max = 4
            cpus = "0-3"
            nice = -5
            sched_idle = false
            cgroup = "/a"
            pause_above_pressure = 40
            [tree]
            enabled = true
            path = "/run/zero"
            mode = 0o660
            [metrics]
            listen = "[::1]:9464"
        "#;
        assert_eq!(Config::from_toml_and("", &set(&words)), Config::from_toml(file));
    }

    #[test]
    fn clearer_of_two_refusals_of_a_value_is_reported() {
        // A number is no group, and neither is a list: the text that it may be, is.
        let config = Config::from_toml_and("", &set(&["lend_group=1000"])).expect("a group");
        assert_eq!(config.lend_group.as_deref(), Some("1000"));
        let reported = |word| Config::from_toml_and("", &set(&[word])).unwrap_err().to_string();
        let (number, text) =
            (reported("workers.pause_above_pressure=4000"), reported("workers.max=x"));
        assert!(
            number.ends_with("`4000` is out of range: write a whole number from 0 to 255"),
            "{number}"
        );
        assert_eq!(text, "workers.max=x: `x` is not a whole number from 0 on");
        let neither = reported("workers.max=true");
        assert!(neither.contains("`true` is not"), "as it was written: {neither}");
    }

    #[test]
    fn a_key_goes_over_the_file_and_leaves_the_rest() {
        let config = Config::from_toml_and(FILE, &set(&["quota_of.8=3G", "workers.max=0"]));
        let config = config.expect("good keys");
        assert_eq!((config.workers.max, config.workers.cpus.as_deref()), (0, Some("0-1")));
        assert_eq!((config.quota_of.len(), config.pools.len()), (2, 1));
        assert_eq!(Config::from_toml_and(FILE, &[]), Config::from_toml(FILE));
        let twice = Config::from_toml_and(FILE, &set(&["workers.max=1", "workers.max=2"]));
        assert_eq!(twice.expect("good keys").workers.max, 2);
    }

    #[test]
    fn unknown_key_and_bad_value_are_refused_by_name() {
        for (word, parts) in [
            ("worker.max=1", &["worker.max=1", "did you mean `workers`?"][..]),
            ("workers.maxx=1", &["workers.maxx=1", "did you mean `max`?"]),
            ("workers.few=1", &["workers.few=1", "`few` is no key", "sched_idle"]),
            ("workers.max=many", &["workers.max=many", "a whole number"]),
            ("workers.max=-1", &["workers.max=-1", "`-1` is out of range"]),
            ("quota=much", &["quota=much", "write a number"]),
            ("quota.of=1", &["quota.of", "`quota` has no keys"]),
            ("metrics.listen=9464", &["metrics.listen=9464"]),
            ("max=1\nquota=2", &["max=1"]),
        ] {
            let error = Config::from_toml_and(FILE, &set(&[word])).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{word:?}: {error}");
            }
        }
        for word in ["workers.max", "=1", "workers.=1", ".max=1"] {
            assert!(word.parse::<Set>().is_err(), "{word}");
        }
    }
}
