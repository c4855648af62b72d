//! Why certificate and key cannot be used. Nothing of a key is quoted.

use std::io;
use std::path::{Path, PathBuf};

/// Why certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("`{flag}`: cannot read `{path}`: {source}")]
    Unreadable {
        /// Whose file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("`{flag}`: `{path}` {problem}")]
    Invalid {
        /// Whose file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Two files that do not belong together.
    #[error(
        "`--tls-key`: the key in `{key}` is not that of the certificate in `{cert}`; hint: the server's own certificate stands first"
    )]
    Mismatch {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// The library does not take them.
    #[error("`--tls-cert` and `--tls-key` cannot be used: {source}")]
    Unusable {
        /// Why.
        #[source]
        source: rustls::Error,
    },
}

impl TlsError {
    pub(super) fn invalid(flag: &'static str, path: &Path, problem: impl Into<String>) -> Self {
        Self::Invalid { flag, path: path.to_owned(), problem: problem.into() }
    }
}
