//! The fields that say how long a prompt stays in the KV cache.

use std::sync::Arc;

use serde::Deserialize;
use trunkline_scheduler::{CachePriority, Retention};
use utoipa::ToSchema;

use trunkline_base::error::ApiError;

const MAX_KEY_BYTES: usize = 256;
/// The longest time that a prompt can be pinned, in seconds.
pub const MAX_TTL_S: i64 = 24 * 3600;
/// The life of a pin in seconds if the request does not say. Anthropic has the same default.
pub const DEFAULT_TTL_S: i64 = 300;

/// Anthropic's mark: the prompt up to it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
pub struct CacheControl {
    /// The kind of the mark, always `ephemeral`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `5m`, the default, or `1h`.
    pub ttl: Option<String>,
}

impl CacheControl {
    /// Returns the seconds that it asks for. `field` names it in errors.
    pub fn ttl_s(&self, field: &str) -> Result<i64, ApiError> {
        if self.kind != "ephemeral" {
            return Err(ApiError::value(format!("{field}.type"), "must be `ephemeral`"));
        }
        match self.ttl.as_deref() {
            None | Some("5m") => Ok(DEFAULT_TTL_S),
            Some("1h") => Ok(3600),
            Some(_) => Err(ApiError::value(format!("{field}.ttl"), "must be `5m` or `1h`")),
        }
    }
}

/// Our own field for the retention of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
pub struct CacheRetention {
    /// `low`: until anything else of its tenant needs the room, and never on disk. `normal`: while there is room.
    /// `high`: for `ttl_s`, whatever else comes.
    pub priority: String,
    /// Seconds, only with `high`; default 300.
    #[schema(minimum = 1, maximum = 86400)]
    pub ttl_s: Option<i64>,
}

/// A place in the prompt up to which it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breakpoint {
    /// Seconds to keep the prompt.
    pub ttl_s: i64,
    /// Tokens before the mark; `None` for all of the prompt.
    pub num_tokens: Option<u32>,
}

/// The fields that the client sent, not yet checked.
#[derive(Debug, Clone, Default)]
pub struct RawRetention {
    /// OpenAI's grouping of requests: shown in `/v1/kv/tree`. It changes nothing else, as all requests of a tenant
    /// share what they have in common.
    pub prompt_cache_key: Option<String>,
    /// OpenAI's `in_memory` or `24h`.
    pub prompt_cache_retention: Option<String>,
    /// Trunkline's own field, which has precedence over the others.
    pub cache_retention: Option<CacheRetention>,
}

impl RawRetention {
    /// Checks the fields. Our own has precedence over OpenAI's, and that over Anthropic's marks.
    pub fn check(&self) -> Result<Retention, ApiError> {
        if self.prompt_cache_key.as_ref().is_some_and(|key| key.len() > MAX_KEY_BYTES) {
            return Err(ApiError::value("prompt_cache_key", format!("is longer than {MAX_KEY_BYTES} bytes")));
        }
        let ttl_s = match self.prompt_cache_retention.as_deref() {
            None | Some("in_memory" | "in-memory") => None,
            Some("24h") => Some(MAX_TTL_S),
            Some(_) => {
                return Err(ApiError::value("prompt_cache_retention", "must be `in_memory` or `24h`"));
            }
        };
        let mut retention = Retention {
            pinned_ms: ttl_s.map(to_ms),
            group: self.prompt_cache_key.as_deref().map(Arc::from),
            ..Retention::default()
        };
        if let Some(own) = &self.cache_retention {
            retention.pinned_ms = own.ttl_s()?.map(to_ms);
            retention.cache_priority = own.cache_priority();
        }
        Ok(retention)
    }
}

impl CacheRetention {
    fn cache_priority(&self) -> CachePriority {
        if self.priority == "low" { CachePriority::Low } else { CachePriority::Normal }
    }

    fn ttl_s(&self) -> Result<Option<i64>, ApiError> {
        match (self.priority.as_str(), self.ttl_s) {
            ("low" | "normal", None) => Ok(None),
            ("low" | "normal", Some(_)) => {
                Err(ApiError::value("cache_retention.ttl_s", "needs the priority `high`; hint: leave it out"))
            }
            ("high", None) => Ok(Some(DEFAULT_TTL_S)),
            ("high", Some(ttl_s)) => check_ttl_s("cache_retention.ttl_s", ttl_s).map(Some),
            _ => Err(ApiError::value("cache_retention.priority", "must be `low`, `normal` or `high`")),
        }
    }
}

/// Checks the life of a pin in seconds. `field` names it in errors.
pub fn check_ttl_s(field: &str, ttl_s: i64) -> Result<i64, ApiError> {
    if (1..=MAX_TTL_S).contains(&ttl_s) {
        return Ok(ttl_s);
    }
    Err(ApiError::value(field, format!("is {ttl_s}, must be at least 1 and at most {MAX_TTL_S}")))
}

/// Converts seconds that were checked to milliseconds.
pub fn to_ms(seconds: i64) -> u64 {
    seconds.unsigned_abs() * 1_000
}
