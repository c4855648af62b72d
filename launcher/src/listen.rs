//! The listening sockets, which outlive the routers that accept their connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::io::{FdFlags, fcntl_setfd};
use trunkline_settings::Server;

use crate::error::LauncherError;

/// The beginning of the flags of the socket for all requests (`--hostname`, `--port`), and of the one for metrics and
/// probes (`--metrics-hostname`, `--metrics-port`).
const CLIENT_FLAGS: &str = "--";
const METRICS_FLAGS: &str = "--metrics-";

/// A socket on which the server listens. Connections wait in the kernel while no router runs.
#[derive(Debug)]
pub struct Listener {
    flag_prefix: &'static str,
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
        Self::bind(CLIENT_FLAGS, hostname, port)
    }

    /// Does the same for the metrics, if they have a port.
    pub fn open_for_metrics(server: &Server) -> Result<Option<Self>, LauncherError> {
        let port = Some(server.metrics_port).filter(|port| *port != 0);
        port.map(|port| Self::bind(METRICS_FLAGS, &server.metrics_hostname, port)).transpose()
    }

    fn bind(flag_prefix: &'static str, hostname: &str, port: u16) -> Result<Self, LauncherError> {
        let opened = TcpListener::bind((hostname, port))
            .and_then(|socket| socket.local_addr().map(|bound| (Arc::new(socket), bound)));
        match opened {
            Ok((socket, bound)) => {
                Ok(Self { flag_prefix, hostname: hostname.to_owned(), port: bound.port(), bound, socket })
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(LauncherError::PortInUse { flag_prefix, hostname: hostname.to_owned(), port })
            }
            Err(source) => {
                Err(LauncherError::CannotListen { flag_prefix, hostname: hostname.to_owned(), port, source })
            }
        }
    }

    /// Lets the router that `command` starts inherit the socket, and names its descriptor with `--listener` or
    /// `--metrics-listener`.
    pub(crate) fn pass_to(&self, command: &mut Command) {
        command.arg(format!("{}listener", self.flag_prefix)).arg(self.socket.as_raw_fd().to_string());
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

    /// Returns true if only this machine can reach the server.
    pub fn is_loopback(&self) -> bool {
        self.bound.ip().is_loopback()
    }
}
