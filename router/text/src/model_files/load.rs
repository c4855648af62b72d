//! Loads a model's files by their kind.

use std::path::Path;

use super::read::read_text;
use super::{ModelText, from_folder, from_gguf};
use crate::error::TextError;

impl ModelText {
    /// Reads a `.gguf` file, or a folder with `config.json`, a tokenizer and other files as on the Hub.
    pub fn load(path: &Path) -> Result<Self, TextError> {
        Self::load_with(path, None)
    }

    /// Like [`ModelText::load`], with a file of one Jinja template in place of the model's own chat templates. Fails if
    /// that template does not compile.
    pub fn load_with(path: &Path, chat_template: Option<&Path>) -> Result<Self, TextError> {
        let Some(file) = chat_template else {
            return if path.is_dir() { from_folder::load(path, None) } else { from_gguf::load(path, None) };
        };
        let invalid = |detail| TextError::InvalidFile { path: file.to_owned(), detail };
        let source = read_text(file)?.ok_or_else(|| invalid("it does not exist".to_owned()))?;
        if source.trim().is_empty() {
            return Err(invalid("it is empty".to_owned()));
        }
        let text = if path.is_dir() {
            from_folder::load(path, Some(source))
        } else {
            from_gguf::load(path, Some(source))
        }?;
        match text.chat_template_problem {
            Some(problem) => Err(invalid(problem)),
            None => Ok(text),
        }
    }
}
