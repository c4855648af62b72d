//! TLS to a server, with the system's authorities or those of a file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio_rustls::TlsConnector;

use super::error::ClientError;

/// The servers that a client trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Servers with a certificate of an authority that the system knows.
    System,
    /// Servers with a certificate of an authority in this PEM file, or with a self-signed one in it.
    File(PathBuf),
    /// Every server, without a check.
    Anybody,
}

impl Trust {
    /// Returns what the flags `--cacert` and `--insecure` ask for.
    pub fn of(cacert: Option<&Path>, insecure: bool) -> Self {
        match cacert {
            Some(file) => Self::File(file.to_owned()),
            None if insecure => Self::Anybody,
            None => Self::System,
        }
    }

    pub fn connector(&self) -> Result<TlsConnector, ClientError> {
        let provider = Arc::new(ring::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let wrong = |error: &dyn std::error::Error| ClientError::Tls { problem: error.to_string() };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&error))?;
        let mut config = match self {
            Self::System => {
                builder.with_platform_verifier().map_err(|error| wrong(&error))?.with_no_client_auth()
            }
            Self::File(file) => builder.with_root_certificates(roots(file)?).with_no_client_auth(),
            Self::Anybody => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(algorithms)))
                .with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

/// Returns what a handshake that failed says about the server.
pub fn problem(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => {
            "it does not speak TLS; hint: use `http://`, if nobody else can read the connection".to_owned()
        }
        Some(rustls::Error::InvalidCertificate(reason)) => format!(
            "its certificate is not trusted ({reason}); hint: name its authority, or a self-signed certificate itself, \
             with `--cacert FILE`; `--insecure` goes on without a check"
        ),
        _ => error.to_string(),
    }
}

fn roots(file: &Path) -> Result<RootCertStore, ClientError> {
    let wrong = |problem: String| ClientError::Certificates { file: file.to_owned(), problem };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| wrong(error.to_string()))? {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("it contains no certificate in PEM".to_owned()));
    }
    Ok(roots)
}

/// Accepts every certificate, as the user asked for with `--insecure`; signatures are still checked.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
