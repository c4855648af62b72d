//! Reads lines from a terminal, with history, completion of commands, and messages of several lines.

use std::borrow::Cow;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Cmd, Config, Context, Helper, KeyCode, KeyEvent, Modifiers};

use super::slash::COMMANDS;
use crate::error::Error;
use crate::style::Style;

const MAX_HISTORY: usize = 1_000;
/// Messages beyond this are not kept in the history.
const MAX_ENTRY_BYTES: usize = 1 << 20;
const PRIVATE_DIR_MODE: u32 = 0o700;
const PRIVATE_FILE_MODE: u32 = 0o600;

/// The input of a person.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D, or the terminal has gone.
    End,
}

pub struct Editor {
    editor: rustyline::Editor<Keys, DefaultHistory>,
    history: Option<PathBuf>,
}

/// Colours the prompt, completes commands, and says when a message ends.
struct Keys {
    colours: bool,
}

impl Editor {
    /// Creates an editor with the history in this file, if any, which is created for this user alone.
    pub fn new(history: Option<PathBuf>, colours: bool) -> Result<Self, Error> {
        let broken = |error: ReadlineError| Error::Terminal(std::io::Error::other(error));
        let config =
            Config::builder().max_history_size(MAX_HISTORY).map_err(broken)?.bracketed_paste(true).build();
        let mut editor = rustyline::Editor::with_config(config).map_err(broken)?;
        editor.set_helper(Some(Keys { colours }));
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        if let Some(path) = &history {
            make_private(path)?;
            // An unreadable history is replaced.
            let _ = editor.load_history(path);
        }
        Ok(Self { editor, history })
    }

    /// Reads a message, which may begin as `initial`.
    pub fn read(&mut self, prompt: &str, initial: &str) -> Result<Entry, Error> {
        match self.editor.readline_with_initial(prompt, (initial, "")) {
            Ok(text) => Ok(Entry::Text(unfold(&text))),
            Err(ReadlineError::Interrupted) => Ok(Entry::Interrupted),
            Err(ReadlineError::Eof) => Ok(Entry::End),
            Err(ReadlineError::Io(error)) => Err(Error::Terminal(error)),
            Err(error) => Err(Error::Terminal(std::io::Error::other(error))),
        }
    }

    /// Adds a message to the history. A history that cannot be written is kept in memory only.
    pub fn remember(&mut self, text: &str) {
        if text.len() > MAX_ENTRY_BYTES {
            return;
        }
        let is_new = self.editor.add_history_entry(text).unwrap_or(false);
        if let (true, Some(path)) = (is_new, &self.history) {
            let _ = self.editor.append_history(path);
        }
    }
}

/// Returns the text without the backslashes that continued its lines.
fn unfold(text: &str) -> String {
    text.replace("\\\n", "\n")
}

/// Creates the file and its folder, if they are missing, and takes them from others.
fn make_private(path: &Path) -> Result<(), Error> {
    let fail = |source| Error::File { what: "write the history", path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(PRIVATE_DIR_MODE).create(folder).map_err(fail)?;
    }
    let file = fs::OpenOptions::new().create(true).append(true).open(path).map_err(fail)?;
    file.set_permissions(fs::Permissions::from_mode(PRIVATE_FILE_MODE)).map_err(fail)
}

impl Helper for Keys {}

impl Hinter for Keys {
    type Hint = String;
}

impl Highlighter for Keys {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _default: bool) -> Cow<'b, str> {
        if self.colours { Style::HEADING.paint(prompt).into() } else { prompt.into() }
    }
}

impl Validator for Keys {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let goes_on = context.input().ends_with('\\');
        Ok(if goes_on { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Completer for Keys {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..position];
        let names = COMMANDS.iter().filter(|(name, ..)| typed.starts_with('/') && name.starts_with(typed));
        Ok((0, names.map(|(name, ..)| format!("{name} ")).collect()))
    }
}
