//! A server that is started for one command, and ends with it.

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::status::StatusLine;

/// In the first line of a server that is ready, before its address.
const READY: &str = " is ready at ";
/// How often a wait looks for Ctrl-C.
const TICK: Duration = Duration::from_millis(100);
/// How long a server may take to end before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_LINE_BYTES: usize = 4096;
const MAX_PENDING_LINES: usize = 64;
/// Lines of a server that did not become ready which are shown.
const LAST_LINES: usize = 3;

/// A running `trunkline serve`. Dropping it ends the server.
#[derive(Debug)]
pub struct Server {
    child: Child,
}

enum Line {
    Stdout(String),
    Stderr(String),
}

impl Server {
    /// Starts `command`, a `trunkline serve` that ends with its standard input, and waits until it is ready. Returns it
    /// with its address. `what` is loaded, for the status line. `stop` is set by Ctrl-C.
    pub fn start(mut command: Command, what: &str, stop: &AtomicBool) -> Result<(Self, String), Error> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for the command, not for its server.
        command.process_group(0);
        let mut child = command.spawn().map_err(Error::Start)?;
        let (sender, lines) = sync_channel(MAX_PENDING_LINES);
        if let Some(stdout) = child.stdout.take() {
            let sender = sender.clone();
            thread::spawn(move || forward(stdout, Line::Stdout, &sender));
        }
        if let Some(stderr) = child.stderr.take() {
            thread::spawn(move || forward(stderr, Line::Stderr, &sender));
        }
        let mut server = Self { child };
        let url = server.wait_until_ready(&lines, what, stop)?;
        Ok((server, url))
    }

    fn wait_until_ready(
        &mut self,
        lines: &Receiver<Line>,
        what: &str,
        stop: &AtomicBool,
    ) -> Result<String, Error> {
        let (begin, mut status, mut progress) = (Instant::now(), StatusLine::new(), String::new());
        let mut last: VecDeque<String> = VecDeque::new();
        loop {
            if stop.swap(false, Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            match lines.recv_timeout(TICK) {
                Ok(Line::Stdout(line)) => {
                    let url = line.rsplit_once(READY).and_then(|(_, rest)| rest.split(' ').next());
                    if let Some(url) = url {
                        return Ok(url.to_owned());
                    }
                }
                Ok(Line::Stderr(line)) => {
                    if !is_log(&line) {
                        progress = format!(": {line}");
                    }
                    last.push_back(line);
                    if last.len() > LAST_LINES {
                        last.pop_front();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(&last)),
            }
            status.set(&format!("loading {what} for {} s{progress}", begin.elapsed().as_secs()));
        }
    }

    /// Says why the server has ended: its error, or its last lines.
    fn ended(&mut self, last: &VecDeque<String>) -> Error {
        let code = self.child.wait().ok().and_then(|status| status.code()).unwrap_or(1);
        let verdict = last.iter().rev().find_map(|line| line.strip_prefix("error: "));
        let reason = match verdict {
            Some(verdict) => verdict.to_owned(),
            None => format!(
                "the server ended with {code} before it was ready; its last lines were: {}",
                Vec::from_iter(last.iter().map(String::as_str)).join(" / ")
            ),
        };
        Error::Ended { reason, code }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server stops when its standard input ends.
        drop(self.child.stdin.take());
        let begin = Instant::now();
        while begin.elapsed() < END_TIMEOUT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        // Its own children have lifelines, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes lines on until nobody wants them any more, and then only reads them, since the server waits otherwise. A
/// carriage return ends a line, too, as in progress bars.
fn forward(mut from: impl Read, as_line: fn(String) -> Line, sender: &SyncSender<Line>) {
    let (mut buffer, mut line, mut is_wanted) = ([0; MAX_LINE_BYTES], Vec::new(), true);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        for &byte in &buffer[..count] {
            if !matches!(byte, b'\n' | b'\r') {
                if line.len() < MAX_LINE_BYTES {
                    line.push(byte);
                }
                continue;
            }
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            line.clear();
            if is_wanted && !text.is_empty() {
                is_wanted = sender.send(as_line(text)).is_ok();
            }
        }
    }
}

/// Returns true if a line is one of the log, which begins with a time or is JSON, and not the progress of a download.
fn is_log(line: &str) -> bool {
    line.starts_with('{') || line.get(..4).is_some_and(|year| year.bytes().all(|byte| byte.is_ascii_digit()))
}
