//! A model on disk.

use std::path::PathBuf;

use serde::Deserialize;

/// A model that exists on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct ResolvedModel {
    /// A `.gguf` file or a folder with `config.json`.
    pub path: PathBuf,
    /// Name in answers unless the user chooses another.
    pub model_id: String,
    /// The commit on the Hub, if it came from there.
    pub revision: Option<String>,
    /// The memory that the cpu backend is expected to need for it, in bytes; 0 if the model could not be read.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Why the memory is not known. The model can probably not be loaded.
    #[serde(default)]
    pub problem: Option<String>,
    /// The memory that was available when the model was resolved, in bytes, if its own memory was estimated.
    #[serde(default)]
    pub available_bytes: u64,
}

/// The progress of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Progress {
    pub done_bytes: u64,
    pub total_bytes: u64,
}
