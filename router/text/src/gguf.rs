//! GGUF metadata (not the tensors): <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::path::Path;

use crate::TextError;

/// What is wrong with a GGUF file, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {offset}")]
pub struct GgufError {
    /// What is wrong.
    pub problem: String,
    /// Where in the file.
    pub offset: usize,
}

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufValue {
    /// Any unsigned integer type.
    Unsigned(u64),
    /// Any signed integer type.
    Signed(i64),
    /// f32 or f64.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// A list.
    Array(GgufArray),
}

/// A list of metadata values of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufArray {
    /// Any integer type.
    Integers(Vec<i64>),
    /// f32 or f64.
    Floats(Vec<f64>),
    /// Truth values.
    Bools(Vec<bool>),
    /// Texts.
    Strings(Vec<String>),
}

/// All metadata of a GGUF file.
#[derive(Debug, Clone, Default)]
pub struct GgufMetadata {}

impl GgufMetadata {
    /// Reads the metadata of a file; the tensors are not touched.
    pub fn open(_path: &Path) -> Result<Self, TextError> {
        unimplemented!()
    }

    /// Reads the metadata at the beginning of `bytes`.
    pub fn parse(_bytes: &[u8]) -> Result<Self, GgufError> {
        unimplemented!()
    }

    /// A value by key.
    pub fn get(&self, _key: &str) -> Option<&GgufValue> {
        unimplemented!()
    }
}
