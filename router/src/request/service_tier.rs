//! Classes of the queue, by the names that clients have for them.
//!
//! | class | OpenAI's `service_tier` | Anthropic's | vLLM's `priority` |
//! |---|---|---|---|
//! | high | `priority` | `auto`, where the key may | below 0 |
//! | normal | `auto`, `default`, `scale` | `standard_only`, `auto` | 0 |
//! | low | `flex` | | above 0 |
//!
//! A tenant gets at most the class that its key file allows it, and the answer says which it got: as with OpenAI,
//! asking for more is no error.

use trunkline_scheduler::Priority;

use crate::error::ApiError;

/// The class that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// This one.
    Class(Priority),
    /// The highest that its tenant may have; normal where there are no keys.
    Best,
}

impl Default for Wanted {
    fn default() -> Self {
        Self::Class(Priority::Normal)
    }
}

impl Wanted {
    /// From OpenAI's field and vLLM's, of which at most one may be sent.
    pub fn from_openai(service_tier: Option<&str>, priority: Option<i64>) -> Result<Self, ApiError> {
        let class = match (service_tier, priority) {
            (Some(_), Some(_)) => {
                let problem = "is sent beside `service_tier`; hint: send one of them";
                return Err(ApiError::value("priority", problem));
            }
            (Some("priority"), None) | (None, Some(i64::MIN..0)) => Priority::High,
            (Some("auto" | "default" | "scale"), None) | (None, None | Some(0)) => Priority::Normal,
            (Some("flex"), None) | (None, Some(1..)) => Priority::Low,
            (Some(_), None) => {
                let problem = "must be `auto`, `default`, `flex` or `priority`";
                return Err(ApiError::value("service_tier", problem));
            }
        };
        Ok(Self::Class(class))
    }

    /// From Anthropic's field.
    pub fn from_anthropic(service_tier: Option<&str>) -> Result<Self, ApiError> {
        match service_tier {
            None | Some("auto") => Ok(Self::Best),
            Some("standard_only") => Ok(Self::default()),
            Some(_) => Err(ApiError::value("service_tier", "must be `auto` or `standard_only`")),
        }
    }

    /// What a tenant gets that may have at most `highest`; none: there are no keys.
    pub fn granted(self, highest: Option<Priority>) -> Priority {
        match (self, highest) {
            // The highest class is the least.
            (Self::Class(class), highest) => class.max(highest.unwrap_or(Priority::High)),
            (Self::Best, highest) => highest.unwrap_or(Priority::Normal),
        }
    }
}

/// OpenAI's name of a class.
pub fn openai_name(class: Priority) -> &'static str {
    match class {
        Priority::High => "priority",
        Priority::Normal => "default",
        Priority::Low => "flex",
    }
}

/// Anthropic's name of a class.
pub fn anthropic_name(class: Priority) -> &'static str {
    match class {
        Priority::High => "priority",
        Priority::Normal => "standard",
        Priority::Low => "batch",
    }
}
