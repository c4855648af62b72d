//! What a run has done so far, and the line on a terminal that shows it.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time between two states of the line.
const REFRESH: Duration = Duration::from_millis(200);
/// Length of the time over which the rate is shown, in refreshes.
const RATE_REFRESHES: usize = 10;

/// Counters of a run.
#[derive(Debug, Default)]
pub struct Live {
    pub started: AtomicU64,
    pub completed: AtomicU64,
    pub failed: AtomicU64,
    /// Events with output.
    pub outputs: AtomicU64,
}

impl Live {
    /// Returns the number of open requests.
    pub fn open(&self) -> u64 {
        self.started.load(Relaxed).saturating_sub(self.completed.load(Relaxed) + self.failed.load(Relaxed))
    }
}

/// Returns true if progress is shown.
pub fn is_shown() -> bool {
    std::io::stderr().is_terminal()
}

/// Shows the counters on stderr, until it is dropped.
pub async fn show(title: &str, live: &Live) {
    let start = Instant::now();
    let mut past = vec![(start, 0)];
    loop {
        tokio::time::sleep(REFRESH).await;
        let (now, outputs) = (Instant::now(), live.outputs.load(Relaxed));
        past.push((now, outputs));
        let (then, before) = past[past.len().saturating_sub(RATE_REFRESHES)];
        let rate = (outputs - before) as f64 / (now - then).as_secs_f64();
        write(&format!(
            "\r{title}: {} done, {} running, {} failed, {rate:.0} tok/s, {} s\x1b[K",
            live.completed.load(Relaxed),
            live.open(),
            live.failed.load(Relaxed),
            start.elapsed().as_secs(),
        ));
    }
}

/// Removes the line.
pub fn clear() {
    write("\r\x1b[K");
}

fn write(text: &str) {
    let mut stderr = std::io::stderr().lock();
    // Progress that cannot be shown is no reason to end a measurement.
    stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()).ok();
}
