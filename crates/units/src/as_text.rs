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

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error as ReadError, StrDeserializer, U64Deserializer};

    use super::*;
    use crate::PageSize;

    struct Written(Bytes);

    impl fmt::Display for Written {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            serialize(&self.0, f)
        }
    }

    #[test]
    fn a_size_is_written_as_text_and_read_from_text_or_number() {
        let from_text = |text: &'static str| {
            let text: StrDeserializer<'_, ReadError> = text.into_deserializer();
            deserialize::<PageSize, _>(text)
        };
        let from_number = |number: u64| {
            let number: U64Deserializer<ReadError> = number.into_deserializer();
            deserialize::<PageSize, _>(number)
        };
        for page in [PageSize::KIB_4, PageSize::MIB_2, PageSize::GIB_1] {
            assert_eq!(from_number(page.bytes()), Ok(page));
        }
        assert_eq!(from_text("2M"), Ok(PageSize::MIB_2));
        assert_eq!(Written(Bytes(2 << 20)).to_string(), "2M");
        let refused = from_text("3M").expect_err("no power of two").to_string();
        assert!(refused.contains("`3M` is not a page size"), "{refused}");
        from_number(3).expect_err("no power of two");
    }
}
