use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use trunkline_launcher::error::LauncherError;
use trunkline_launcher::listen::Address;

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
