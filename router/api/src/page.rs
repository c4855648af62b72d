//! The web page, whose files are part of the executable. `make web` builds them from `web/`.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::dialect::Errors;
use trunkline_base::error::ApiError;

/// Scripts and requests stay with this server, and nothing of the page can be put into another one. Images that a
/// conversation contains come from the page itself.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; \
    connect-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// A file of the page.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

macro_rules! assets {
    ($($path:literal $content_type:expr;)*) => {
        [$(Asset {
            path: $path,
            content_type: $content_type,
            bytes: include_bytes!(concat!("../../../web/dist", $path)),
        },)*]
    };
}

/// Every file of `web/dist/`, which a test compares.
const ASSETS: [Asset; 13] = assets! {
    "/index.html" "text/html; charset=utf-8";
    "/favicon.svg" "image/svg+xml";
    "/assets/main.css" STYLE;
    "/assets/panels.css" STYLE;
    "/assets/server.css" STYLE;
    "/assets/cache.css" STYLE;
    "/assets/main.js" SCRIPT;
    "/assets/server.js" SCRIPT;
    "/assets/cache.js" SCRIPT;
    "/assets/panels.js" SCRIPT;
    "/assets/highlight.js" SCRIPT;
    "/assets/theme.js" SCRIPT;
    "/assets/licenses.txt" "text/plain; charset=utf-8";
};

/// The entity tags of [`ASSETS`], which change with the content.
static TAGS: LazyLock<[HeaderValue; ASSETS.len()]> = LazyLock::new(|| {
    ASSETS.map(|asset| {
        let digits: String =
            Sha256::digest(asset.bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        HeaderValue::from_str(&format!("\"{digits}\"")).expect("hexadecimal digits")
    })
});

/// Answers `/`: browsers get the page, and other clients the text by which Ollama's know that a server runs.
pub async fn root(headers: HeaderMap) -> Response {
    let mut response =
        if accepts_html(&headers) { answer("/index.html", &headers) } else { ollama_runs().into_response() };
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    response
}

/// Answers `/assets/{file}`.
pub async fn asset(uri: Uri, Path(_): Path<String>, headers: HeaderMap) -> Response {
    answer(uri.path(), &headers)
}

/// Answers `/favicon.svg`.
pub async fn icon(headers: HeaderMap) -> Response {
    answer("/favicon.svg", &headers)
}

/// Returns true for browsers that open an address.
pub fn accepts_html(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|accepted| accepted.to_str().ok())
        .is_some_and(|accepted| accepted.contains("text/html"))
}

pub fn ollama_runs() -> &'static str {
    "Ollama is running"
}

fn answer(path: &str, headers: &HeaderMap) -> Response {
    let Some(idx) = ASSETS.iter().position(|asset| asset.path == path) else {
        let path = path.chars().take(128).collect();
        return Errors::Tgi.response(&ApiError::UnknownRoute { path, similar: None });
    };
    let (asset, tag) = (&ASSETS[idx], &TAGS[idx]);
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| has_tag(known, tag));
    let fields: [(HeaderName, HeaderValue); 6] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.content_type)),
        (header::ETAG, tag.clone()),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    match is_known {
        true => (StatusCode::NOT_MODIFIED, fields).into_response(),
        false => (fields, Bytes::from_static(asset.bytes)).into_response(),
    }
}

/// Returns true if `If-None-Match` names the tag, weakly or not (RFC 9110, section 13.1.2).
pub(crate) fn has_tag(known: &HeaderValue, tag: &HeaderValue) -> bool {
    let (Ok(known), Ok(tag)) = (known.to_str(), tag.to_str()) else { return false };
    known.split(',').map(str::trim).any(|known| known == "*" || known.trim_start_matches("W/") == tag)
}
