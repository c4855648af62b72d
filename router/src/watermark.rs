//! The secret key of the watermark that requests may ask for.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Name of the environment variable that contains the key.
pub const KEY_VARIABLE: &str = "TRUNKLINE_WATERMARK_KEY";
/// TGI's key, which is public. Only with a secret key can nobody else find or forge the mark.
pub const DEFAULT_KEY: u64 = 15_485_863;
/// Most bytes of the key's file, enough for a number and a line end.
const MAX_FILE_BYTES: u64 = 64;
const HINT: &str =
    "hint: write a whole number below 2^64, such as 0x followed by the output of `openssl rand -hex 8`";

/// An error in reading the key. It never shows the content of the file or variable.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("`--watermark-key-file`: cannot read `{path}`: {source}")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The file contains no key.
    #[error("`--watermark-key-file`: `{path}` contains no valid key; {HINT}")]
    NoKeyInFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// The variable contains no key.
    #[error("`{KEY_VARIABLE}` contains no valid key; {HINT}")]
    NoKeyInVariable,
    /// Both the file and the variable are given.
    #[error("`{KEY_VARIABLE}` and `--watermark-key-file` are both set; hint: remove one of them")]
    Both,
}

/// Returns the key in the file or in the variable's text, or the public default.
pub fn read_key(file: Option<&Path>, variable: Option<&str>) -> Result<u64, KeyError> {
    match (file, variable) {
        (None, None) => Ok(DEFAULT_KEY),
        (Some(_), Some(_)) => Err(KeyError::Both),
        (None, Some(text)) => parse_key(text).ok_or(KeyError::NoKeyInVariable),
        (Some(path), None) => {
            let unreadable = |source| KeyError::Unreadable { path: path.to_owned(), source };
            let mut bytes = Vec::new();
            let file = File::open(path).map_err(unreadable)?;
            file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
            let text = std::str::from_utf8(&bytes).ok().filter(|text| text.len() as u64 <= MAX_FILE_BYTES);
            text.and_then(parse_key).ok_or_else(|| KeyError::NoKeyInFile { path: path.to_owned() })
        }
    }
}

fn parse_key(text: &str) -> Option<u64> {
    let text = text.trim();
    // `from_str_radix` takes a sign.
    match text.strip_prefix("0x") {
        Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => u64::from_str_radix(hex, 16).ok(),
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}
