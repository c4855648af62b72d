//! The network that a client belongs to. Clients without keys are told apart by it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// An IPv4 address, or the first 64 bits of an IPv6 address, since one machine can use all addresses that begin with
/// them (RFC 4291, section 2.5.4; RFC 4862).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientNetwork(IpAddr);

impl ClientNetwork {
    pub fn of(address: IpAddr) -> Self {
        // An IPv4 client of a socket for both versions has a mapped address.
        Self(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address => address,
        })
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(f, "{address}"),
            IpAddr::V6(address) => write!(f, "{address}/64"),
        }
    }
}
