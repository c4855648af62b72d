use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use trunkline_launcher::error::LauncherError;
use trunkline_launcher::listen::Listener;

#[test]
fn port_zero_becomes_a_free_port() {
    let listener = Listener::open("127.0.0.1", 0).unwrap();
    assert_ne!(listener.port, 0);
    assert!(listener.is_loopback());
    assert_eq!(listener.local(), SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.port));
}

#[test]
fn taken_port_is_told_from_an_impossible_address() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = Listener::open("127.0.0.1", port).unwrap_err();
    assert!(matches!(error, LauncherError::PortInUse { .. }), "{error}");
    let error = Listener::open("192.0.2.1", 0).unwrap_err();
    assert!(matches!(error, LauncherError::CannotListen { .. }), "{error}");
}

#[test]
fn unspecified_address_is_reached_by_loopback() {
    let listener = Listener::open("0.0.0.0", 0).unwrap();
    assert!(!listener.is_loopback());
    assert!(listener.local().ip().is_loopback());
}
