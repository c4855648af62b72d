//! The watermark that requests may ask for: what the flags say of it, and its secret key.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use trunkline_scheduler::Watermark;

/// Name of the variable that holds the key.
pub const KEY_VARIABLE: &str = "TRUNKLINE_WATERMARK_KEY";
/// TGI's key. Everybody knows it: whoever wants to keep others from finding or forging the mark takes another.
const DEFAULT_KEY: u64 = 15_485_863;
/// Most bytes of the key's file: a number, and what ends the line.
const MAX_FILE_BYTES: u64 = 64;
const HINT: &str = "hint: a whole number below 2^64, as 0x and the output of `openssl rand -hex 8`";

/// As TGI's without variables.
pub const DEFAULT_WATERMARK: Watermark = Watermark { gamma: 0.5, delta: 2.0, key: DEFAULT_KEY };

/// Why there is no key. Never shows what was found in its place.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("`--watermark-key-file`: cannot read `{path}`: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file holds something else.
    #[error("`--watermark-key-file`: `{path}` holds no key; {HINT}")]
    NoKeyInFile {
        /// The file.
        path: PathBuf,
    },
    /// The variable holds something else.
    #[error("`{KEY_VARIABLE}` is no key; {HINT}")]
    NoKeyInVariable,
    /// Which of them counts?
    #[error("`{KEY_VARIABLE}` is set beside `--watermark-key-file`; hint: leave one of them out")]
    Both,
}

/// The key: of the file, or of the variable's text, or the one that everybody knows.
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
