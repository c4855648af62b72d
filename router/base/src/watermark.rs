//! The secret key of watermarks.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use trunkline_settings::WATERMARK_KEY_VARIABLE;

/// TGI's key. It is public: use another one to prevent others from detecting or forging the watermark.
pub const DEFAULT_KEY: u64 = 15_485_863;
/// The largest key file in bytes. The file contains one number and a line break.
const MAX_FILE_BYTES: u64 = 64;
const HINT: &str =
    "hint: use an integer below 2^64, such as 0x followed by the output of `openssl rand -hex 8`";

/// The reason why there is no key. The text never shows the invalid value.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("`--watermark-key-file`: cannot read `{path}`: {source}")]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`--watermark-key-file`: `{path}` does not contain a key; {HINT}")]
    NoKeyInFile { path: PathBuf },
    #[error("`{WATERMARK_KEY_VARIABLE}` is not a key; {HINT}")]
    NoKeyInVariable,
    #[error("both `{WATERMARK_KEY_VARIABLE}` and `--watermark-key-file` are set; hint: remove one of them")]
    Both,
}

/// Returns the key from the file or from the variable's text. If neither is given, returns TGI's public key.
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
    // `from_str_radix` would accept a sign.
    match text.strip_prefix("0x") {
        Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => u64::from_str_radix(hex, 16).ok(),
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}
