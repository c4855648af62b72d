//! The fields of a body that a server of several models reads before it knows which one parses the body.

use std::borrow::Cow;

use serde::Deserialize;

/// What a body says about its model. A body that is not valid names none; the route that parses it says what is wrong.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NamedModel {
    pub name: Option<String>,
    /// Whether the body asks for a stream, if it says so.
    pub is_stream: Option<bool>,
}

#[derive(Default, Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(default)]
    stream: Option<bool>,
}

impl NamedModel {
    pub fn of_body(body: &[u8]) -> Self {
        // What is no valid body is refused by the route.
        let fields = serde_json::from_slice::<Fields<'_>>(body).unwrap_or_default();
        Self { name: fields.model.map(Cow::into_owned), is_stream: fields.stream }
    }
}
