// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How parameters and fields are read that may be null.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Null means the default.
pub(crate) fn or_default<'de, T, D>(d: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Option::deserialize(d).map(Option::unwrap_or_default)
}

/// A duration as whole seconds.
pub(crate) mod seconds {
    use super::*;

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(crate) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(|duration| duration.as_secs()).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::deserialize(d)?.map(Duration::from_secs))
    }
}
