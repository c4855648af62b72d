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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_zero_becomes_a_free_port_and_is_free_again() {
        let address = Address::check("127.0.0.1", 0).unwrap();
        assert_ne!(address.port, 0);
        assert!(address.is_loopback());
        assert_eq!(address.local(), SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port));
    }

    #[test]
    fn taken_port_is_told_from_an_impossible_address() {
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = Address::check("127.0.0.1", port).unwrap_err();
        assert!(matches!(error, LauncherError::PortInUse { .. }), "{error}");
        let error = Address::check("192.0.2.1", 0).unwrap_err();
        assert!(matches!(error, LauncherError::CannotListen { .. }), "{error}");
    }

    #[test]
    fn unspecified_address_is_reached_by_loopback() {
        let address = Address::check("0.0.0.0", 0).unwrap();
        assert!(!address.is_loopback());
        assert!(address.local().ip().is_loopback());
    }
}
