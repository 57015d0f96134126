// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Serde as text (`"2M"`), for files that people write; messages carry numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serializer, de::Error};

use crate::Bytes;

/// Writes the value as its `Display` text.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<T: fmt::Display, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(value)
}

/// Reads the value from text, or from a plain number of bytes.
///
/// # Errors
/// The value's own message, wrapped by the deserializer.
pub fn deserialize<'de, T, D>(d: D) -> Result<T, D::Error>
where
    T: FromStr,
    T::Err: fmt::Display,
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        Text(String),
    }
    let text = match Either::deserialize(d)? {
        Either::Number(n) => Bytes(n).0.to_string(),
        Either::Text(text) => text,
    };
    text.parse().map_err(D::Error::custom)
}
