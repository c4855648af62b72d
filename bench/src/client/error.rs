//! Why there is no client for a server.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("`{url}` is no address of a server; hint: give one such as http://localhost:3000")]
    Url { url: String },
    #[error(
        "the API key contains characters that no header may have; hint: check the variable that contains it"
    )]
    Key,
    #[error("cannot use TLS: {problem}; hint: name the authority with `--cacert FILE`")]
    Tls { problem: String },
    #[error("cannot use the certificates of `--cacert {}`: {problem}; hint: give a PEM file", file.display())]
    Certificates { file: PathBuf, problem: String },
}
