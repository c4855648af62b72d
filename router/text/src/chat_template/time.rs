//! Formats the date that some templates write into their system prompt with `strftime_now`.

use std::fmt::Write;

use chrono::DateTime;
use chrono::format::StrftimeItems;
use minijinja::{Error, ErrorKind};

/// Formats a time in UTC and English, with the directives of Python's `strftime`.
pub fn strftime(unix_s: i64, format: &str) -> Result<String, Error> {
    let invalid = || Error::new(ErrorKind::InvalidOperation, format!("{format:?} is not a strftime format"));
    let items = StrftimeItems::new(format).parse().map_err(|_| invalid())?;
    let time = DateTime::from_timestamp(unix_s, 0).ok_or_else(invalid)?;
    let mut out = String::new();
    // Some directives are only for parsing, so `to_string` could panic.
    write!(out, "{}", time.format_with_items(items.iter())).map_err(|_| invalid())?;
    Ok(out)
}
