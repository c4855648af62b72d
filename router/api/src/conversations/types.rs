//! The bodies and queries of `/v1/history`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::{MAX_LISTED, MAX_SEARCH_CHARS, MAX_TITLE_CHARS};
use crate::history::{Change, Conversation, Listed, Selection};
use crate::kept_streams::is_id;
use trunkline_base::error::ApiError;
use trunkline_http::{IgnoredFields, OtherFields, parse_noting};

/// The query of a list of conversations.
#[derive(Debug, Deserialize, IntoParams)]
pub struct HistoryQuery {
    /// Lists only conversations whose title, or the `content` of one of whose turns, contains all of these words.
    search: Option<String>,
    /// Lists only conversations after the one with this id, as the next part of a long list.
    after: Option<String>,
    /// The most conversations to list, from 1 to 1,000; the default is 1,000.
    limit: Option<usize>,
}

impl HistoryQuery {
    pub fn selection(self) -> Result<Selection, ApiError> {
        let limit = self.limit.unwrap_or(MAX_LISTED);
        if !(1..=MAX_LISTED).contains(&limit) {
            return Err(ApiError::value("limit", format!("is {limit}, but must be from 1 to {MAX_LISTED}")));
        }
        let search = self.search.unwrap_or_default();
        if search.chars().count() > MAX_SEARCH_CHARS {
            let problem =
                format!("is longer than {MAX_SEARCH_CHARS} characters; hint: search for fewer words");
            return Err(ApiError::value("search", problem));
        }
        let words = search.split_whitespace().map(str::to_owned).collect();
        Ok(Selection { words, after: self.after, limit })
    }
}

/// A change of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub struct HistoryChange {
    /// The title, of at most 200 characters.
    #[schema(max_length = 200)]
    title: Option<String>,
    /// An object in which the client keeps what belongs to no turn. The server does not look into it.
    #[schema(value_type = Option<Object>)]
    details: Option<Box<RawValue>>,
    /// Turns by their ids, each an object; a turn that is null is removed. A search reads the text `content` of a turn,
    /// and the server looks into nothing else.
    #[schema(value_type = HashMap<String, Option<Object>>)]
    #[serde(default)]
    turns: BTreeMap<String, Option<Box<RawValue>>>,
}

impl HistoryChange {
    /// Parses a body. A field that the history has no place for is refused, because its content would be lost.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut unknown = IgnoredFields::default();
        let others = OtherFields { refused: &[], harmless: &[] };
        let parsed = parse_noting(body, others, "", &mut unknown)?;
        if let Some(field) = unknown.names().first() {
            let hint = "a conversation has `title`, `details` and `turns`; put it into `details`";
            return Err(ApiError::UnsupportedField { field: field.clone(), hint });
        }
        if unknown.has_unnamed() {
            let detail = "has a field that is none of `title`, `details` and `turns`".to_owned();
            return Err(ApiError::InvalidBody { detail });
        }
        Ok(parsed)
    }

    pub fn change(self) -> Result<Change, ApiError> {
        if self.title.as_ref().is_some_and(|title| title.chars().count() > MAX_TITLE_CHARS) {
            return Err(ApiError::value("title", format!("is longer than {MAX_TITLE_CHARS} characters")));
        }
        let details = self.details.map(|details| object("details", details)).transpose()?;
        let turn = |(id, body): (String, Option<Box<RawValue>>)| {
            if !is_id(&id) {
                return Err(ApiError::value(
                    "turns",
                    "has an id without 1 to 64 letters, digits, `-` or `_`",
                ));
            }
            let body = body.map(|body| object(&format!("turns.{id}"), body)).transpose()?;
            Ok((id, body))
        };
        let turns = self.turns.into_iter().map(turn).collect::<Result<_, _>>()?;
        Ok(Change { title: self.title, details, turns })
    }
}

fn object(field: &str, value: Box<RawValue>) -> Result<String, ApiError> {
    if value.get().starts_with('{') {
        return Ok(Box::<str>::from(value).into());
    }
    Err(ApiError::InvalidType { field: field.to_owned(), detail: "must be an object".into() })
}

/// A conversation without its turns.
#[derive(Debug, Serialize, ToSchema)]
pub struct ConversationCard {
    id: String,
    /// The object type, always `conversation`.
    object: &'static str,
    title: String,
    /// The time at which it was created, in milliseconds since 1970.
    created_ms: u64,
    /// The time of its last change, in milliseconds since 1970.
    updated_ms: u64,
    /// The bytes that it counts towards `--max-history-bytes`.
    num_bytes: u64,
}

impl From<Listed> for ConversationCard {
    fn from(listed: Listed) -> Self {
        let Listed { id, title, created, updated, num_bytes } = listed;
        Self { id, object: "conversation", title, created_ms: created, updated_ms: updated, num_bytes }
    }
}

/// A list of conversations.
#[derive(Debug, Serialize, ToSchema)]
pub struct ConversationList {
    /// The object type, always `list`.
    pub object: &'static str,
    /// False if the server keeps no history for the caller, because of its settings. The list is empty then, and other
    /// requests answer 404.
    pub enabled: bool,
    /// The conversations, those changed last first.
    pub data: Vec<ConversationCard>,
    /// True if there are more after the last one.
    pub has_more: bool,
}

/// A conversation with its turns.
#[derive(Debug, Serialize, ToSchema)]
pub struct WholeConversation {
    #[serde(flatten)]
    card: ConversationCard,
    /// The object in which the client keeps what belongs to no turn.
    #[schema(value_type = Object)]
    details: Box<RawValue>,
    /// The turns by their ids.
    #[schema(value_type = HashMap<String, Object>)]
    turns: BTreeMap<String, Box<RawValue>>,
}

impl TryFrom<Conversation> for WholeConversation {
    type Error = serde_json::Error;

    fn try_from(whole: Conversation) -> Result<Self, Self::Error> {
        let turn = |(id, body): (String, String)| Ok((id, RawValue::from_string(body)?));
        Ok(Self {
            card: whole.listed.into(),
            details: RawValue::from_string(whole.details)?,
            turns: whole.turns.into_iter().map(turn).collect::<Result<_, serde_json::Error>>()?,
        })
    }
}

/// A conversation that was deleted.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeletedConversation {
    pub id: String,
    /// The object type, always `conversation`.
    pub object: &'static str,
    /// Always true.
    pub deleted: bool,
}
