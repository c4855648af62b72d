//! TLS: handshakes, the protocol inside, and files that change or are unusable.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use trunkline_base::limits::Limits;
use trunkline_base::tenants::Access;
use trunkline_http::tls::{Tls, TlsError};
use trunkline_router::server::Front;

use crate::support::process::{PROGRAM, WithSettings, settings};
use crate::support::{DEADLINE, Router, eventually};

/// A certificate for localhost and its key. `certificates/make.sh` creates all of them.
const FIRST: Pair = (include_str!("certificates/first.cert.pem"), include_str!("certificates/first.key.pem"));
const SECOND: Pair =
    (include_str!("certificates/second.cert.pem"), include_str!("certificates/second.key.pem"));
/// A certificate that was valid until 2020-05-01.
const EXPIRED: Pair = (include_str!("certificates/expired.cert.pem"), FIRST.1);
/// A certificate that is valid from 2999-01-01.
const NOT_YET_VALID: Pair = (include_str!("certificates/not-yet-valid.cert.pem"), FIRST.1);

/// A certificate and its key in PEM.
type Pair = (&'static str, &'static str);

/// The two files that a server reads.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new((cert, key): Pair) -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        files.write((cert, key));
        files
    }

    fn write(&self, (cert, key): Pair) {
        std::fs::write(self.cert(), cert).unwrap();
        std::fs::write(self.key(), key).unwrap();
    }

    fn cert(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }

    fn load(&self) -> Result<Tls, TlsError> {
        Tls::load(self.cert(), self.key())
    }
}

/// Connects as a client that trusts only this certificate.
async fn connect(router: &Router, (trusted, _): Pair) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(router.address).await.unwrap();
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// Sends a request and reads until the connection ends.
async fn ask(mut stream: TlsStream<TcpStream>, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(DEADLINE, stream.read_to_string(&mut answer)).await.expect("an answer").unwrap();
    answer
}

/// Starts a router that checks its files only when the test tells it to.
async fn router(files: &Files) -> (Router, Arc<Tls>) {
    router_that_looks_every(files, Duration::from_secs(3600)).await
}

async fn router_that_looks_every(files: &Files, interval: Duration) -> (Router, Arc<Tls>) {
    let mut tls = files.load().unwrap();
    tls.look_interval = interval;
    let tls = Arc::new(tls);
    let front = Front { tls: Some(tls.clone()), ..Front::default() };
    (Router::start_behind(front, Limits::default(), Access::open()).await, tls)
}

const READY: &str = "GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn clients_that_trust_the_certificate_are_served() {
    let files = Files::new(FIRST);
    let (router, _) = router(&files).await;
    let stream = connect(&router, FIRST).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert!(ask(stream, READY).await.starts_with("HTTP/1.1 200"));
    let body = json!({"prompt": "x", "stream": true}).to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: ";
    let stream = connect(&router, FIRST).await.unwrap();
    let answer = ask(stream, &format!("{head}{}\r\n\r\n{body}", body.len())).await;
    assert!(answer.contains("text/event-stream") && answer.contains("data: [DONE]"), "{answer}");
    // Clients that trust another certificate, or that do not use TLS, are not served.
    assert!(connect(&router, SECOND).await.is_err());
    let mut clear = TcpStream::connect(router.address).await.unwrap();
    clear.write_all(READY.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, clear.read_to_end(&mut answer)).await.expect("an end");
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[tokio::test]
async fn changed_files_apply_to_new_connections_only() {
    let files = Files::new(FIRST);
    let (router, tls) = router(&files).await;
    let mut before = connect(&router, FIRST).await.unwrap();
    files.write(SECOND);
    assert!(tls.look().is_none(), "two files are not replaced at once: the first look does not read");
    tls.look().expect("the second does").unwrap();
    assert!(tls.look().is_none());
    assert!(connect(&router, FIRST).await.is_err());
    let stream = connect(&router, SECOND).await.unwrap();
    assert!(ask(stream, READY).await.starts_with("HTTP/1.1 200"));
    before.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut begin = [0; 12];
    before.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
}

#[tokio::test]
async fn the_server_reloads_changed_files_and_counts_failures() {
    let files = Files::new(FIRST);
    let (router, _) = router_that_looks_every(&files, Duration::from_millis(20)).await;
    let metric = async |trusted, name: &str| {
        let request = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let text = ask(connect(&router, trusted).await.ok()?, request).await;
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")))?;
        line.rsplit(' ').next()?.trim().parse::<f64>().ok()
    };
    files.write(SECOND);
    // Until the server has reloaded its files, clients that trust only the new certificate cannot connect.
    eventually("new files", async || metric(SECOND, "trunkline_tls_reloads_total").await == Some(1.0)).await;
    std::fs::write(files.key(), "no key").unwrap();
    let has_failed = async || metric(SECOND, "trunkline_tls_reload_failures_total").await == Some(1.0);
    eventually("a failed reload", has_failed).await;
}

#[tokio::test]
async fn unusable_new_files_change_nothing_and_are_logged_once() {
    let files = Files::new(FIRST);
    let (router, tls) = router(&files).await;
    let read_again = || tls.look().or_else(|| tls.look());
    files.write(EXPIRED);
    let error = read_again().unwrap().unwrap_err().to_string();
    assert!(error.contains("expired at 2020-05-01T00:00:00"), "{error}");
    assert!(read_again().is_none(), "the error is reported once");
    std::fs::remove_file(files.cert()).unwrap();
    assert!(matches!(read_again(), Some(Err(TlsError::Unreadable { .. }))));
    assert!(read_again().is_none(), "the error is reported once");
    let stream = connect(&router, FIRST).await.unwrap();
    assert!(ask(stream, READY).await.starts_with("HTTP/1.1 200"));
}

#[test]
fn unusable_certificates_are_refused() {
    let problem = |change: &dyn Fn(&Files)| {
        let files = Files::new(FIRST);
        change(&files);
        files.load().unwrap_err().to_string()
    };
    let (cert, key) = SECOND;
    for (change, wanted) in [
        (
            &(|files: &Files| std::fs::write(files.key(), key).unwrap()) as &dyn Fn(&Files),
            "does not belong to the certificate in",
        ),
        (&|files| std::fs::write(files.cert(), key).unwrap(), "has no `BEGIN CERTIFICATE`"),
        (&|files| std::fs::write(files.key(), cert).unwrap(), "has no private key in PEM"),
        (
            &|files| {
                std::fs::write(files.cert(), "-----BEGIN CERTIFICATE-----\nMTIz\n-----END CERTIFICATE-----\n")
                    .unwrap()
            },
            "has no X.509 certificate",
        ),
        (&|files| std::fs::write(files.cert(), [0xff; 9]).unwrap(), "`--tls-cert`: "),
        (
            &|files| std::fs::write(files.key(), vec![b'x'; (1 << 20) + 1]).unwrap(),
            "is larger than 1048576 bytes",
        ),
        (&|files| std::fs::remove_file(files.key()).unwrap(), "`--tls-key`: cannot read"),
        (&|files| files.write(EXPIRED), "expired at 2020-05-01T"),
        (&|files| files.write(NOT_YET_VALID), "is not valid before 2999-01-01T"),
    ] {
        let problem = problem(change);
        assert!(problem.contains(wanted), "{wanted}: {problem}");
        assert!(!problem.contains("PRIVATE KEY"), "{problem}");
    }
}

#[test]
fn a_missing_flag_or_an_expired_certificate_fails_the_start() {
    let files = Files::new(EXPIRED);
    crate::support::write_model(files.folder.path());
    for (cert, key, wanted) in [
        (Some(files.cert()), None, "`--tls-cert` needs `--tls-key`"),
        (None, Some(files.key()), "`--tls-key` needs `--tls-cert`"),
        (Some(files.cert()), Some(files.key()), "expired at 2020-05-01T00:00:00"),
    ] {
        let mut settings = settings(files.folder.path());
        (settings.server.tls_cert, settings.server.tls_key) = (cert, key);
        let mut command = Command::new(PROGRAM);
        command.with_settings(files.folder.path(), &settings);
        let done = command.output().unwrap();
        let stderr = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{stderr}");
        let last = stderr.lines().last().unwrap();
        assert!(last.starts_with("error: ") && last.contains(wanted), "{stderr}");
    }
}
