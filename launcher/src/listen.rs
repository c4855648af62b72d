//! Whether the router will be able to listen, found out before anything is loaded.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use crate::error::LauncherError;

/// Where the router will listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// As the user gave it.
    pub hostname: String,
    /// Never 0.
    pub port: u16,
    /// One address of `hostname` that could be bound.
    bound: SocketAddr,
}

impl Address {
    /// Binds `hostname` and `port` as the router would (with `SO_REUSEADDR`, as std and tokio both do), and lets go.
    ///
    /// Port 0 becomes a free port. Another process can still be faster; then the router says so.
    pub fn check(hostname: &str, port: u16) -> Result<Self, LauncherError> {
        let bound = TcpListener::bind((hostname, port)).and_then(|listener| listener.local_addr());
        match bound {
            Ok(bound) => Ok(Self { hostname: hostname.to_owned(), port: bound.port(), bound }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(LauncherError::PortInUse { hostname: hostname.to_owned(), port })
            }
            Err(source) => Err(LauncherError::CannotListen { hostname: hostname.to_owned(), port, source }),
        }
    }

    /// An address under which this machine reaches the server.
    pub fn local(&self) -> SocketAddr {
        let ip = match self.bound.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(ip, self.port)
    }

    /// Whether only this machine can reach the server.
    pub fn is_loopback(&self) -> bool {
        self.bound.ip().is_loopback()
    }
}
