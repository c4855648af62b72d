//! Runs work that cannot be stopped, and stops waiting for it after a time limit.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::GrammarError;

/// The least stack. Only the used part of a stack takes memory.
const MIN_STACK_BYTES: usize = 256 << 20;
/// The stack for a byte of a grammar. The parser follows chains of references and templates in templates by recursion,
/// which take up to 300 bytes of stack for a byte of text.
const STACK_BYTES_OF_BYTE: usize = 1 << 10;

/// Runs `compile` on a thread of its own, with a stack for a grammar of `num_bytes`. If that takes longer than
/// `limit_ms`, returns an error, and the thread continues at the lowest priority.
pub(crate) fn run_with_timeout<T: Send + 'static>(
    limit_ms: u64,
    num_bytes: usize,
    compile: impl FnOnce() -> T + Send + 'static,
) -> Result<T, GrammarError> {
    let (done, result) = sync_channel(1);
    let progress = Arc::new(Mutex::new(Progress::default()));
    let compile = {
        let progress = progress.clone();
        move || {
            Progress::change(&progress, |progress| progress.worker = Some(Worker::current()));
            // The receiver is gone if the time limit has passed.
            let _ = done.send(compile());
        }
    };
    let stack_bytes = num_bytes.saturating_mul(STACK_BYTES_OF_BYTE).max(MIN_STACK_BYTES);
    std::thread::Builder::new().name("grammar".to_owned()).stack_size(stack_bytes).spawn(compile).map_err(
        |error| GrammarError::too_complex(format!("cannot start a thread to compile it: {error}")),
    )?;
    result.recv_timeout(Duration::from_millis(limit_ms)).map_err(|error| match error {
        RecvTimeoutError::Timeout => {
            Progress::change(&progress, |progress| progress.is_late = true);
            GrammarError::too_complex(format!("it takes longer than {limit_ms} ms to compile"))
        }
        RecvTimeoutError::Disconnected => GrammarError::too_complex("the compiler failed"),
    })
}

/// The state of the work. It may be late before its thread has started.
#[derive(Default)]
struct Progress {
    worker: Option<Worker>,
    is_late: bool,
}

impl Progress {
    /// Changes the state, and lowers the thread's priority once the thread has started and is late.
    fn change(shared: &Mutex<Self>, change: impl FnOnce(&mut Self)) {
        let mut progress = shared.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut progress);
        if let Some(worker) = progress.worker.as_ref().filter(|_| progress.is_late) {
            worker.lower_priority();
        }
    }
}

/// The operating system's handle of a thread.
#[cfg(target_os = "linux")]
struct Worker(rustix::process::Pid);

#[cfg(target_os = "linux")]
impl Worker {
    const LOWEST_PRIORITY: i32 = 19;

    fn current() -> Self {
        Self(rustix::thread::gettid())
    }

    fn lower_priority(&self) {
        // On Linux each thread has a priority. The call fails if the thread has just ended, which is harmless.
        let _ = rustix::process::setpriority_process(Some(self.0), Self::LOWEST_PRIORITY);
    }
}

/// On other systems priorities belong to processes, so nothing is changed.
#[cfg(not(target_os = "linux"))]
struct Worker;

#[cfg(not(target_os = "linux"))]
impl Worker {
    fn current() -> Self {
        Self
    }

    fn lower_priority(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_within_the_limit_returns_its_result() {
        assert_eq!(run_with_timeout(600_000, 0, || 7).ok(), Some(7));
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let outcome = run_with_timeout(600_000, 0, || -> u8 { panic!("as the parser might") });
        assert!(outcome.unwrap_err().to_string().contains("the compiler failed"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn late_work_continues_at_the_lowest_priority() {
        use std::time::Instant;

        use rustix::process::getpriority_process;

        let priority = || getpriority_process(Some(Worker::current().0)).expect("its own priority");
        let before = priority();
        let (sender, receiver) = sync_channel(1);
        let late = run_with_timeout(1, 0, move || {
            let begun = Instant::now();
            let mut lowest = 0;
            while lowest != Worker::LOWEST_PRIORITY && begun.elapsed() < Duration::from_secs(60) {
                lowest = priority();
                std::thread::yield_now();
            }
            sender.send(lowest).expect("the test listens");
        });
        assert_eq!(late.unwrap_err().code(), "schema_too_complex");
        assert_eq!(receiver.recv().expect("the thread continues"), Worker::LOWEST_PRIORITY);
        assert_eq!(priority(), before, "only the late thread has a lower priority");
    }
}
