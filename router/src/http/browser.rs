//! Keeps web pages away from a server that needs no key because only this machine reaches it.
//!
//! A page can send requests to `127.0.0.1` without reading the answers, and with a name that it points there (DNS
//! rebinding) it can read them, too. Browsers put the page's origin in every request that is not a plain GET, and the
//! name that the page used in `Host`.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};

use super::cors::Origin;

/// The hosts and origins that a server on loopback without keys answers.
#[derive(Debug, Clone, Default)]
pub struct BrowserGuard {
    origins: Vec<Origin>,
}

/// The header of a request that a foreign page sent, and its value.
#[derive(Debug, PartialEq, Eq)]
pub struct Foreign {
    pub header: &'static str,
    pub value: String,
}

impl BrowserGuard {
    /// Allows these origins, and pages that this machine serves.
    pub fn new(origins: Vec<Origin>) -> Self {
        Self { origins }
    }

    /// Fails if a page of another origin sent the request, or used a name for this machine that is not its own.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Foreign> {
        if self.origins.iter().any(Origin::is_any) {
            return Ok(());
        }
        let text =
            |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        if let Some(value) = text(header::ORIGIN)
            && !self.origins.iter().any(|origin| origin.is(&value))
            && !value.split_once("://").is_some_and(|(_, host)| is_local(host))
        {
            return Err(Foreign { header: "origin", value });
        }
        let host =
            uri.authority().map(|authority| authority.as_str().to_owned()).or_else(|| text(header::HOST));
        match host {
            Some(value)
                if !is_local(&value) && !self.origins.iter().any(|origin| origin.has_host(&value)) =>
            {
                Err(Foreign { header: "host", value })
            }
            _ => Ok(()),
        }
    }
}

/// Returns true for `localhost` and for addresses, which no page can point to another machine; a port may follow.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}
