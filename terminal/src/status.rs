//! A line on stderr that says what is going on, and that goes away again.

use std::io::{IsTerminal, Write};

use crate::style::{self, Style};
use crate::width;

/// Shows a line on stderr, if that is a terminal.
#[derive(Debug)]
pub struct StatusLine {
    /// What is shown, if anything is.
    shown: String,
    is_terminal: bool,
    colours: bool,
}

impl StatusLine {
    pub fn new() -> Self {
        let stderr = std::io::stderr();
        Self { shown: String::new(), is_terminal: stderr.is_terminal(), colours: style::has_colours(&stderr) }
    }

    /// Replaces what is shown.
    pub fn set(&mut self, text: &str) {
        if !self.is_terminal {
            return;
        }
        let text = style::harmless(text).replace(['\n', '\t'], " ");
        let text = width::cut(&text, width::columns(&std::io::stderr()).saturating_sub(1));
        if text == self.shown {
            return;
        }
        self.shown.clone_from(&text);
        let text = if self.colours { Style::DIM.paint(&text) } else { text };
        // Nothing depends on what is shown.
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
    }

    pub fn clear(&mut self) {
        if !std::mem::take(&mut self.shown).is_empty() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Default for StatusLine {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.clear();
    }
}
