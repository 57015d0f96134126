// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `ready` says: an amount, or from what an amount is to be learnt.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use units::Pages;

use super::Amount;

/// From what a pool learns how much to keep ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadyLearning {
    /// From the loans at that time of the days before.
    Day,
}

/// `"16G"`, or `{ learn = "day", max = "64G" }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ready {
    /// The amount, or the most of it.
    pub(super) amount: Amount,
    pub(super) learns: Option<ReadyLearning>,
}

/// As a table of keys.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LearntReady {
    learn: ReadyLearning,
    max: Amount,
}

impl Serialize for Ready {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.learns {
            Some(learn) => LearntReady { learn, max: self.amount }.serialize(serializer),
            None => self.amount.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Ready {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadyVisitor)
    }
}

struct ReadyVisitor;

impl<'de> Visitor<'de> for ReadyVisitor {
    type Value = Ready;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a number of pages, a size as in \"16G\", or { learn = \"day\", max = \"64G\" }",
        )
    }

    fn visit_u64<E: Error>(self, pages: u64) -> Result<Ready, E> {
        Ok(Ready { amount: Amount::Pages(Pages(pages)), learns: None })
    }

    fn visit_i64<E: Error>(self, pages: i64) -> Result<Ready, E> {
        match u64::try_from(pages) {
            Ok(pages) => self.visit_u64(pages),
            Err(_) => Err(E::invalid_value(serde::de::Unexpected::Signed(pages), &self)),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Ready, E> {
        let amount = text.parse().map(Amount::Bytes).map_err(E::custom)?;
        Ok(Ready { amount, learns: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Ready, A::Error> {
        let LearntReady { learn, max } = LearntReady::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Ready { amount: max, learns: Some(learn) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(ready: &str) -> Result<Config, String> {
        let text = format!("[[pool]]\nnode = 0\npage_size = \"2M\"\nready = {ready}\n");
        Config::from_toml(&text).map_err(|error| error.to_string())
    }

    // Promise P382 (operator): `ready = { learn = "day", max = ... }` is read strictly: a wrong
    // key or word is named with the one that was meant.
    #[test]
    fn learnt_amount_is_read_strictly() {
        let pool = read("{ learn = \"day\", max = \"64G\" }").unwrap().pools.remove(0);
        assert_eq!((pool.ready_high, pool.learns), (Pages(32768), Some(ReadyLearning::Day)));
        assert!(pool.key().is_mixed());
        let written = toml::to_string(&pool).unwrap();
        assert_eq!(toml::from_str(&written), Ok(pool), "{written}");
        assert_eq!(read("16").unwrap().pools[0].learns, None);
        for (text, says) in [
            (
                "{ learn = \"dai\", max = \"64G\" }",
                "line 4: `dai` is no value: did you mean `day`?",
            ),
            ("{ learn = \"week\", max = 1 }", "line 4: `week` is no value: there are day"),
            (
                "{ lern = \"day\", max = \"64G\" }",
                "line 4: `lern` is no key: did you mean `learn`?",
            ),
            ("{ learn = \"day\" }", "line 4: `max` is missing"),
            ("{ max = \"1G\" }", "line 4: `learn` is missing"),
            ("{ learn = \"day\", max = \"3M\" }", "3M is not a whole number of 2M pages"),
            ("{ learn = \"day\", max = \"1G\", min = 1 }", "`min` is no key"),
            ("[1]", "line 4: a list is not a number of pages, a size"),
            ("-1", "line 4: `-1` is out of range"),
            ("true", "line 4: `true` is not a number of pages, a size"),
            ("\"16Q\"", "16Q"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
        let both = "{ learn = \"day\", max = 8 }\nready_high = 1";
        assert!(read(both).unwrap_err().contains("`ready` stands for"));
    }
}
