// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `org.varlink.service`: what every varlink service answers about itself.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::methods::method;

/// The interface's name and its definition.
pub const SERVICE: (&str, &str) =
    ("org.varlink.service", include_str!("../org.varlink.service.varlink"));

method!(GetInfo, "org.varlink.service.GetInfo", Info);
method!(
    GetInterfaceDescription,
    "org.varlink.service.GetInterfaceDescription",
    InterfaceDescription
);

/// Asks for the service's name and its interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetInfo {}

/// The service's name and its interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The vendor.
    pub vendor: String,
    /// The product.
    pub product: String,
    /// The product's version.
    pub version: String,
    /// Where to read more.
    pub url: String,
    /// The interfaces that this socket serves.
    pub interfaces: Vec<String>,
}

/// Asks for the definition of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetInterfaceDescription {
    /// The interface.
    pub interface: String,
}

/// The definition of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceDescription {
    /// Its text.
    pub description: String,
}

/// The errors of varlink itself. The connection goes on after each of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "error", content = "parameters")]
pub enum ServiceError {
    /// The socket does not serve the interface.
    #[serde(rename = "org.varlink.service.InterfaceNotFound")]
    InterfaceNotFound {
        /// The interface.
        interface: String,
    },
    /// The interface has no method of that name.
    #[serde(rename = "org.varlink.service.MethodNotFound")]
    MethodNotFound {
        /// The method.
        method: String,
    },
    /// The interface has the method, and the daemon does not carry it out in this way.
    #[serde(rename = "org.varlink.service.MethodNotImplemented")]
    MethodNotImplemented {
        /// The method.
        method: String,
    },
    /// The method has no such parameter, or it is missing, or it has another type.
    #[serde(rename = "org.varlink.service.InvalidParameter")]
    InvalidParameter {
        /// The parameter.
        parameter: String,
        /// The fault in it, and what to write. Other services of varlink do not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

impl std::error::Error for ServiceError {}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InterfaceNotFound { interface } => {
                write!(f, "the daemon does not serve {interface} here")
            }
            Self::MethodNotFound { method } => write!(f, "the daemon has no method {method}"),
            Self::MethodNotImplemented { method } => {
                write!(f, "the daemon does not carry out {method} in this way")
            }
            Self::InvalidParameter { parameter, reason: Some(reason) } => {
                write!(f, "the parameter `{parameter}` {reason}")
            }
            Self::InvalidParameter { parameter, reason: None } => {
                write!(f, "the daemon does not take the parameter `{parameter}`, or misses it")
            }
        }
    }
}
