// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans by name: who may have them made, and how much of them there may be.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use units::{Bytes, LoanName};

use super::optional_text;

/// The rights of agents: they lend by name to any user of their choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Agent {
    /// A group, by name or number: its members may lend by name, as root may. They decide where
    /// memory goes, and may end each other's loans. Default: root only.
    pub group: Option<String>,
    /// The most loans by name at a time.
    pub names: usize,
    /// The most bytes that loans of one tenant may hold: what stands before the first `/` of a
    /// name, up to the `@` in it if there is one. Those without a scope together as well. Default:
    /// no bound.
    #[serde(with = "optional_text")]
    pub quota: Option<Bytes>,
    /// Quotas of single tenants, as in `team-a = "8G"`; they override `quota`.
    #[serde(with = "by_scope")]
    pub quota_of: BTreeMap<String, Bytes>,
    /// The most bytes of one whole loan that the daemon zeroes itself, in its own context; a loan
    /// that lacks more is refused.
    #[serde(with = "text")]
    pub fill_max: Bytes,
}

impl Default for Agent {
    fn default() -> Self {
        Self {
            group: None,
            names: 4096,
            quota: None,
            quota_of: BTreeMap::new(),
            fill_max: Bytes(16 << 30),
        }
    }
}

impl Agent {
    /// The most bytes that the loans of a name's tenant may hold.
    #[must_use]
    pub fn quota_for(&self, name: &LoanName) -> Option<Bytes> {
        let own = name.tenant().and_then(|tenant| self.quota_of.get(tenant));
        own.copied().or(self.quota)
    }
}

mod text {
    use super::{Bytes, Deserialize};
    use serde::{Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&bytes.0)
    }
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

mod by_scope {
    use super::super::by_name;
    use super::{BTreeMap, Bytes, LoanName};
    pub(super) use by_name::serialize;
    use serde::{Deserializer, de::Error};

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<BTreeMap<String, Bytes>, D::Error> {
        let map = by_name::deserialize(d)?;
        let is_scope = |name: &&String| {
            let name = name.parse::<LoanName>();
            name.is_ok_and(|name| name.scope().is_none())
        };
        match map.keys().find(|name| !is_scope(name)) {
            None => Ok(map),
            Some(name) => Err(D::Error::custom(format!(
                "quota_of: `{name}` is no tenant: write what stands before the / of its loans' names, \
                 up to the @"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    // Promise P272.
    #[test]
    fn a_scope_has_its_own_quota_or_the_one_of_all() {
        let text = "[agent]\ngroup = \"9\"\nquota = \"2G\"\nquota_of = { team-a = \"8G\" }\nfill_max = \"1G\"";
        let agent = Config::from_toml(text).expect("a good file").agent;
        let quota = |name: &str| agent.quota_for(&name.parse().expect("a name"));
        assert_eq!(quota("team-a/1"), Some(Bytes(8 << 30)));
        assert_eq!(quota("team-a@7f3c/1"), Some(Bytes(8 << 30)), "made anew, it has no other");
        assert_eq!(quota("team-b/1"), Some(Bytes(2 << 30)));
        assert_eq!(quota("team-a"), Some(Bytes(2 << 30)), "it has no scope");
        assert_eq!((agent.names, agent.fill_max), (4096, Bytes(1 << 30)));
        for (text, part) in [
            ("quota_of = { \"a/b\" = \"1G\" }", "a/b"),
            ("quota_of = { \"a@b\" = \"1G\" }", "up to the @"),
            ("quota_of = { a = \"much\" }", "much"),
            ("name = 1", "did you mean `names`?"),
            ("names = -1", "-1"),
        ] {
            let error = Config::from_toml(&format!("[agent]\n{text}")).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
