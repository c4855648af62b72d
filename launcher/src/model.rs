//! A model on disk.

use std::path::PathBuf;

use serde::Deserialize;

/// A model that exists on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResolvedModel {
    /// A `.gguf` file or a folder with `config.json`.
    pub path: PathBuf,
    /// Name in answers unless the user chooses another.
    pub model_id: String,
    /// The commit on the Hub, if it came from there.
    pub revision: Option<String>,
}
