//! The web page's files.

use std::path::Path;

use serde_json::json;
use trunkline_base::limits::Limits;
use trunkline_base::tenants::Access;
use trunkline_http::browser::BrowserGuard;
use trunkline_router::server::Front;

use crate::support::Router;

const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");

#[tokio::test]
async fn browsers_get_the_page_and_other_clients_the_text_of_ollama() {
    let router = Router::default().await;
    let mut connection = router.connect().await;
    let page = connection.request_with("GET", "/", &[BROWSER], b"").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.text().starts_with("<!doctype html>"), "{}", page.text());
    // Ollama's clients look for this text.
    let answer = router.get("/").await;
    assert_eq!((answer.text().as_str(), answer.header("vary")), ("Ollama is running", Some("accept")));
    let text = page.text();
    let files: Vec<&str> = text.split('"').filter_map(|value| value.strip_prefix('.')).collect();
    assert!(files.contains(&"/assets/main.js"), "{files:?}");
    for path in files {
        assert_eq!(router.get(path).await.status, 200, "{path}");
    }
    // The same path takes TGI's requests.
    router.post("/", &json!({"inputs": "x", "parameters": {"max_new_tokens": 1}})).await.ok();
    router.get("/assets/none.js").await.fails(404, "route_not_found");
    router.post("/assets/main.js", &json!({})).await.fails(405, "method_not_allowed");
}

#[tokio::test]
async fn every_built_file_is_served() {
    let router = Router::default().await;
    let mut num_files = 0;
    for folder in ["", "assets/"] {
        let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/dist").join(folder);
        for entry in std::fs::read_dir(dist).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_dir() || name == "index.html" {
                continue;
            }
            let file = router.get(&format!("/{folder}{name}")).await;
            assert_eq!((file.status, &file.body), (200, &std::fs::read(entry.path()).unwrap()), "{name}");
            let content_type = match name.rsplit_once('.').unwrap().1 {
                "js" => "text/javascript; charset=utf-8",
                "css" => "text/css; charset=utf-8",
                "svg" => "image/svg+xml",
                _ => "text/plain; charset=utf-8",
            };
            assert_eq!(file.header("content-type"), Some(content_type), "{name}");
            num_files += 1;
        }
    }
    assert!(num_files > 5, "{num_files}");
}

#[tokio::test]
async fn a_file_is_sent_again_only_if_it_has_changed() {
    let router = Router::default().await;
    for path in ["/", "/assets/main.js"] {
        let mut connection = router.connect().await;
        let first = connection.request_with("GET", path, &[BROWSER], b"").await;
        assert_eq!(first.header("cache-control"), Some("no-cache"));
        let tag = first.header("etag").unwrap();
        for known in [tag.to_owned(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".to_owned()] {
            let again =
                connection.request_with("GET", path, &[BROWSER, ("if-none-match", &known)], b"").await;
            assert_eq!(
                (again.status, again.header("etag"), again.body.len()),
                (304, Some(tag), 0),
                "{known}"
            );
        }
        let headers = [BROWSER, ("if-none-match", "\"other\"")];
        let other = connection.request_with("GET", path, &headers, b"").await;
        assert_eq!((other.status, &other.body), (200, &first.body));
    }
}

#[tokio::test]
async fn a_page_loads_from_its_server_only_and_no_other_page_can_frame_it() {
    let router = Router::default().await;
    let mut connection = router.connect().await;
    for path in ["/", "/assets/main.js", "/favicon.svg"] {
        let answer = connection.request_with("GET", path, &[BROWSER], b"").await;
        let policy = answer.header("content-security-policy").unwrap();
        for rule in ["default-src 'self'", "object-src 'none'", "base-uri 'none'", "frame-ancestors 'none'"] {
            assert!(policy.split("; ").any(|part| part == rule), "{policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
    }
    let page = connection.request_with("GET", "/", &[BROWSER], b"").await.text();
    assert!(!page.contains("http://") && !page.contains("https://"), "{page}");
    assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains("<script>"), "{page}");
}

#[tokio::test]
async fn the_page_needs_no_key_and_its_data_do() {
    let front = Front { guard: Some(BrowserGuard::new(Vec::new())), ..Front::default() };
    let access = Access::new(None, Some("sk-marker-key-0123456789")).unwrap();
    let router = Router::start_behind(front, Limits::default(), access).await;
    let mut connection = router.connect().await;
    for path in ["/", "/assets/main.js", "/favicon.svg"] {
        assert_eq!(connection.request_with("GET", path, &[BROWSER], b"").await.status, 200, "{path}");
        let mut head = router.connect().await;
        head.send_with("HEAD", path, &[BROWSER, ("connection", "close")], b"").await;
        assert!(!head.read_until(|_| false).await);
        let received = head.received();
        assert!(received.starts_with("HTTP/1.1 200") && received.ends_with("\r\n\r\n"), "{path}: {received}");
    }
    for path in ["/v1/models", "/metrics", "/docs", "/openapi.json"] {
        let answer = connection.request_with("GET", path, &[BROWSER, ("host", "localhost")], b"").await;
        assert!(matches!(answer.status, 401 | 403), "{path}: {}", answer.status);
    }
}

#[tokio::test]
async fn a_server_without_the_page_shows_browsers_its_document() {
    let front = Front { no_web: true, ..Front::default() };
    let router = Router::start_behind(front, Limits::default(), Access::open()).await;
    let mut connection = router.connect().await;
    let answer = connection.request_with("GET", "/", &[BROWSER], b"").await;
    assert_eq!((answer.status, answer.header("location")), (307, Some("/docs")));
    assert_eq!(router.get("/").await.text(), "Ollama is running");
    for path in ["/assets/main.js", "/favicon.svg"] {
        router.get(path).await.fails(404, "route_not_found");
    }
}
