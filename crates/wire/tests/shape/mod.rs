// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shape of a struct, as serde reads it: its fields with their varlink types.
//!
//! A deserializer that has no data asks each type what it expects, and answers with a value that
//! every type takes. A field without which a struct can be read may be left out: `?`.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Value;

/// The types that fields have.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    pub(crate) types: BTreeMap<String, String>,
}

impl Shapes {
    /// The fields of a struct.
    pub(crate) fn fields<T: DeserializeOwned>(&mut self) -> String {
        let found = RefCell::new(Found::default());
        // All fields are read, even where all together are refused: some exclude each other.
        drop(T::deserialize(Shape { found: &found, without: None }));
        let mut found = found.into_inner();
        // It is a method's parameters or its reply, and no type with a name.
        found.types.remove(&found.last);
        self.types.append(&mut found.types);
        let fields = found.last_fields.expect("a struct");
        sorted(fields.into_iter().map(|field| {
            // Which may be left out is not said to a deserializer: it is tried.
            let left_out = RefCell::new(Found::default());
            let shape = Shape { found: &left_out, without: Some(&field.0) };
            let missing = T::deserialize(shape).err().map(|error| error.to_string());
            let optional = !missing.is_some_and(|error| error.starts_with("missing field"));
            assert_eq!(
                optional,
                field.1.starts_with('?'),
                "{}: null or left out, not both",
                field.0
            );
            format!("{}:{}", field.0, field.1)
        }))
    }
}

fn sorted(fields: impl Iterator<Item = String>) -> String {
    let mut fields: Vec<_> = fields.collect();
    fields.sort();
    fields.join(", ")
}

#[derive(Default)]
struct Found {
    types: BTreeMap<String, String>,
    /// The type that was asked for last.
    last: String,
    /// The fields of the struct that was read last.
    last_fields: Option<Vec<(String, String)>>,
}

/// A value of any type.
#[derive(Clone, Copy)]
struct Shape<'a> {
    found: &'a RefCell<Found>,
    /// A field that the outermost struct is read without.
    without: Option<&'a str>,
}

impl Shape<'_> {
    fn is(&self, name: &str) {
        name.clone_into(&mut self.found.borrow_mut().last);
    }

    fn inner(&self) -> Self {
        Self { without: None, ..*self }
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $number:ty,)+) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.is("int");
            // A page size takes no smaller one.
            visitor.$visit(4096)
        })+
    };
}

impl<'de> Deserializer<'de> for Shape<'_> {
    type Error = Error;

    numbers! {
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        panic!("a type that varlink has not")
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.is("bool");
        visitor.visit_bool(true)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.is("string");
        visitor.visit_str("a")
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let value = visitor.visit_some(self.inner())?;
        let inner = format!("?{}", self.found.borrow().last);
        self.is(&inner);
        Ok(value)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let value = visitor.visit_seq(One(Some(self.inner())))?;
        let inner = format!("[]{}", self.found.borrow().last);
        self.is(&inner);
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let value = visitor.visit_enum(Word(words[0]))?;
        // An enumeration of varlink has no word with a hyphen.
        if words.iter().any(|word| word.contains('-')) {
            self.is("string");
        } else {
            self.found.borrow_mut().types.insert(name.to_owned(), words.join(", "));
            self.is(name);
        }
        Ok(value)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let names: Vec<_> = names.iter().filter(|name| self.without != Some(**name)).collect();
        let mut fields = Fields { shape: self.inner(), names: names.into_iter(), seen: Vec::new() };
        let value = visitor.visit_map(&mut fields)?;
        let seen = fields.seen;
        let mut found = self.found.borrow_mut();
        let lines = seen.iter().map(|(name, kind)| format!("{name}:{kind}"));
        found.types.insert(name.to_owned(), sorted(lines));
        found.last_fields = Some(seen);
        name.clone_into(&mut found.last);
        Ok(value)
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u128 f32 f64 char bytes byte_buf unit unit_struct tuple
        tuple_struct map identifier ignored_any
    }
}

struct Fields<'a, N> {
    shape: Shape<'a>,
    names: N,
    seen: Vec<(String, String)>,
}

impl<'de, N: Iterator<Item = &'static &'static str>> MapAccess<'de> for &mut Fields<'_, N> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.names.next() else { return Ok(None) };
        self.seen.push(((*name).to_owned(), String::new()));
        let name: StrDeserializer<'_, Error> = (*name).into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let value = seed.deserialize(self.shape)?;
        let (_, kind) = self.seen.last_mut().expect("its name came before");
        self.shape.found.borrow().last.clone_into(kind);
        Ok(value)
    }
}

struct One<'a>(Option<Shape<'a>>);

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|shape| seed.deserialize(shape)).transpose()
    }
}

struct Word(&'static str);

impl<'de> EnumAccess<'de> for Word {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let word: StrDeserializer<'_, Error> = self.0.into_deserializer();
        Ok((seed.deserialize(word)?, self))
    }
}

impl<'de> VariantAccess<'de> for Word {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, Error> {
        panic!("a word with a value")
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        panic!("a word with values")
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        panic!("a word with fields")
    }
}

/// The name of an error, and its fields: of objects there is one kind, `NamedLoan`.
pub(crate) fn fields_of_error<E: serde::Serialize>(error: &E) -> (String, String) {
    let written = serde_json::to_value(error).expect("it can be written");
    let name = written["error"].as_str().and_then(|name| name.rsplit_once('.')).expect("a name").1;
    let kind = |value: &Value| match value {
        Value::Number(_) => "int",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Object(_) => "NamedLoan",
        _ => panic!("{value}: of which type?"),
    };
    let none = serde_json::Map::new();
    let fields = written["parameters"].as_object().unwrap_or(&none);
    (name.to_owned(), sorted(fields.iter().map(|(name, value)| format!("{name}:{}", kind(value)))))
}
