//! The time that a model stays loaded after a request.

use std::fmt;
use std::time::Duration;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use crate::forms::one_of;
use trunkline_generation::models;

/// The time that a model stays loaded after a request: a number of seconds, or a text such as `5m` or `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    For(Duration),
    /// Any negative time.
    Forever,
}

impl From<KeepAlive> for models::KeepAlive {
    fn from(keep_alive: KeepAlive) -> Self {
        match keep_alive {
            KeepAlive::For(time) => Self::For(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            KeepAlive::Forever => Self::Forever,
        }
    }
}

impl KeepAlive {
    pub(crate) fn is_zero(self) -> bool {
        self == Self::For(Duration::ZERO)
    }

    fn seconds(seconds: f64) -> Option<Self> {
        if seconds < 0.0 {
            return Some(Self::Forever);
        }
        Duration::try_from_secs_f64(seconds).ok().map(Self::For)
    }

    /// Parses numbers that are each followed by a unit, such as `1h30m`, or `0`.
    fn parse(text: &str) -> Option<Self> {
        let is_negative = text.starts_with('-');
        let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
        if rest == "0" {
            return Some(Self::For(Duration::ZERO));
        }
        let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
        let mut seconds = 0.0;
        loop {
            let (number, after) = rest.split_at(rest.find(|c| !is_of_number(c))?);
            let (unit, next) = after.split_at(after.find(is_of_number).unwrap_or(after.len()));
            seconds += number.parse::<f64>().ok()? * seconds_of(unit)?;
            if next.is_empty() {
                return Self::seconds(if is_negative { -seconds } else { seconds });
            }
            rest = next;
        }
    }
}

fn seconds_of(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1e-9,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    })
}

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeepAliveVisitor)
    }
}

struct KeepAliveVisitor;

impl Visitor<'_> for KeepAliveVisitor {
    type Value = KeepAlive;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a number of seconds, or a duration such as `5m`, `1h30m` or `-1s`")
    }

    fn visit_u64<E: Error>(self, seconds: u64) -> Result<KeepAlive, E> {
        Ok(KeepAlive::For(Duration::from_secs(seconds)))
    }

    fn visit_i64<E: Error>(self, seconds: i64) -> Result<KeepAlive, E> {
        Ok(u64::try_from(seconds)
            .map_or(KeepAlive::Forever, |secs| KeepAlive::For(Duration::from_secs(secs))))
    }

    fn visit_f64<E: Error>(self, seconds: f64) -> Result<KeepAlive, E> {
        KeepAlive::seconds(seconds).ok_or_else(|| E::invalid_value(Unexpected::Float(seconds), &self))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<KeepAlive, E> {
        KeepAlive::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Other("another text"), &self))
    }
}

impl PartialSchema for KeepAlive {
    fn schema() -> RefOr<Schema> {
        one_of([f64::schema(), String::schema()])
    }
}

impl ToSchema for KeepAlive {}
