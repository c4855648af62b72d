//! Passes the children's output through to stderr in whole lines.
//!
//! A child that ends because of a user's mistake reports it in a final line `error: ...`. Both children may report the
//! same mistake in different words, so this line is held back until it is clear which of the two is shown.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStderr, ChildStdout};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::log;

/// Prefix of a child's final line (docs/errors.md).
const VERDICT: &[u8] = b"error: ";
/// Longer lines are passed through in pieces of this size, to bound the launcher's memory.
pub const MAX_LOG_LINE_BYTES: u64 = 1 << 20;
/// Longest wait for the last lines of a child that has ended.
const LAST_LINES_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Output {
    tail: Arc<Mutex<Tail>>,
    /// Disconnects when both streams have been passed through.
    end: Receiver<()>,
}

/// The end of a child's output.
#[derive(Debug, Default)]
pub struct Tail {
    /// The last non-empty line of stderr.
    pub last_line: Option<String>,
    /// The last line of stderr with its newline, held back because it starts with `error: `.
    pub verdict: Option<Vec<u8>>,
}

impl Output {
    /// Passes the lines of both streams through until they end.
    pub(crate) fn pass_through(stdout: Option<ChildStdout>, stderr: Option<ChildStderr>) -> Self {
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
    pub(crate) fn finish(&self) -> Tail {
        // The channel normally disconnects; a grandchild outside the group may keep a pipe open for longer.
        let _ = self.end.recv_timeout(LAST_LINES_TIMEOUT);
        std::mem::take(&mut *lock(&self.tail))
    }
}

impl Tail {
    /// Takes a line of stderr and passes it through, or holds it back if it may be the final error.
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

    /// Passes the held-back line through.
    pub(crate) fn release(&mut self) {
        if let Some(verdict) = self.verdict.take() {
            log::write_line(&verdict);
        }
    }
}

/// Locks the tail even if a holder panicked: it is consistent after each line.
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

/// Calls `write` with each line of `input`, including its newline.
pub fn copy_lines(input: impl Read, mut write: impl FnMut(&[u8])) {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.by_ref().take(MAX_LOG_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) => {}
            // A pipe that cannot be read is treated as ended.
            Err(_) => return,
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        write(&line);
    }
}
