//! Cross-origin requests from browsers: the origins that may call, and the headers that their scripts may read (WHATWG
//! Fetch, section 3.2).
//!
//! API keys are sent in headers that a script sets, never in cookies. The server therefore does not allow credentials
//! in the sense of that standard, and it is safe to allow any origin.

use std::time::Duration;

use axum::http::{HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use trunkline_base::tenants::EXPOSED_HEADERS;

/// The time for which a browser may cache the answer to a preflight request.
const MAX_AGE: Duration = Duration::from_secs(3600);
/// The value that allows every origin.
const ANY: &str = "*";

/// An allowed origin: `*`, or scheme and host as browsers send them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(HeaderValue);

impl std::str::FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value = HeaderValue::from_str(text)
            .map_err(|_| "has a character that a header cannot contain".to_owned())?;
        if text == ANY {
            return Ok(Self(value));
        }
        let (scheme, host) = text.split_once("://").unwrap_or_default();
        let is_scheme =
            scheme.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        let is_host = host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@*\\,".contains(&byte));
        if scheme.is_empty() || host.is_empty() || !is_scheme || !is_host {
            return Err(
                "is not an origin; hint: use `*`, or scheme and host as in `https://chat.example.com`"
                    .to_owned(),
            );
        }
        Ok(Self(HeaderValue::from_str(&text.to_ascii_lowercase()).unwrap_or(value)))
    }
}

impl Origin {
    pub(super) fn is_any(&self) -> bool {
        self.0 == ANY
    }

    /// Returns true if a browser sent this origin.
    pub(super) fn is(&self, sent: &str) -> bool {
        self.0.as_bytes().eq_ignore_ascii_case(sent.as_bytes())
    }

    /// Returns true if this is the host, with its port, of the origin.
    pub(super) fn has_host(&self, sent: &str) -> bool {
        let host = self.0.to_str().ok().and_then(|origin| origin.split_once("://"));
        host.is_some_and(|(_, host)| host.eq_ignore_ascii_case(sent))
    }
}

/// Returns the layer that answers cross-origin requests, or `None` if no origin is allowed.
pub fn layer(origins: &[Origin]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let allowed = if origins.iter().any(Origin::is_any) {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().map(|origin| origin.0.clone()))
    };
    let layer = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // The names are mirrored, because `*` does not include `Authorization`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(EXPOSED_HEADERS)
        .max_age(MAX_AGE);
    Some(layer)
}
