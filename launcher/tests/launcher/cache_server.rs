//! `trunkline cache --url` against a fake server that answers like the router.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::support::Bench;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

const KEY: &str = "sk-alice-0123456789";
/// Keys of blocks, as servers and folders name them.
const SYSTEM: &str = "9a23c0ffee1200000000000000000001";
const ONE: &str = "9a23c0ffee1200000000000000000002";
const TWO: &str = "51c0000000000000000000000000000a";

/// The requests as `METHOD path body`, and the answers by method and path.
struct FakeServer {
    url: String,
    seen: Arc<Mutex<Vec<String>>>,
}

type Answers = BTreeMap<&'static str, (u16, Value)>;

impl FakeServer {
    /// Starts a server that requires `key`, if given. Its thread ends with the test's process.
    fn start(key: Option<&'static str>, answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        Self::serve(listener, url, key, answers, None)
    }

    /// Starts a server for `https` with this certificate of the router's tests, which is for `localhost`.
    fn start_tls(name: &str, answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let chain = vec![CertificateDer::from_pem_file(certificate(name)).unwrap()];
        let key = PrivateKeyDer::from_pem_file(certificate("first").with_file_name("first.key.pem")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
        Self::serve(listener, url, None, answers, Some(Arc::new(config)))
    }

    fn serve(
        listener: TcpListener,
        url: String,
        key: Option<&'static str>,
        answers: Answers,
        tls: Option<Arc<ServerConfig>>,
    ) -> Self {
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                // A client that does not trust the certificate leaves in the middle.
                let _ = match &tls {
                    None => answer(stream, key, &answers, &log),
                    Some(config) => {
                        let connection = ServerConnection::new(config.clone()).unwrap();
                        answer(StreamOwned::new(connection, stream), key, &answers, &log)
                    }
                };
            }
        });
        Self { url, seen }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn certificate(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../router/tests/router/certificates");
    Path::new(folder).join(format!("{name}.cert.pem"))
}

fn answer(
    mut stream: impl Read + Write,
    key: Option<&str>,
    answers: &Answers,
    log: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut reader = BufReader::new(&mut stream);
    let (mut head, mut length, mut sent_key) = (String::new(), 0, None);
    reader.read_line(&mut head)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "authorization" => sent_key = value.strip_prefix("Bearer ").map(str::to_owned),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let asked = head.rsplit_once(' ').unwrap().0.to_owned();
    log.lock().unwrap().push(format!("{asked} {}", String::from_utf8(body).unwrap()).trim_end().to_owned());
    let unauthorized = (401, json!({"error": {"message": "no API key was sent"}}));
    let unknown = (404, json!({"error": {"message": "node is not in the KV cache"}}));
    let (status, body) = match key {
        Some(key) if sent_key.as_deref() != Some(key) => &unauthorized,
        _ => answers.get(asked.as_str()).unwrap_or(&unknown),
    };
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )?;
    stream.flush()
}

fn node(number: u32, key: &str, parent: Option<u32>, (first, tokens): (u32, u32), rest: &Value) -> Value {
    let mut node = json!({
        "id": format!("{number}-{key}"), "parent": parent, "namespace": "7be1d2f0", "first_token": first,
        "tokens": tokens, "blocks": tokens.div_ceil(64), "bytes": u64::from(tokens.div_ceil(64)) * 783_360, "held": 0, "stored": 0, "pinned": 0, "disk_pinned": 0,
        "pin_ends_in_ms": null, "prompt_cache_keys": [], "children": 0, "hits": 0, "age_ms": 5_000,
    });
    for (field, value) in rest.as_object().unwrap() {
        node[field] = value.clone();
    }
    node
}

/// A system prompt that two conversations share, on two pages.
fn answers() -> Answers {
    let totals = json!({
        "block_size": 64, "block_bytes": 783_360,
        "device": {"blocks": 2048, "free": 1950, "held": 2, "cached": 96,
                   "bytes": 2048 * 783_360_u64, "used_bytes": 98 * 783_360},
        "disk": {"slots": 13_653, "blocks": 188},
        "tenants": [{"tenant": "alice", "device_blocks": 98, "device_share_blocks": 682, "device_cached": 96,
                     "device_pinned": 2, "device_evicted": 0, "disk_blocks": 188, "disk_pinned": 12}],
    });
    let pinned = json!({"held": 2, "pinned": 2, "disk_pinned": 2, "pin_ends_in_ms": 3_540_000, "stored": 2, "hits": 3});
    let system = node(4, SYSTEM, None, (0, 128), &pinned);
    let one =
        node(7, ONE, Some(4), (128, 6016), &json!({"held": 1, "hits": 1, "age_ms": 120_000, "stored": 90}));
    let two = json!({"prompt_cache_keys": ["chat \u{1b}[2J"], "age_ms": 1_000});
    let two = node(9, TWO, Some(4), (128, 30), &two);
    let page =
        |data: Vec<&Value>, next: Option<u32>| (200, json!({"object": "list", "data": data, "next": next}));
    let mut shown = system.clone();
    shown["text"] = json!("You are \u{1b}[31mkind.\nAlways.");
    BTreeMap::from([
        ("GET /v1/kv", (200, totals)),
        ("GET /v1/kv/tree?limit=1000", page(vec![&system, &one], Some(9))),
        ("GET /v1/kv/tree?limit=1000&after=9", page(vec![&two], None)),
        ("GET /v1/kv/tree/4-9a23c0ffee1200000000000000000001?text=true", (200, shown)),
        (
            "GET /v1/kv/tree/9-51c0000000000000000000000000000a?text=true",
            (403, json!({"error": {"message": "the text of prompts is not shown"}})),
        ),
        ("DELETE /v1/kv/tree/9-51c0000000000000000000000000000a", (200, json!({"removed_blocks": 1}))),
        ("DELETE /v1/kv/tree/4-9a23c0ffee1200000000000000000001", (200, json!({"removed_blocks": 97}))),
        (
            "POST /v1/kv/tree/9-51c0000000000000000000000000000a/pin",
            (200, json!({"pinned_tokens": 128, "disk_pinned_tokens": null, "ttl_s": 60})),
        ),
        (
            "POST /v1/kv/tree/4-9a23c0ffee1200000000000000000001/pin",
            (409, json!({"error": {"message": "nothing of node `4` was pinned"}})),
        ),
        ("DELETE /v1/kv/tree/9-51c0000000000000000000000000000a/pin", (200, json!({"unpinned_blocks": 3}))),
        ("DELETE /v1/kv/tree/4-9a23c0ffee1200000000000000000001/pin", (200, json!({"unpinned_blocks": 2}))),
    ])
}

fn cache(args: &[&str]) -> (i32, String, String) {
    let bench = Bench::new().with("KV_KEY", KEY).with("KV_WRONG", "sk-bob-0123456789ab");
    bench.run(&[&["cache"], args].concat())
}

#[test]
fn a_servers_tree_is_shown_with_pins_and_tiers() {
    let server = FakeServer::start(Some(KEY), answers());
    let (code, out, error) = cache(&["ls", "--url", &server.url, "--api-key-env", "KV_KEY"]);
    assert_eq!(code, 0, "{error}");
    let lines: Vec<&str> = out.lines().collect();
    let head = format!(
        "{}  device: 98 of 2,048 blocks, 73.2 MiB of 1.5 GiB; disk: 188 of 13,653 blocks; blocks of 64 tokens",
        server.url
    );
    assert_eq!(
        lines,
        [
            head.as_str(),
            "  alice: device 98 of 682, 2 pinned; disk 188, 12 pinned",
            "└─ 4-9a23c0ffee1200000000000000000001  128 tokens  2 blocks, 1.5 MiB  disk 2  3 hits  5 s ago  pinned for 59 min",
            "   ├─ 9-51c0000000000000000000000000000a  30 tokens  1 block, 765.0 KiB  0 hits  1 s ago  chat \\u{1b}[2J",
            "   └─ 7-9a23c0ffee1200000000000000000002  6,016 tokens  94 blocks, 70.2 MiB  disk 90  1 hit  2 min ago",
        ]
    );
    let pages = server.seen().iter().filter(|asked| asked.contains("/tree?")).count();
    assert_eq!(pages, 2);
}

#[test]
fn one_path_is_shown_with_its_text_where_there_is_any() {
    let server = FakeServer::start(None, answers());
    let (code, out, error) = cache(&["show", "--url", &server.url, "51c0"]);
    assert_eq!(code, 0, "{error}");
    let lines: Vec<&str> = out.lines().map(str::trim_start).collect();
    assert!(
        lines[0].starts_with("4-9a23c0ffee1200000000000000000001  128 tokens")
            && lines[1] == "tokens 0 to 127",
        "{out}"
    );
    assert_eq!(lines[2..4], ["│ You are \\u{1b}[31mkind.", "│ Always."]);
    assert!(
        lines[4].starts_with("9-51c0000000000000000000000000000a  30 tokens")
            && lines[5] == "tokens 128 to 157",
        "{out}"
    );
    assert_eq!(lines.len(), 6, "the other's text is not shown");
    for id in ["9-51c0", "9-51c0000000000000000000000000000a", "4-9a23"] {
        let (code, out, error) = cache(&["show", "--url", &server.url, id]);
        assert!(code == 0 && out.contains(id), "{id}: {error}");
    }
    let (code, _, error) = cache(&["show", "--url", &server.url, "8-51c0"]);
    assert!(code == 2 && error.contains("no path has the id `8-51c0`"), "{error}");
}

#[test]
fn nodes_are_pinned_and_removed() {
    let server = FakeServer::start(None, answers());
    let ask = |args: &[&str]| cache(&[args, &["--url", &server.url]].concat());
    assert_eq!(ask(&["pin", "51c0", "--ttl", "60"]).1, "pinned 128 tokens on the device for 60 s\n");
    assert_eq!(ask(&["pin", "51c0", "--end"]).1, "unpinned 3 blocks on the device\n");
    let (code, _, error) = ask(&["pin", SYSTEM]);
    assert!(code == 1 && error.contains("answered 409: nothing of node `4` was pinned"), "{error}");
    let (code, out, _) = ask(&["rm", "51c0"]);
    assert_eq!((code, out.as_str()), (0, "removed 1 block from the device and any copies on disk\n"));
    let (code, out, _) = ask(&["rm", "--all"]);
    assert_eq!(code, 0);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines,
        [
            "removed 97 blocks from the device and any copies on disk",
            "2 pinned blocks stay; hint: `--pinned` ends their pins and removes them, too",
            "1 block stays because a request uses it",
        ]
    );
    assert!(!server.seen().iter().any(|asked| asked.starts_with("DELETE") && asked.ends_with("0001/pin")));
    let (code, out, _) = ask(&["rm", "9a23c0ffee1200000000000000000001", "--pinned"]);
    assert!(code == 0 && !out.contains("pinned"), "{out}");
    let end = "DELETE /v1/kv/tree/4-9a23c0ffee1200000000000000000001/pin";
    assert!(server.seen().iter().any(|asked| asked == end), "{:?}", server.seen());
    let (code, _, error) = cache(&["rm", "folder", "--all", "--pinned"]);
    assert!(code == 2 && error.contains("--url"), "{error}");
    let pin = "POST /v1/kv/tree/9-51c0000000000000000000000000000a/pin {\"ttl_s\":60}";
    assert!(server.seen().iter().any(|asked| asked == pin), "{:?}", server.seen());
}

#[test]
fn tiers_that_a_server_lacks_are_not_named() {
    for (tiers, wanted) in [
        (json!({}), "removed 97 blocks from the device\n"),
        (
            json!({"host": {"slots": 9, "blocks": 1}}),
            "removed 97 blocks from the device and any copies in host memory\n",
        ),
        (
            json!({"disk": {"slots": 9, "blocks": 1}, "object_store": {"put_blocks": 1}}),
            "removed 97 blocks from the device and any copies on disk and in the object store\n",
        ),
    ] {
        let mut answers = answers();
        let (_, totals) = answers.get_mut("GET /v1/kv").unwrap();
        for tier in ["host", "disk", "object_store"] {
            totals[tier] = tiers[tier].clone();
        }
        let server = FakeServer::start(None, answers);
        let (code, out, error) = cache(&["rm", "--all", "--pinned", "--url", &server.url]);
        assert!(code == 0 && out.starts_with(wanted), "{out}{error}");
    }
}

#[test]
fn what_goes_wrong_is_said_with_a_way_out() {
    let server = FakeServer::start(Some(KEY), answers());
    let with = |args: &[&str], variable: &str| {
        let (code, _, error) = cache(&[args, &["--url", &server.url, "--api-key-env", variable]].concat());
        (code, error)
    };
    let (code, error) = with(&["ls"], "KV_WRONG");
    assert!(code == 2 && error.contains("requires a valid API key") && error.contains("hint: "), "{error}");
    let (code, error) = with(&["ls"], "KV_UNSET");
    assert!(
        code == 2
            && error.contains("variable `KV_UNSET` named by `--api-key-env` is not set")
            && !error.contains(KEY),
        "{error}"
    );
    let (code, error) = with(&["show", "0000"], "KV_KEY");
    assert!(code == 2 && error.contains("no path has the id `0000`"), "{error}");
    let (code, error) = with(&["show", "9a23"], "KV_KEY");
    assert!(code == 2 && error.contains("2 ids start with `9a23`"), "{error}");
    let (code, error) = with(&["show", "9a2"], "KV_KEY");
    assert!(code == 2 && error.contains("`9a2` is too short; hint: give at least 4 digits"), "{error}");
    // This port is free.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, _, error) = cache(&["ls", "--url", &format!("http://{free}")]);
    assert!(code == 1 && error.contains("no answer from") && error.contains("hint: "), "{error}");
    // The server does not accept TLS: it closes the connection, or answers without.
    let (code, _, error) = cache(&["ls", "--url", &server.url.replace("http", "https")]);
    assert!(code == 1 && error.contains("https://") && error.contains("hint: "), "{error}");
    let other = FakeServer::start(None, BTreeMap::from([("GET /v1/kv", (200, json!({"hello": 1})))]));
    let (code, _, error) = cache(&["ls", "--url", &other.url]);
    assert!(code == 1 && error.contains("did not answer like a Trunkline server"), "{error}");
    for args in [
        &["ls"][..],
        &["ls", "--url", "localhost:1"],
        &["pin", "51c0"],
        &["show"],
        &["show", "x"],
        &["rm"],
        &["export", "x"],
        &["import"],
        &["import", "x", "y", "z"],
    ] {
        let (code, _, error) = cache(args);
        assert!(code == 2 && !error.is_empty(), "{args:?}: {error}");
    }
}

#[test]
fn certificates_are_trusted_on_request() {
    let server = FakeServer::start_tls("first", answers());
    let (first, second) = (certificate("first"), certificate("second"));
    let ls = |url: &str, args: &[&str]| {
        // The authorities of the system, whatever it has.
        let bench = Bench::new().with("SSL_CERT_FILE", &second);
        bench.run(&[&["cache", "ls", "--url", url], args].concat())
    };
    let trusted = ["--cacert", first.to_str().unwrap()];
    for args in [&trusted[..], &["--insecure"]] {
        let (code, out, error) = ls(&server.url, args);
        assert!(code == 0 && out.starts_with(&server.url), "{args:?}: {error}");
    }
    let untrusted = format!("the certificate of `{}` is not trusted: ", server.url);
    let number = server.url.replace("localhost", "127.0.0.1");
    let expired = FakeServer::start_tls("expired", answers());
    for (url, args, wanted) in [
        (&server.url, &[][..], &*untrusted),
        (
            &server.url,
            &[],
            "authority; hint: name the authority, or a self-signed certificate itself, with `--cacert",
        ),
        (&server.url, &["--cacert", second.to_str().unwrap()], "does not name its authority"),
        (
            &number,
            &trusted,
            "is not trusted: it is for localhost; hint: use a name of the certificate in `--url`",
        ),
        (
            &expired.url,
            &["--cacert", certificate("expired").to_str().unwrap()],
            "is not trusted: it has expired",
        ),
    ] {
        let (code, _, error) = ls(url, args);
        assert!(code == 1 && error.contains(wanted), "{args:?}: {code} {error}");
    }
    for (file, wanted) in [("no/such", "No such file"), (file!(), "it contains no certificate in PEM")] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
        let (code, _, error) = ls(&server.url, &["--cacert", file.to_str().unwrap()]);
        assert!(code == 2 && error.contains(wanted) && error.contains("hint: "), "{error}");
    }
    assert_eq!(ls(&server.url, &["--insecure", trusted[0], trusted[1]]).0, 2);
    assert_eq!(cache(&["ls", "folder", "--insecure"]).0, 2);
}

#[test]
fn a_server_that_walks_in_circles_is_left() {
    let mut circle = answers();
    circle.insert("GET /v1/kv/tree?limit=1000&after=9", (200, json!({"data": [], "next": 4})));
    let server = FakeServer::start(None, circle);
    let (code, _, error) = cache(&["ls", "--url", &server.url]);
    assert!(code == 1 && error.contains("an empty page names 4 as the next page"), "{error}");
}
