//! Loads a model's files by their kind.

use std::path::Path;

use super::{ModelText, from_folder, from_gguf};
use crate::error::TextError;

impl ModelText {
    /// Reads a `.gguf` file, or a folder with `tokenizer.json`, `config.json` and other files as on the Hub.
    pub fn load(path: &Path) -> Result<Self, TextError> {
        if path.is_dir() { from_folder::load(path) } else { from_gguf::load(path) }
    }
}
