//! Loads a model's files by their kind.

use std::fs;
use std::path::Path;

use super::{ModelText, from_folder, from_gguf};
use crate::error::TextError;

/// Largest size of a configuration file or a chat template.
pub(super) const MAX_CONFIG_BYTES: u64 = 16 << 20;

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

/// Reads a file. Returns `None` if it does not exist.
pub(super) fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TextError> {
    let read_error = |source| TextError::Read { path: path.to_owned(), source };
    let bytes = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read_error(error)),
    };
    if bytes > limit {
        return Err(TextError::FileTooLarge { path: path.to_owned(), bytes, limit });
    }
    fs::read(path).map(Some).map_err(read_error)
}

pub(super) fn read_text(path: &Path) -> Result<Option<String>, TextError> {
    let Some(bytes) = read(path, MAX_CONFIG_BYTES)? else { return Ok(None) };
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|error| TextError::InvalidFile { path: path.to_owned(), detail: error.to_string() })
}
