// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sizes by name, as in `{ kvm = "8G" }`: for serde's `with`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serializer, de::Error};
use units::Bytes;

pub(super) fn serialize<S: Serializer>(
    map: &BTreeMap<String, Bytes>,
    s: S,
) -> Result<S::Ok, S::Error> {
    s.collect_map(map.iter().map(|(name, bytes)| (name, bytes.0.to_string())))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<BTreeMap<String, Bytes>, D::Error> {
    let parse = |(name, text): (String, String)| match text.parse() {
        Ok(bytes) => Ok((name, bytes)),
        Err(error) => Err(D::Error::custom(format!("{name}: {error}"))),
    };
    BTreeMap::<String, String>::deserialize(d)?.into_iter().map(parse).collect()
}
