//! Errors of certificates and keys. They never quote a key.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("`{flag}`: cannot read `{path}`: {source}")]
    Unreadable {
        /// The flag that names the file.
        flag: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file has unexpected contents.
    #[error("`{flag}`: `{path}` {problem}")]
    Invalid {
        /// The flag that names the file.
        flag: &'static str,
        path: PathBuf,
        /// The predicate of a sentence about the file.
        problem: String,
    },
    /// The key is not the certificate's.
    #[error(
        "`--tls-key`: the key in `{key}` does not belong to the certificate in `{cert}`; hint: put the server's own \
        certificate first"
    )]
    Mismatch { cert: PathBuf, key: PathBuf },
    /// The TLS library rejects certificate and key.
    #[error("`--tls-cert` and `--tls-key` cannot be used: {source}")]
    Unusable {
        #[source]
        source: rustls::Error,
    },
}

impl TlsError {
    pub(super) fn invalid(flag: &'static str, path: &Path, problem: impl Into<String>) -> Self {
        Self::Invalid { flag, path: path.to_owned(), problem: problem.into() }
    }
}
