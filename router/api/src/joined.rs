//! Two texts that an answer writes as one.

use std::sync::Arc;

use serde::{Serialize, Serializer};

/// A text that several outputs of an answer share, such as their prompt, and the text of one output behind it. They are
/// joined only in the JSON text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Joined {
    pub shared: Option<Arc<str>>,
    pub own: String,
}

impl From<&str> for Joined {
    fn from(own: &str) -> Self {
        Self { shared: None, own: own.to_owned() }
    }
}

impl From<String> for Joined {
    fn from(own: String) -> Self {
        Self { shared: None, own }
    }
}

impl Serialize for Joined {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.shared {
            None => serializer.serialize_str(&self.own),
            Some(shared) => serializer.collect_str(&format_args!("{shared}{}", self.own)),
        }
    }
}
