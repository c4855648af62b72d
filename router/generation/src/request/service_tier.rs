//! The priority classes of the queue, by their names in the dialects.
//!
//! | class | OpenAI's `service_tier` | Anthropic's | vLLM's `priority` |
//! |---|---|---|---|
//! | high | `priority` | `auto`, if the key allows it | below 0 |
//! | normal | `auto`, `default`, `scale` | `standard_only`, `auto` | 0 |
//! | low | `flex` | | above 0 |
//!
//! A tenant gets at most the class that the key file allows. As with OpenAI, asking for more is not an error, and the
//! response reports the class that was used.

use trunkline_scheduler::Priority;

use trunkline_base::error::ApiError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// This class, or the tenant's highest if that is lower.
    Class(Priority),
    /// The highest class that the tenant may use; normal without API keys.
    Best,
}

impl Default for Wanted {
    fn default() -> Self {
        Self::Class(Priority::Normal)
    }
}

impl Wanted {
    /// Reads the class from OpenAI's `service_tier` or vLLM's `priority`. A request may have only one of them.
    pub fn from_openai(service_tier: Option<&str>, priority: Option<i64>) -> Result<Self, ApiError> {
        let class = match (service_tier, priority) {
            (Some(_), Some(_)) => {
                let problem = "cannot be combined with `service_tier`; hint: send one of them";
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

    /// Reads the class from Anthropic's `service_tier`.
    pub fn from_anthropic(service_tier: Option<&str>) -> Result<Self, ApiError> {
        match service_tier {
            None | Some("auto") => Ok(Self::Best),
            Some("standard_only") => Ok(Self::default()),
            Some(_) => Err(ApiError::value("service_tier", "must be `auto` or `standard_only`")),
        }
    }

    /// Returns the class for a tenant that may use at most `highest`, which is `None` without API keys.
    pub fn granted(self, highest: Option<Priority>) -> Priority {
        match (self, highest) {
            // Higher classes compare as less.
            (Self::Class(class), highest) => class.max(highest.unwrap_or(Priority::High)),
            (Self::Best, highest) => highest.unwrap_or(Priority::Normal),
        }
    }
}

pub fn openai_name(class: Priority) -> &'static str {
    match class {
        Priority::High => "priority",
        Priority::Normal => "default",
        Priority::Low => "flex",
    }
}

pub fn anthropic_name(class: Priority) -> &'static str {
    match class {
        Priority::High => "priority",
        Priority::Normal => "standard",
        Priority::Low => "batch",
    }
}
