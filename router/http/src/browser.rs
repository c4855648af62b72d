//! Keeps web pages away from a server that needs no key because only this machine reaches it.
//!
//! A page can send requests to `127.0.0.1` without reading the answers, and with a name that it points there (DNS
//! rebinding) it can read them, too. Browsers put the page's origin in every request that is not a plain GET, and the
//! name that the page used in `Host`.
//!
//! Besides pages of allowed origins, two kinds may use the server:
//!
//! - pages that this machine serves, at `localhost`, a name below it, or a loopback address, and at any port;
//! - pages of the host and port in `Host`, if that is an address. A browser that puts an address there has connected to
//!   it, so the page comes from the server itself or from a proxy in front of it. A name there shows nothing of the
//!   kind: its owner can point it to this machine after the page was loaded from another one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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
        let host =
            uri.authority().map(|authority| authority.as_str().to_owned()).or_else(|| text(header::HOST));
        let own = host.as_deref().and_then(FixedHost::parse);
        if let Some(value) = text(header::ORIGIN)
            && !self.origins.iter().any(|origin| origin.is(&value))
            && !is_local_or_own(&value, own)
        {
            return Err(Foreign { header: "origin", value });
        }
        match host {
            Some(value) if own.is_none() && !self.origins.iter().any(|origin| origin.has_host(&value)) => {
                Err(Foreign { header: "host", value })
            }
            _ => Ok(()),
        }
    }
}

/// Returns true for the origin of a page that this machine serves, or the server at `own`.
fn is_local_or_own(origin: &str, own: Option<FixedHost>) -> bool {
    let Some((scheme, host)) = origin.split_once("://") else { return false };
    let Some(host) = FixedHost::parse(host) else { return false };
    let default_port = if scheme.eq_ignore_ascii_case("https") { 443 } else { 80 };
    let has_port = |host: FixedHost| (host.address, host.port.unwrap_or(default_port));
    host.is_loopback() || own.is_some_and(|own| has_port(own) == has_port(host))
}

/// A host that no page can point to another machine, as browsers write it.
#[derive(Debug, Clone, Copy)]
struct FixedHost {
    /// The address; `None` for `localhost` and the names below it (RFC 6761, section 6.3).
    address: Option<IpAddr>,
    port: Option<u16>,
}

impl FixedHost {
    fn parse(text: &str) -> Option<Self> {
        let (address, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                (Some(IpAddr::V6(address.parse::<Ipv6Addr>().ok()?)), port)
            }
            None => {
                let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
                let is_localhost = name == "localhost" || name.ends_with(".localhost");
                let address = || name.parse::<Ipv4Addr>().ok().map(|address| Some(address.into()));
                (if is_localhost { None } else { address()? }, port)
            }
        };
        let port = match port {
            "" => None,
            port => Some(port.strip_prefix(':')?.parse().ok()?),
        };
        Some(Self { address, port })
    }

    fn is_loopback(self) -> bool {
        self.address.is_none_or(|address| address.to_canonical().is_loopback())
    }
}
