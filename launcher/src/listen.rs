//! The listening socket, which outlives the routers that accept its connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::io::{FdFlags, fcntl_setfd};

use crate::error::LauncherError;

/// The socket on which the server listens. Connections wait in the kernel while no router runs.
#[derive(Debug)]
pub struct Listener {
    pub hostname: String,
    /// The port; never 0.
    pub port: u16,
    /// An address of `hostname`.
    bound: SocketAddr,
    socket: Arc<TcpListener>,
}

impl Listener {
    /// Binds `hostname` and `port` (std sets `SO_REUSEADDR`), before anything is loaded. Port 0 becomes a free port.
    pub fn open(hostname: &str, port: u16) -> Result<Self, LauncherError> {
        let opened = TcpListener::bind((hostname, port))
            .and_then(|socket| socket.local_addr().map(|bound| (Arc::new(socket), bound)));
        match opened {
            Ok((socket, bound)) => {
                Ok(Self { hostname: hostname.to_owned(), port: bound.port(), bound, socket })
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(LauncherError::PortInUse { hostname: hostname.to_owned(), port })
            }
            Err(source) => Err(LauncherError::CannotListen { hostname: hostname.to_owned(), port, source }),
        }
    }

    /// Lets the router that `command` starts inherit the socket, and names its descriptor with `--listener`.
    pub(crate) fn pass_to(&self, command: &mut Command) {
        command.arg("--listener").arg(self.socket.as_raw_fd().to_string());
        let socket = Arc::clone(&self.socket);
        // The flag is cleared only in the new process, so that no other child inherits the socket.
        let hook = move || Ok(fcntl_setfd(&socket, FdFlags::empty())?);
        // SAFETY: only async-signal-safe calls are allowed between fork and exec. The hook calls only fcntl, on a
        // descriptor that it keeps open.
        unsafe {
            command.pre_exec(hook);
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
