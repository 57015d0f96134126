// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a call's parameters, and names the one at fault.
//!
//! `serde_json`'s errors are texts. A refusal needs the parameter's name, and whether its type or
//! its value is wrong: so the JSON values are read by a deserializer with an error of its own.

use std::fmt;

use serde::de::value::SeqDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

use crate::Unknown;
use crate::words::did_you_mean;

/// A parameter that the method does not take, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadValue {
    /// The parameter.
    pub field: String,
    /// The error in it and the allowed values.
    pub reason: String,
}

/// Why parameters cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invalid {
    /// The method does not have this parameter, or it is missing, or it has another type.
    Parameter(BadValue),
    /// The parameter's type is right and its value is wrong.
    Value(BadValue),
}

/// Reads a method's parameters.
pub(crate) fn read_parameters<T: DeserializeOwned>(
    parameters: Map<String, Value>,
) -> Result<T, Invalid> {
    T::deserialize(Parameter(Value::Object(parameters))).map_err(|error| match error {
        // Each parameter is right, and together they are not.
        Invalid::Value(_) => error.of("parameters"),
        Invalid::Parameter(_) => error,
    })
}

/// The kind of a JSON value.
fn kind(value: &Unexpected<'_>) -> &'static str {
    match value {
        Unexpected::Bool(_) => "a boolean",
        Unexpected::Unsigned(_) | Unexpected::Signed(_) => "an integer",
        Unexpected::Float(_) => "a number with a fraction",
        Unexpected::Str(_) => "a string",
        Unexpected::Seq => "an array",
        Unexpected::Map => "an object",
        _ => "null",
    }
}

/// A type as varlink calls it.
fn type_name(expected: &dyn Expected) -> String {
    match expected.to_string().as_str() {
        "u8" | "u16" | "u32" | "u64" | "usize" | "i64" => "an integer".to_owned(),
        "a sequence" => "an array".to_owned(),
        other if other.starts_with("struct ") => "an object".to_owned(),
        other => other.to_owned(),
    }
}

impl Invalid {
    fn parameter(field: &str, reason: impl fmt::Display) -> Self {
        Self::Parameter(BadValue { field: field.to_owned(), reason: reason.to_string() })
    }

    /// Adds the name of the parameter, unless a parameter inside it is at fault.
    fn of(mut self, name: &str) -> Self {
        let (Self::Parameter(BadValue { field, .. }) | Self::Value(BadValue { field, .. })) =
            &mut self;
        if field.is_empty() {
            name.clone_into(field);
        }
        self
    }
}

impl std::error::Error for Invalid {}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter(BadValue { field, reason })
            | Self::Value(BadValue { field, reason }) => {
                write!(f, "{field}: {reason}")
            }
        }
    }
}

impl de::Error for Invalid {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self::Value(BadValue { field: String::new(), reason: reason.to_string() })
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::parameter("", format_args!("is {}, and not {}", kind(&found), type_name(expected)))
    }

    fn invalid_value(value: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("{value} is out of the range of {expected}"))
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        Self::custom(Unknown { word: word.to_owned(), known })
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        match did_you_mean(field, known.iter().copied()) {
            Some(meant) => {
                Self::parameter(field, format_args!("is unknown: did you mean `{meant}`?"))
            }
            None if known.is_empty() => Self::parameter(field, "is unknown: the method has none"),
            None => {
                Self::parameter(field, format_args!("is unknown: there are {}", known.join(", ")))
            }
        }
    }

    fn missing_field(field: &'static str) -> Self {
        Self::parameter(field, "is missing")
    }
}

/// One JSON value.
struct Parameter(Value);

impl IntoDeserializer<'_, Invalid> for Parameter {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Parameter {
    type Error = Invalid;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Invalid> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::String(value) => visitor.visit_string(value),
            Value::Array(values) => {
                visitor.visit_seq(SeqDeserializer::new(values.into_iter().map(Parameter)))
            }
            Value::Object(fields) => {
                visitor.visit_map(Fields { rest: fields.into_iter(), next: None })
            }
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, Some(number)) => visitor.visit_i64(number),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Invalid> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Invalid> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Invalid> {
        match self.0 {
            Value::String(word) => visitor.visit_enum(word.into_deserializer()),
            _ => Err(Invalid::parameter("", "is not a string")),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The fields of one JSON object.
struct Fields {
    rest: serde_json::map::IntoIter,
    /// The field with its name read and its value to come next.
    next: Option<(String, Value)>,
}

impl<'de> MapAccess<'de> for Fields {
    type Error = Invalid;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Invalid> {
        self.next = self.rest.next();
        let Some((name, _)) = &self.next else { return Ok(None) };
        seed.deserialize(name.as_str().into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Invalid> {
        let (name, value) = self.next.take().unwrap_or_default();
        seed.deserialize(Parameter(value)).map_err(|error| error.of(&name))
    }
}
