//! The address of a server.

use hyper::Uri;
use hyper::http::uri::Scheme;

use super::error::ClientError;

/// A server's address, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub is_tls: bool,
    pub host: String,
    pub port: u16,
    /// Path before `/v1`, empty or with a slash at its beginning.
    pub base: String,
}

impl Address {
    /// Parses `http://HOST:PORT`, with or without the scheme, and with or without `/v1` at its end.
    pub fn parse(url: &str) -> Result<Self, ClientError> {
        let wrong = || ClientError::Url { url: url.to_owned() };
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = full.parse().map_err(|_| wrong())?;
        let is_tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(wrong()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        // Neither credentials nor something else than a number for the port.
        let port =
            uri.authority().and_then(|authority| authority.as_str().strip_prefix(host)).ok_or_else(wrong)?;
        if !port.is_empty() && uri.port_u16().is_none() {
            return Err(wrong());
        }
        let path = uri.path().trim_end_matches('/');
        Ok(Self {
            is_tls,
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            base: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
        })
    }

    /// Returns the value of the `Host` header.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.is_tls, self.port) {
            (false, 80) | (true, 443) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    pub fn url(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.base)
    }
}
