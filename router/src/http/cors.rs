//! Scripts of other origins, in browsers: who may call, and what they may read (WHATWG Fetch, section 3.2).
//!
//! Keys come in headers that a script sets itself, never in cookies: credentials in the sense of that standard are not
//! asked for, so any origin may be let in.

use std::time::Duration;

use axum::http::{HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::tenants::EXPOSED_HEADERS;

/// How long a browser may keep the answer to its question.
const MAX_AGE: Duration = Duration::from_secs(3600);
/// Every origin.
const ANY: &str = "*";

/// An origin that may call: `*`, or scheme and host as browsers write them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(HeaderValue);

impl std::str::FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value =
            HeaderValue::from_str(text).map_err(|_| "holds a character that no header can".to_owned())?;
        if text == ANY {
            return Ok(Self(value));
        }
        let (scheme, host) = text.split_once("://").unwrap_or_default();
        let is_scheme =
            scheme.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        let is_host = host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@*\\,".contains(&byte));
        if scheme.is_empty() || host.is_empty() || !is_scheme || !is_host {
            return Err(
                "is no origin; hint: such as `https://chat.example.com`, without a path, or `*`".to_owned()
            );
        }
        Ok(Self(HeaderValue::from_str(&text.to_ascii_lowercase()).unwrap_or(value)))
    }
}

/// What answers browsers; none if no origin is let in.
pub fn layer(origins: &[Origin]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let allowed = if origins.iter().any(|origin| origin.0 == ANY) {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().map(|origin| origin.0.clone()))
    };
    let layer = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // By name: `*` does not stand for `Authorization`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(EXPOSED_HEADERS)
        .max_age(MAX_AGE);
    Some(layer)
}
