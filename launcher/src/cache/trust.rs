//! The certificates that a client trusts, for its library, and what it says about others.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::CertificateError;
use trunkline_bench::client::tls::Trust;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("cannot use the certificates of `--cacert {}`: {problem}; hint: give a PEM file", file.display())]
    File { file: PathBuf, problem: String },
    #[error("the certificate of `{url}` is not trusted: {reason}; hint: {hint}")]
    Untrusted { url: String, reason: String, hint: &'static str },
    #[error("`{url}` does not speak TLS; hint: use `http://`, if nobody else can read the connection")]
    NoTls { url: String },
}

pub(crate) fn tls_config(trust: &Trust) -> Result<TlsConfig, TrustError> {
    let roots = match trust {
        Trust::File(file) => RootCerts::Specific(Arc::new(read(file.clone())?)),
        Trust::System | Trust::Anybody => RootCerts::PlatformVerifier,
    };
    Ok(TlsConfig::builder()
        .root_certs(roots)
        .disable_verification(*trust == Trust::Anybody)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build())
}

/// Returns what to say about a connection that failed for lack of trust; `None` for another failure.
pub(crate) fn explain(trust: &Trust, url: &str, error: &ureq::Error) -> Option<TrustError> {
    let error = match error {
        ureq::Error::Rustls(error) => error,
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref()?,
        _ => return None,
    };
    let url = url.to_owned();
    let (reason, hint) = match error {
        rustls::Error::InvalidCertificate(error) => reason_of(trust, error),
        rustls::Error::InvalidMessage(_) => return Some(TrustError::NoTls { url }),
        // The only such error of a client: the verifier of the system found no file.
        rustls::Error::General(_) => {
            ("the system knows no authorities".to_owned(), "name its authority with `--cacert FILE`")
        }
        _ => return None,
    };
    Some(TrustError::Untrusted { url, reason, hint })
}

fn reason_of(trust: &Trust, error: &CertificateError) -> (String, &'static str) {
    use CertificateError as E;
    let new = "renew the certificate; `--insecure` goes on without a check";
    match error {
        E::UnknownIssuer => match trust {
            Trust::File(file) => {
                (format!("`{}` does not name its authority", file.display()), "name it with `--cacert`")
            }
            _ => (
                "the system does not know its authority".to_owned(),
                "name the authority, or a self-signed certificate itself, with `--cacert FILE`; `--insecure` \
                 goes on without a check",
            ),
        },
        E::Expired | E::ExpiredContext { .. } => ("it has expired".to_owned(), new),
        E::NotValidYet | E::NotValidYetContext { .. } => ("it is not valid yet".to_owned(), new),
        E::NotValidForName => ("it has another name".to_owned(), "use its name in `--url`"),
        E::NotValidForNameContext { presented, .. } => {
            let names: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            (format!("it is for {}", names.join(", ")), "use a name of the certificate in `--url`")
        }
        // rustls has no name for this error of its verifier.
        E::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => (
            "it is a certificate for an authority (`CA:TRUE`) and not for a server".to_owned(),
            "make one with `openssl req -x509 -addext basicConstraints=critical,CA:FALSE`; `--insecure` goes on \
             without a check",
        ),
        other => (other.to_string(), "`--insecure` goes on without a check"),
    }
}

/// `localhost`, which rustls shows as `DnsName("localhost")`.
fn bare(name: &str) -> &str {
    name.split_once('(').map_or(name, |(_, name)| name.trim_end_matches(')')).trim_matches('"')
}

fn read(file: PathBuf) -> Result<Vec<Certificate<'static>>, TrustError> {
    let text = match std::fs::read(&file) {
        Ok(text) => text,
        Err(source) => return Err(TrustError::File { file, problem: source.to_string() }),
    };
    let items: Result<Vec<PemItem<'_>>, ureq::Error> = parse_pem(&text).collect();
    let certificates: Vec<Certificate<'static>> = items
        .unwrap_or_default()
        .into_iter()
        .filter_map(
            |item| if let PemItem::Certificate(certificate) = item { Some(certificate) } else { None },
        )
        .collect();
    if certificates.is_empty() {
        return Err(TrustError::File { file, problem: "it contains no certificate in PEM".to_owned() });
    }
    Ok(certificates)
}
