//! Polls the router until it is ready, and builds the message for the user.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::listen::Address;
use crate::process::Event;
use crate::tls_probe;

const READY_PATH: &str = "/readyz";
/// The pause between two probes is a twentieth of the time waited so far, within these bounds: readiness is noticed at
/// most 5 % late, and a model that loads for minutes does not cause thousands of probes.
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(250);
const PAUSES_PER_WAIT: u32 = 20;
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// `HTTP/1.1 200`
const STATUS_LINE_BYTES: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Sends [`Event::Ready`] as soon as the router at `address` answers 200.
pub(crate) fn watch(address: SocketAddr, scheme: Scheme, events: SyncSender<Event>) {
    thread::spawn(move || {
        let begin = Instant::now();
        while !probe(address, scheme).unwrap_or(false) {
            thread::sleep((begin.elapsed() / PAUSES_PER_WAIT).clamp(MIN_PAUSE, MAX_PAUSE));
        }
        // If this fails, the supervisor has ended.
        let _ = events.send(Event::Ready);
    });
}

/// Probes once. Returns true for 200 and false for another status; fails if no answer arrives in time.
pub fn probe(address: SocketAddr, scheme: Scheme) -> io::Result<bool> {
    let stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    stream.set_write_timeout(Some(PROBE_TIMEOUT))?;
    match scheme {
        Scheme::Http => ask(stream, address),
        Scheme::Https => ask(tls_probe::connect(stream, address)?, address),
    }
}

fn ask(mut stream: impl Read + Write, address: SocketAddr) -> io::Result<bool> {
    let question = format!("GET {READY_PATH} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes())?;
    let mut status = [0; STATUS_LINE_BYTES];
    stream.read_exact(&mut status)?;
    Ok(status.starts_with(b"HTTP/1.") && status.ends_with(b" 200"))
}

/// Returns the two lines for stdout when the server is ready: the address, and a command to try.
pub fn banner(address: &Address, scheme: Scheme, model_name: &str) -> String {
    let url = format!("{}://{}", scheme.name(), address.local());
    let reach = if address.is_loopback() {
        "reachable only from this machine; `--hostname 0.0.0.0` opens it to the network".to_owned()
    } else {
        format!("listening on {}:{}", address.hostname, address.port)
    };
    let messages = json!([{"role": "user", "content": "What is a trunk line?"}]);
    let body = json!({"model": model_name, "messages": messages, "max_tokens": 64});
    let body = body.to_string().replace('\'', r"'\''");
    format!(
        "{model_name} is ready at {url} ({reach})\n\
         curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'\n"
    )
}
