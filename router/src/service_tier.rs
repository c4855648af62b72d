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

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{High, Low, Normal};

    #[test]
    fn names_and_numbers_are_classes() {
        for (tier, priority, class) in [
            (None, None, Normal),
            (Some("auto"), None, Normal),
            (Some("default"), None, Normal),
            (Some("flex"), None, Low),
            (Some("priority"), None, High),
            (None, Some(0), Normal),
            (None, Some(-1), High),
            (None, Some(i64::MIN), High),
            (None, Some(i64::MAX), Low),
        ] {
            assert_eq!(
                Wanted::from_openai(tier, priority).unwrap(),
                Wanted::Class(class),
                "{tier:?} {priority:?}"
            );
        }
        assert!(Wanted::from_openai(Some("fast"), None).is_err());
        assert!(Wanted::from_openai(Some("flex"), Some(1)).is_err());
        assert_eq!(Wanted::from_anthropic(None).unwrap(), Wanted::Best);
        assert_eq!(Wanted::from_anthropic(Some("standard_only")).unwrap(), Wanted::Class(Normal));
        assert!(Wanted::from_anthropic(Some("flex")).is_err());
    }

    #[test]
    fn nobody_gets_more_than_it_may() {
        for (wanted, highest, class) in [
            (Wanted::Class(High), None, High),
            (Wanted::Class(High), Some(Normal), Normal),
            (Wanted::Class(High), Some(Low), Low),
            (Wanted::Class(Low), Some(High), Low),
            (Wanted::Best, None, Normal),
            (Wanted::Best, Some(High), High),
            (Wanted::Best, Some(Low), Low),
        ] {
            assert_eq!(wanted.granted(highest), class, "{wanted:?} {highest:?}");
        }
    }
}
