//! Columns of text and of terminals.

use std::os::fd::AsFd;

use unicode_width::UnicodeWidthChar;

/// Columns of a terminal that does not say.
const DEFAULT_COLUMNS: usize = 80;

/// Returns the number of columns of the terminal.
pub(crate) fn columns(terminal: &impl AsFd) -> usize {
    let size = rustix::termios::tcgetwinsize(terminal).map_or(0, |size| size.ws_col.into());
    if size == 0 { DEFAULT_COLUMNS } else { size }
}

/// Returns the beginning of `text` that fits into this many columns.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= columns
    };
    text.chars().take_while(fits).collect()
}
