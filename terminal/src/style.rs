//! Colours and weights of text on a terminal.

use std::io::IsTerminal;

/// The look of a piece of text. Several may hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style(u8);

impl Style {
    pub const PLAIN: Self = Self(0);
    pub const BOLD: Self = Self(1);
    pub const ITALIC: Self = Self(2);
    pub const DIM: Self = Self(4);
    /// Names and code in a line.
    pub const CODE: Self = Self(8);
    pub const HEADING: Self = Self(16);
    pub const ERROR: Self = Self(32);

    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns `text` between the sequences that turn this style on and off.
    pub fn paint(self, text: &str) -> String {
        const CODES: [(Style, &str); 6] = [
            (Style::BOLD, "1"),
            (Style::ITALIC, "3"),
            (Style::DIM, "2"),
            (Style::CODE, "36"),
            (Style::HEADING, "1;34"),
            (Style::ERROR, "31"),
        ];
        let codes: Vec<&str> =
            CODES.iter().filter(|(style, _)| self.has(*style)).map(|(_, code)| *code).collect();
        if codes.is_empty() || text.is_empty() {
            return text.to_owned();
        }
        format!("\x1b[{}m{text}\x1b[0m", codes.join(";"))
    }
}

/// Returns true if text for this stream may have colours: it is a terminal that knows them, and `NO_COLOR` is not set.
pub fn has_colours(stream: &impl IsTerminal) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns `text` without what would command a terminal: control characters except newlines and tabs.
pub fn harmless(text: &str) -> String {
    text.chars().filter(|c| !is_command(*c)).collect()
}

/// Returns true if a terminal may take the character for the beginning of a command.
pub(crate) fn is_command(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}
