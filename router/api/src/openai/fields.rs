//! Field types that accept more than one JSON type.

use std::fmt;

use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use super::Usage;
use crate::forms::{list_of, one_of};

/// The most strings that are parsed. Validation has a lower limit with a better error.
const MAX_KEPT_STRINGS: usize = 1024;

/// A string or a list of strings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OneOrMany(pub Vec<String>);

impl PartialSchema for OneOrMany {
    fn schema() -> RefOr<Schema> {
        one_of([String::schema(), list_of(String::schema())])
    }
}

impl ToSchema for OneOrMany {}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor)
    }
}

struct OneOrManyVisitor;

impl<'de> Visitor<'de> for OneOrManyVisitor {
    type Value = OneOrMany;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string or a list of strings")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<OneOrMany, E> {
        Ok(OneOrMany(vec![text.to_owned()]))
    }

    fn visit_unit<E: Error>(self) -> Result<OneOrMany, E> {
        Ok(OneOrMany::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMany, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = list.next_element::<String>()? {
            if texts.len() == MAX_KEPT_STRINGS {
                return Err(Error::invalid_length(MAX_KEPT_STRINGS + 1, &"at most 1024 strings"));
            }
            texts.push(text);
        }
        Ok(OneOrMany(texts))
    }
}

/// A seed: any signed or unsigned 64-bit integer. A negative one is read as its two's complement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SeedVisitor)
    }
}

struct SeedVisitor;

impl Visitor<'_> for SeedVisitor {
    type Value = Seed;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a 64-bit integer")
    }

    fn visit_u64<E: Error>(self, seed: u64) -> Result<Seed, E> {
        Ok(Seed(seed))
    }

    fn visit_i64<E: Error>(self, seed: i64) -> Result<Seed, E> {
        Ok(Seed(seed.cast_unsigned()))
    }

    fn visit_f64<E: Error>(self, seed: f64) -> Result<Seed, E> {
        Err(E::invalid_type(Unexpected::Float(seed), &self))
    }
}

/// The `stream_options` object of a request.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Adds a last chunk with `usage` and no choices.
    pub include_usage: Option<bool>,
    /// With `include_usage`: every chunk from the first token on has the `usage` up to it. Part of vLLM's API.
    pub continuous_usage_stats: Option<bool>,
}

/// The chunks of a stream that have `usage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamUsage {
    /// No chunk has the member.
    None,
    /// The last chunk has it; it is null in the others.
    Last,
    /// Every chunk has it.
    Each,
}

impl StreamUsage {
    pub fn of(options: Option<StreamOptions>) -> Self {
        let options = options.unwrap_or_default();
        match (options.include_usage, options.continuous_usage_stats) {
            (Some(true), Some(true)) => Self::Each,
            (Some(true), _) => Self::Last,
            _ => Self::None,
        }
    }

    /// Returns the member of a chunk that is not the last, with the counts up to it. It is null before the first token.
    pub fn of_chunk(self, so_far: impl FnOnce() -> Usage) -> Option<Option<Usage>> {
        match self {
            Self::None => None,
            Self::Last => Some(None),
            Self::Each => Some(Some(so_far()).filter(|usage| usage.completion_tokens > 0)),
        }
    }
}
