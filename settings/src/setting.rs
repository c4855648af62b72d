//! One entry of a table, and the groups that entries form.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::form::Form;
use crate::value::{Value, in_one_line};

/// Characters of a wrong value that an error repeats.
const MAX_SHOWN_CHARS: usize = 80;

/// One setting as the user sees it.
#[derive(Debug)]
pub struct Setting {
    /// Name of the field, such as `max_tools`. Flag, variable and configuration key are derived from it.
    pub name: &'static str,
    /// Heading of `--help` under which the flag is listed.
    pub heading: &'static str,
    /// Lines of the help text, each with the blank that starts a comment's line.
    pub help: &'static [&'static str],
    pub form: Form,
}

/// Settings that one process needs and that are listed under one heading.
pub trait Group: Default + Serialize + DeserializeOwned {
    /// The group's settings in the order of its fields.
    const SETTINGS: &'static [Setting];

    /// Builds the group from texts as a user writes them; a setting without a text keeps its default.
    fn read(text_of: impl FnMut(&Setting) -> Option<String>) -> Result<Self, SettingError>;

    /// Returns each value as text, in the order of [`Group::SETTINGS`]; `None` stands for an optional value left out.
    fn texts(&self) -> Vec<Option<String>>;
}

/// Checks that every value of `group` is within its range.
pub fn check<G: Group>(group: &G) -> Result<(), SettingError> {
    for (setting, text) in G::SETTINGS.iter().zip(group.texts()) {
        text.map_or(Ok(()), |text| setting.check(&text))?;
    }
    Ok(())
}

impl Setting {
    pub fn key(&self) -> String {
        self.name.replace('_', "-")
    }

    pub fn flag(&self) -> String {
        format!("--{}", self.key())
    }

    pub fn variable(&self) -> String {
        format!("TRUNKLINE_{}", self.name.to_uppercase())
    }

    /// Returns the help text in one line, without its final period.
    pub fn help_text(&self) -> String {
        in_one_line(self.help)
    }

    /// Returns the words that the help text has for the default, where it is no value.
    pub fn default_in_words(&self) -> Option<String> {
        let help = self.help_text();
        let (_, words) = help.rsplit_once("[default: ")?;
        Some(words.split_once(']')?.0.to_owned())
    }

    pub fn check(&self, text: &str) -> Result<(), SettingError> {
        if self.form.accepts(text) { Ok(()) } else { Err(self.error(text)) }
    }

    pub fn parse<T: Value>(&self, text: &str) -> Result<T, SettingError> {
        let plain = self.form.plain(text).ok_or_else(|| self.error(text))?;
        T::parse(&plain).ok_or_else(|| self.error(text))
    }

    fn error(&self, text: &str) -> SettingError {
        let hint = match self.name {
            "port" if text.starts_with("tcp://") => {
                "; hint: Kubernetes sets `TRUNKLINE_PORT` for a Service named `trunkline`; set \
                 `enableServiceLinks: false`"
            }
            "metrics_port" if text.starts_with("tcp://") => {
                "; hint: Kubernetes sets `TRUNKLINE_METRICS_PORT` for a Service named `trunkline-metrics`; set \
                 `enableServiceLinks: false`"
            }
            _ => "",
        };
        SettingError { name: self.flag(), text: shown(text), expected: self.form.expected(), hint }
    }
}

/// Returns `text` without control characters and at most [`MAX_SHOWN_CHARS`] long.
fn shown(text: &str) -> String {
    let mut shown: String =
        text.chars().take(MAX_SHOWN_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(MAX_SHOWN_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

/// A value that a setting does not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingError {
    name: String,
    text: String,
    expected: String,
    hint: &'static str,
}

impl SettingError {
    /// Names the place where the value stands, such as `` `port` in `trunkline.toml` ``, in place of the flag.
    pub fn at(&self, place: &str) -> String {
        format!("{place} is `{}`; expected {}{}", self.text, self.expected, self.hint)
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.at(&format!("`{}`", self.name)))
    }
}

impl std::error::Error for SettingError {}
