//! The `prompt` of `/v1/completions`: one or several prompts, as text or as token ids.

use std::fmt;

use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use crate::forms::{list_of, one_of};

/// The most prompts that are parsed. Validation has a lower limit with a better error.
const MAX_KEPT_PROMPTS: usize = 65_536;

/// A prompt, as text or as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    Text(String),
    TokenIds(Vec<u32>),
}

impl Prompt {
    /// Returns the number of bytes that have to be tokenized or checked.
    pub fn num_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::TokenIds(ids) => size_of_val(&ids[..]),
        }
    }

    pub fn into_text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            Self::TokenIds(_) => None,
        }
    }
}

/// One prompt or several. An empty list is one prompt without tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompts(pub Vec<Prompt>);

impl PartialSchema for Prompts {
    fn schema() -> RefOr<Schema> {
        let token_ids = || list_of(u32::schema());
        one_of([String::schema(), token_ids(), list_of(String::schema()), list_of(token_ids())])
    }
}

impl ToSchema for Prompts {}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor)
    }
}

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, a list of strings, a list of token ids, or a list of such lists")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Prompts, E> {
        Ok(Prompts(vec![Prompt::Text(text)]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
        let first = match list.next_element::<Element>()? {
            None => return Ok(Prompts(vec![Prompt::TokenIds(Vec::new())])),
            Some(Element::Prompt(prompt)) => prompt,
            Some(Element::TokenId(id)) => {
                let mut ids = vec![id];
                while let Some(id) = list.next_element::<u32>()? {
                    ids.push(id);
                }
                return Ok(Prompts(vec![Prompt::TokenIds(ids)]));
            }
        };
        let expected = match first {
            Prompt::Text(_) => "a string like those before it",
            Prompt::TokenIds(_) => "a list of token ids like those before it",
        };
        let mut prompts = vec![first];
        while let Some(element) = list.next_element::<Element>()? {
            if prompts.len() == MAX_KEPT_PROMPTS {
                return Err(Error::invalid_length(MAX_KEPT_PROMPTS + 1, &"at most 65536 prompts"));
            }
            let found = match (element, &prompts[0]) {
                (Element::Prompt(prompt @ Prompt::Text(_)), Prompt::Text(_))
                | (Element::Prompt(prompt @ Prompt::TokenIds(_)), Prompt::TokenIds(_)) => {
                    prompts.push(prompt);
                    continue;
                }
                // The client's text is not repeated.
                (Element::Prompt(Prompt::Text(_)), _) => Unexpected::Other("a string"),
                (Element::Prompt(Prompt::TokenIds(_)), _) => Unexpected::Seq,
                (Element::TokenId(id), _) => Unexpected::Unsigned(id.into()),
            };
            return Err(Error::invalid_type(found, &expected));
        }
        Ok(Prompts(prompts))
    }
}

/// An element of a list. The first one decides whether the list is one prompt or several.
enum Element {
    TokenId(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ElementVisitor;
        impl<'de> Visitor<'de> for ElementVisitor {
            type Value = Element;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a token id, a string or a list of token ids")
            }
            fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
                u32::try_from(id)
                    .map(Element::TokenId)
                    .map_err(|_| E::invalid_value(Unexpected::Unsigned(id), &"a token id"))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Text(text.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = list.next_element::<u32>()? {
                    ids.push(id);
                }
                Ok(Element::Prompt(Prompt::TokenIds(ids)))
            }
        }
        deserializer.deserialize_any(ElementVisitor)
    }
}
