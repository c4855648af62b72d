//! The types of settings' values and how users write them.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Turns a feature off.
pub(crate) const OFF: &str = "off";
/// Lets the server decide.
pub(crate) const AUTO: &str = "auto";

/// The type of a setting's field.
pub trait Value: Sized {
    /// Parses a plain value; `None` if it is no such value. The setting's form checks the range and knows units.
    fn parse(text: &str) -> Option<Self>;

    /// Returns a text that parses to this value; `None` for an optional value that is absent.
    fn text(&self) -> Option<String>;
}

/// Implements [`Value`] for types that write and read themselves.
macro_rules! plain_values {
    ($($type:ty),*) => {
        $(impl Value for $type {
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }

            fn text(&self) -> Option<String> {
                Some(self.to_string())
            }
        })*
    };
}

plain_values!(bool, u16, u32, u64, usize, f32, String);

impl<T: Value> Value for Option<T> {
    fn parse(text: &str) -> Option<Self> {
        T::parse(text).map(Some)
    }

    fn text(&self) -> Option<String> {
        self.as_ref().and_then(T::text)
    }
}

/// Durations are written as whole seconds.
impl Value for Duration {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self::from_secs)
    }

    fn text(&self) -> Option<String> {
        Some(self.as_secs().to_string())
    }
}

/// Reads and writes a duration as whole seconds.
pub mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(duration.as_secs())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_secs)
    }
}

/// Paths become absolute, relative to the working folder, and are valid UTF-8: other processes get them as text.
impl Value for PathBuf {
    fn parse(text: &str) -> Option<Self> {
        std::path::absolute(text).ok().filter(|path| path.to_str().is_some())
    }

    fn text(&self) -> Option<String> {
        Some(self.display().to_string())
    }
}

/// Texts separated by commas.
impl Value for Vec<String> {
    fn parse(text: &str) -> Option<Self> {
        Some(text.split(',').map(str::to_owned).collect())
    }

    fn text(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.join(","))
    }
}

/// Paths separated by commas.
impl Value for Vec<PathBuf> {
    fn parse(text: &str) -> Option<Self> {
        text.split(',').map(PathBuf::parse).collect()
    }

    fn text(&self) -> Option<String> {
        let paths: Vec<String> = self.iter().filter_map(PathBuf::text).collect();
        (!paths.is_empty()).then(|| paths.join(","))
    }
}

/// The location of packed weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightsCache {
    /// Packed weights are not kept.
    Off,
    /// Packed weights are kept in this folder.
    Folder(PathBuf),
}

impl Value for WeightsCache {
    fn parse(text: &str) -> Option<Self> {
        if text == OFF { Some(Self::Off) } else { PathBuf::parse(text).map(Self::Folder) }
    }

    fn text(&self) -> Option<String> {
        match self {
            Self::Off => Some(OFF.into()),
            Self::Folder(path) => path.text(),
        }
    }
}

/// The use of drafts, which let a step sample several tokens of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speculate {
    /// There are no drafts.
    Off,
    /// There are as many drafts as are predicted to pay.
    Auto,
    /// There are always drafts where the text has any, up to this number.
    Always(u32),
}

impl Value for Speculate {
    fn parse(text: &str) -> Option<Self> {
        match text {
            OFF => Some(Self::Off),
            AUTO => Some(Self::Auto),
            _ => text.parse().ok().map(Self::Always),
        }
    }

    fn text(&self) -> Option<String> {
        Some(match self {
            Self::Off => OFF.into(),
            Self::Auto => AUTO.into(),
            Self::Always(most) => most.to_string(),
        })
    }
}

/// One name of a choice.
#[derive(Debug)]
pub struct Named {
    /// The name that users write.
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    /// Lines of the help text, each with the blank that starts a comment's line.
    pub help: &'static [&'static str],
}

impl Named {
    pub fn is(&self, text: &str) -> bool {
        self.name == text || self.aliases.contains(&text)
    }

    /// Returns the help text in one line, without its final period.
    pub fn help_text(&self) -> String {
        in_one_line(self.help)
    }
}

/// Joins the lines of a comment, without the final period.
pub fn in_one_line(lines: &[&str]) -> String {
    let text = lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    text.strip_suffix('.').map(str::to_owned).unwrap_or(text)
}

/// A type whose values are a few names.
pub trait Choice: Copy + PartialEq + 'static {
    /// Every value, in the order of the help text.
    const ALL: &'static [Self];
    /// The names, in the order of [`Choice::ALL`].
    const NAMED: &'static [Named];

    fn name(self) -> &'static str {
        let found = Self::ALL.iter().zip(Self::NAMED).find(|(value, _)| **value == self);
        found.map_or("", |(_, named)| named.name)
    }
}
