// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The messages of varlink: a JSON object each, with a zero byte as its end.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::reading::{BadValue, Invalid, read_parameters};
use crate::{Error, Parameters, ServiceError};

/// The byte that ends a message.
pub const END: u8 = 0;

/// A call, as a service reads it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Call {
    /// The method, with its interface before it.
    pub method: String,
    #[serde(default)]
    parameters: Value,
    /// Whether the caller takes several replies.
    #[serde(default)]
    pub more: bool,
    /// Whether the caller takes no reply.
    #[serde(default)]
    pub oneway: bool,
    /// Whether the caller wants another protocol after the reply.
    #[serde(default)]
    pub upgrade: bool,
}

impl Call {
    /// Reads a message without its end.
    ///
    /// # Errors
    /// The message is not JSON, or it is not a call.
    pub fn read(message: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(message)
    }

    /// Its parameters, as those of the method `P`.
    ///
    /// # Errors
    /// [`ServiceError::InvalidParameter`] for a parameter that the method does not have, that is
    /// missing, or that has another type. The interface's own error for a value of the right type
    /// that the method does not take.
    pub fn parameters<P: Parameters>(self) -> Result<P, Refused> {
        let invalid = |parameter, reason| {
            let reason = Some(reason);
            Refused::Service(ServiceError::InvalidParameter { parameter, reason })
        };
        let parameters = match self.parameters {
            Value::Null => Map::new(),
            Value::Object(parameters) => parameters,
            _ => return Err(invalid("parameters".to_owned(), "is no object".to_owned())),
        };
        read_parameters(parameters).map_err(|error| match error {
            Invalid::Parameter(BadValue { field, reason }) => invalid(field, reason),
            Invalid::Value(value) => Refused::Interface(value.into()),
        })
    }
}

/// A refusal: by an error of the method's interface, or by an error of varlink itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Refused {
    /// An error of the interface.
    Interface(Error),
    /// An error of `org.varlink.service`.
    Service(ServiceError),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Interface(error)
    }
}

impl From<ServiceError> for Refused {
    fn from(error: ServiceError) -> Self {
        Self::Service(error)
    }
}

/// A reply, as a client reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply<T> {
    /// What the method returned.
    pub parameters: T,
    /// Whether the service sends another reply to the same call.
    pub continues: bool,
}

#[derive(Serialize)]
struct CallOut<'a, P> {
    method: &'static str,
    parameters: &'a P,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
}

#[derive(Serialize)]
struct ReplyOut<'a, T> {
    parameters: &'a T,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    continues: bool,
}

#[derive(Deserialize)]
struct ReplyIn<'a> {
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    parameters: Option<&'a RawValue>,
    #[serde(default)]
    continues: bool,
}

/// A call of the method `P`. With `more` the client takes several replies.
///
/// # Errors
/// The parameters cannot be written as JSON.
pub fn call<P: Parameters>(parameters: &P, more: bool) -> serde_json::Result<Vec<u8>> {
    message(&CallOut { method: P::NAME, parameters, more })
}

/// A reply. With `continues` others follow.
///
/// # Errors
/// The parameters cannot be written as JSON.
pub fn reply<T: Serialize>(parameters: &T, continues: bool) -> serde_json::Result<Vec<u8>> {
    message(&ReplyOut { parameters, continues })
}

/// A refusal.
///
/// # Errors
/// The refusal cannot be written as JSON.
pub fn refusal(refused: &Refused) -> serde_json::Result<Vec<u8>> {
    message(refused)
}

fn message<T: Serialize>(content: &T) -> serde_json::Result<Vec<u8>> {
    let mut message = serde_json::to_vec(content)?;
    message.push(END);
    Ok(message)
}

/// Reads a reply to a call of `P`, or its refusal, from a message without its end.
///
/// # Errors
/// The message is neither.
pub fn read_reply<P: Parameters>(
    message: &[u8],
) -> serde_json::Result<Result<Reply<P::Reply>, Refused>> {
    let reply: ReplyIn<'_> = serde_json::from_slice(message)?;
    if reply.error.is_some() {
        return serde_json::from_slice(message).map(Err);
    }
    // A reply without parameters means an object without fields.
    let parameters = reply.parameters.map_or("{}", RawValue::get);
    let parameters = serde_json::from_str(parameters)?;
    Ok(Ok(Reply { parameters, continues: reply.continues }))
}
