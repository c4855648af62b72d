//! Errors of certificates and keys. They never quote a key.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("`{flag}`: cannot read `{path}`: {source}")]
    Unreadable {
        flag: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{flag}`: `{path}` {problem}")]
    Invalid {
        flag: &'static str,
        path: PathBuf,
        /// The predicate of a sentence about the file.
        problem: String,
    },
    #[error(
        "`--tls-key`: the key in `{key}` does not belong to the certificate in `{cert}`; hint: put the server's own \
        certificate first"
    )]
    Mismatch { cert: PathBuf, key: PathBuf },
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
