//! TLS for the listener, with a certificate and key from PEM files that are reloaded when they change.
//!
//! Open connections keep their certificate, and new ones use the latest. Unusable files change nothing.

mod error;

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, UNIX_EPOCH};

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

pub use error::TlsError;

use trunkline_base::metrics::Metrics;

/// The largest size of either file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The protocol inside TLS (RFC 7301).
const ALPN: &[u8] = b"http/1.1";

/// The listener's certificate and key.
#[derive(Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
    seen: Mutex<Seen>,
    /// The interval between two checks of the files.
    pub look_interval: Duration,
}

/// The state of the files at earlier checks.
#[derive(Debug, Default)]
struct Seen {
    /// The state when the files were last read.
    read: Stamps,
    /// The state at the last check.
    last: Stamps,
}

/// A file's device, inode, size and modification time, which show that it has changed; `None` if there is no file.
type Stamp = Option<(u64, u64, u64, i64, i64)>;
type Stamps = (Stamp, Stamp);

impl Tls {
    /// Reads both files. Fails if clients would reject them, for example if the certificate has expired or the key
    /// belongs to another one.
    pub fn load(cert: PathBuf, key: PathBuf) -> Result<Self, TlsError> {
        let stamps = (stamp(&cert), stamp(&key));
        let config = RwLock::new(Arc::new(read_config(&cert, &key)?));
        let seen = Mutex::new(Seen { read: stamps, last: stamps });
        Ok(Self { cert, key, config, seen, look_interval: LOOK_INTERVAL })
    }

    /// Returns an acceptor with the latest certificate.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Checks the files every `look_interval` and never returns.
    pub async fn watch(self: Arc<Self>, metrics: Arc<Metrics>) {
        loop {
            tokio::time::sleep(self.look_interval).await;
            let tls = self.clone();
            // A hung disk must not block a thread that serves requests.
            let looked = tokio::task::spawn_blocking(move || tls.look());
            match looked.await {
                Ok(None) => {}
                Ok(Some(Ok(()))) => {
                    metrics.tls_reloads.inc();
                    tracing::info!(cert = %self.cert.display(), "certificate and key reloaded");
                }
                Ok(Some(Err(error))) => {
                    metrics.tls_reload_failures.inc();
                    tracing::warn!(%error, "cannot reload certificate and key; the old ones stay in use");
                }
                // The runtime is shutting down.
                Err(_) => return,
            }
        }
    }

    /// Checks the files and reads them if they have changed. They are read only once two checks in succession agree,
    /// because two files cannot be replaced at once. Returns the result of reading, or `None` if nothing was read.
    pub fn look(&self) -> Option<Result<(), TlsError>> {
        let stamps = (stamp(&self.cert), stamp(&self.key));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_settled = std::mem::replace(&mut seen.last, stamps) == stamps;
        if !is_settled || seen.read == stamps {
            return None;
        }
        seen.read = stamps;
        Some(read_config(&self.cert, &self.key).map(|config| {
            *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        }))
    }
}

fn stamp(path: &Path) -> Stamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

fn read_config(cert: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let chain = read_file("--tls-cert", cert)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
    let chain = chain.map_err(|_| TlsError::invalid("--tls-cert", cert, "is not PEM"))?;
    let Some(leaf) = chain.first() else {
        return Err(TlsError::invalid("--tls-cert", cert, "has no `BEGIN CERTIFICATE`"));
    };
    check_validity(cert, leaf)?;
    let bytes = read_file("--tls-key", key)?;
    // The parser's error is not shown, because it could quote the key.
    let private = PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|_| TlsError::invalid("--tls-key", key, "has no private key in PEM without a passphrase"))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|source| TlsError::Unusable { source })?
        .with_no_client_auth();
    let mut config = builder.with_single_cert(chain, private).map_err(|source| match source {
        Error::InconsistentKeys(_) => TlsError::Mismatch { cert: cert.to_owned(), key: key.to_owned() },
        source => TlsError::Unusable { source },
    })?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// Refuses a certificate whose validity period does not include the present.
fn check_validity(path: &Path, leaf: &CertificateDer<'_>) -> Result<(), TlsError> {
    let date =
        |time: UnixTime| humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    let problem = match ParsedCertificate::try_from(leaf) {
        Err(_) => "has no X.509 certificate".to_owned(),
        // Verification without roots never succeeds, but it checks the dates first.
        Ok(leaf) => {
            let roots = RootCertStore::empty();
            match verify_server_cert_signed_by_trust_anchor(&leaf, &roots, &[], UnixTime::now(), &[]) {
                Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
                    format!("expired at {}", date(not_after))
                }
                Err(Error::InvalidCertificate(CertificateError::NotValidYetContext {
                    not_before, ..
                })) => {
                    format!("is not valid before {}", date(not_before))
                }
                _ => return Ok(()),
            }
        }
    };
    Err(TlsError::invalid("--tls-cert", path, problem))
}

fn read_file(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |source| TlsError::Unreadable { flag, path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(TlsError::invalid(flag, path, format!("is larger than {MAX_FILE_BYTES} bytes")));
    }
    Ok(bytes)
}
