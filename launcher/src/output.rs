//! What a child writes: whole lines passed through to stderr, except the last word of one that gives up.
//!
//! A child that ends by a user's mistake says so in a closing line `error: ...`. Both children may find the same
//! mistake at once, each in its own words, so that line is held back until it is clear whose word counts.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStderr, ChildStdout};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::log;

/// How a child's closing line begins (docs/architecture.md).
const VERDICT: &[u8] = b"error: ";
/// A longer line is passed through in pieces of this size, so that a child cannot fill the launcher's memory.
pub const MAX_LOG_LINE_BYTES: u64 = 1 << 20;
/// How long the last lines of an ended child may take to arrive.
const LAST_LINES_TIMEOUT: Duration = Duration::from_millis(500);

/// The output streams of one child.
#[derive(Debug)]
pub struct Output {
    tail: Arc<Mutex<Tail>>,
    /// Disconnects when all was passed through.
    end: Receiver<()>,
}

/// The end of what a child wrote.
#[derive(Debug, Default)]
pub struct Tail {
    /// The last line of stderr that is not empty.
    pub last_line: Option<String>,
    /// The last line of stderr, if it begins with `error: `: not passed through yet. Ends with a newline.
    pub verdict: Option<Vec<u8>>,
}

impl Output {
    /// Passes the lines of both streams through until they end.
    pub fn pass_through(stdout: Option<ChildStdout>, stderr: Option<ChildStderr>) -> Self {
        let tail = Arc::new(Mutex::new(Tail::default()));
        let (open, end) = channel();
        if let Some(stdout) = stdout {
            copy_in_background(stdout, log::write_line, open.clone());
        }
        if let Some(stderr) = stderr {
            let tail = Arc::clone(&tail);
            copy_in_background(stderr, move |line| lock(&tail).push(line), open);
        }
        Self { tail, end }
    }

    /// Waits for the last lines of a child that has ended.
    pub fn finish(&self) -> Tail {
        // Disconnected is the expected answer; a grandchild outside the group may hold a pipe open for longer.
        let _ = self.end.recv_timeout(LAST_LINES_TIMEOUT);
        std::mem::take(&mut *lock(&self.tail))
    }
}

impl Tail {
    /// Takes one line of stderr: passes it through, or holds it back if it may be the last word.
    pub fn push(&mut self, line: &[u8]) {
        if let Some(earlier) = self.verdict.take() {
            log::write_line(&earlier);
        }
        if !line.trim_ascii().is_empty() {
            self.last_line = Some(String::from_utf8_lossy(line).into_owned());
        }
        if line.starts_with(VERDICT) {
            self.verdict = Some(line.to_vec());
        } else {
            log::write_line(line);
        }
    }

    /// Passes through what was held back.
    pub fn release(&mut self) {
        if let Some(verdict) = self.verdict.take() {
            log::write_line(&verdict);
        }
    }
}

/// A lock that a panicking holder cannot make useless: the tail is in order after each line.
fn lock(tail: &Mutex<Tail>) -> MutexGuard<'_, Tail> {
    tail.lock().unwrap_or_else(PoisonError::into_inner)
}

fn copy_in_background(
    input: impl Read + Send + 'static,
    write: impl FnMut(&[u8]) + Send + 'static,
    open: Sender<()>,
) {
    thread::spawn(move || {
        copy_lines(input, write);
        drop(open);
    });
}

/// Hands whole lines to `write`, each with its newline, until the end of `input`.
pub fn copy_lines(input: impl Read, mut write: impl FnMut(&[u8])) {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.by_ref().take(MAX_LOG_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) => {}
            // A pipe that cannot be read has ended for us.
            Err(_) => return,
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        write(&line);
    }
}
