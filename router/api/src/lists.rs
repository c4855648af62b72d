//! Lists of bounded length in a body, including lists that a string can replace.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use super::forms::{Schemas, add, list_of, named, one_of};

/// An item of a bounded list.
pub trait Listed {
    /// The most items that a list may have.
    const LIMIT: usize;
    /// The plural noun for the items in errors.
    const NAMES: &'static str;
}

/// A string or a list of items.
#[derive(Debug, Clone, PartialEq)]
pub enum TextOrList<T> {
    Text(String),
    List(Vec<T>),
}

impl<T> TextOrList<T> {
    /// Returns the number of items in the list, or 0 for a string.
    pub fn num_listed(&self) -> usize {
        match self {
            Self::Text(_) => 0,
            Self::List(list) => list.len(),
        }
    }
}

impl<T> Default for TextOrList<T> {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl<'de, T: Listed + Deserialize<'de>> Deserialize<'de> for TextOrList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrListVisitor(PhantomData))
    }
}

impl<T: ToSchema> PartialSchema for TextOrList<T> {
    fn schema() -> RefOr<Schema> {
        one_of([String::schema(), list_of(named::<T>())])
    }
}

impl<T: ToSchema> ToSchema for TextOrList<T> {
    fn name() -> Cow<'static, str> {
        format!("TextOr{}List", T::name()).into()
    }

    fn schemas(schemas: &mut Schemas) {
        add::<T>(schemas);
    }
}

/// Deserializes a list without the string alternative, for `#[serde(deserialize_with)]`.
pub fn list<'de, T: Listed + Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(ListVisitor(PhantomData))
}

/// Like [`list`], of a list that may be null.
pub fn optional_list<'de, T: Listed + Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let list = Option::<Bounded<T>>::deserialize(deserializer)?;
    Ok(list.map(|Bounded(items)| items).unwrap_or_default())
}

struct Bounded<T>(Vec<T>);

impl<'de, T: Listed + Deserialize<'de>> Deserialize<'de> for Bounded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        list(deserializer).map(Self)
    }
}

struct TextOrListVisitor<T>(PhantomData<T>);

impl<'de, T: Listed + Deserialize<'de>> Visitor<'de> for TextOrListVisitor<T> {
    type Value = TextOrList<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a string or a list of {}", T::NAMES)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOrList::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(TextOrList::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        ListVisitor(PhantomData).visit_seq(list).map(TextOrList::List)
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Listed + Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a list of {}", T::NAMES)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            if items.len() == T::LIMIT {
                return Err(Error::custom(format_args!("has more than {} {}", T::LIMIT, T::NAMES)));
            }
            items.push(item);
        }
        Ok(items)
    }
}
