//! The fields of a body that a server of several models reads before it knows which one parses the body.

use std::borrow::Cow;

use serde::Deserialize;

/// What a body says about its model. A body that is not valid names none; the route that parses it says what is wrong.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NamedModel {
    pub name: Option<String>,
    pub is_stream: bool,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(default)]
    stream: Option<bool>,
}

impl NamedModel {
    pub fn of_body(body: &[u8]) -> Self {
        match serde_json::from_slice::<Fields<'_>>(body) {
            Ok(fields) => {
                Self { name: fields.model.map(Cow::into_owned), is_stream: fields.stream == Some(true) }
            }
            Err(_) => Self::default(),
        }
    }
}
