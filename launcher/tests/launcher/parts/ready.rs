use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use trunkline_launcher::listen::Address;
use trunkline_launcher::ready::{Scheme, banner, probe};

fn answering(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut question = [0; 256];
        let _ = stream.read(&mut question).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
    });
    address
}

#[test]
fn only_200_is_ready() {
    assert!(probe(answering("HTTP/1.1 200 OK\r\n\r\n"), Scheme::Http).unwrap());
    assert!(!probe(answering("HTTP/1.1 503 Service Unavailable\r\n\r\n"), Scheme::Http).unwrap());
    assert!(probe(answering(""), Scheme::Http).is_err());
    assert!(probe(answering("HTTP/1.1 200 OK\r\n\r\n"), Scheme::Https).is_err(), "no TLS");
    assert!(!probe(answering("SSH-2.0-something 200"), Scheme::Http).unwrap());
}

#[test]
fn banner_quotes_the_model_name_for_json_and_shell() {
    let address = Address::check("127.0.0.1", 0).unwrap();
    let banner = banner(&address, Scheme::Https, "it's \"x\"");
    assert_eq!(banner.lines().count(), 2);
    assert_eq!(banner.matches(&format!("https://{}", address.local())).count(), 2, "{banner}");
    assert!(banner.contains(r#""model":"it'\''s \"x\"""#), "{banner}");
}
