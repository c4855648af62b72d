//! Checks that the router will be able to listen, before anything is loaded.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use crate::error::LauncherError;

/// The address on which the router will listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub hostname: String,
    /// The port; never 0.
    pub port: u16,
    /// An address of `hostname` that could be bound.
    bound: SocketAddr,
}

impl Address {
    /// Binds `hostname` and `port` as the router will (std and tokio both set `SO_REUSEADDR`), and releases them.
    ///
    /// Port 0 becomes a free port. If another process takes the port before the router does, the router reports it.
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

    /// Returns an address under which this machine reaches the server.
    pub fn local(&self) -> SocketAddr {
        let ip = match self.bound.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(ip, self.port)
    }

    /// Returns whether only this machine can reach the server.
    pub fn is_loopback(&self) -> bool {
        self.bound.ip().is_loopback()
    }
}
