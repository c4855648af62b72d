//! Work that cannot be stopped, with a limit of time.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::GrammarError;

/// A chain of references is followed by recursion. Only what is used takes memory.
const STACK_BYTES: usize = 256 << 20;

/// Compiles on a thread of its own. One that takes longer than `limit_ms` is left to itself, for what nobody else
/// needs of the processor.
pub(crate) fn in_time<T: Send + 'static>(
    limit_ms: u64,
    compile: impl FnOnce() -> T + Send + 'static,
) -> Result<T, GrammarError> {
    let (done, result) = sync_channel(1);
    let progress = Arc::new(Mutex::new(Progress::default()));
    let compile = {
        let progress = progress.clone();
        move || {
            Progress::change(&progress, |progress| progress.worker = Some(Worker::current()));
            // Nobody listens any more if it took too long.
            let _ = done.send(compile());
        }
    };
    std::thread::Builder::new()
        .name("grammar".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(compile)
        .map_err(|error| GrammarError::too_complex(format!("no thread to compile it: {error}")))?;
    result.recv_timeout(Duration::from_millis(limit_ms)).map_err(|error| match error {
        RecvTimeoutError::Timeout => {
            Progress::change(&progress, |progress| progress.is_late = true);
            GrammarError::too_complex(format!("it takes longer than {limit_ms} ms to compile"))
        }
        RecvTimeoutError::Disconnected => GrammarError::too_complex("the compiler gave up"),
    })
}

/// What is known of the work: it may be late before its thread has begun.
#[derive(Default)]
struct Progress {
    worker: Option<Worker>,
    is_late: bool,
}

impl Progress {
    /// Who comes second, the thread or the end of its time, sees to its priority.
    fn change(shared: &Mutex<Self>, change: impl FnOnce(&mut Self)) {
        let mut progress = shared.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut progress);
        if let Some(worker) = progress.worker.as_ref().filter(|_| progress.is_late) {
            worker.yield_to_others();
        }
    }
}

/// A thread, as the system knows it.
#[cfg(target_os = "linux")]
struct Worker(rustix::process::Pid);

#[cfg(target_os = "linux")]
impl Worker {
    /// The lowest priority of ordinary threads.
    const LOWEST: i32 = 19;

    fn current() -> Self {
        Self(rustix::thread::gettid())
    }

    fn yield_to_others(&self) {
        // Linux has a priority for each thread. One that has just ended has none, and needs none.
        let _ = rustix::process::setpriority_process(Some(self.0), Self::LOWEST);
    }
}

/// Elsewhere priorities are those of processes.
#[cfg(not(target_os = "linux"))]
struct Worker;

#[cfg(not(target_os = "linux"))]
impl Worker {
    fn current() -> Self {
        Self
    }

    fn yield_to_others(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_in_time_is_the_result() {
        assert_eq!(in_time(600_000, || 7).ok(), Some(7));
    }

    #[test]
    fn a_panic_is_told_as_an_error() {
        let gave_up = in_time(600_000, || -> u8 { panic!("as the parser might") });
        assert!(gave_up.unwrap_err().to_string().contains("the compiler gave up"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_takes_too_long_goes_on_behind_all_others() {
        use std::time::Instant;

        use rustix::process::getpriority_process;

        let priority = || getpriority_process(Some(Worker::current().0)).expect("its own priority");
        let before = priority();
        let (tell, told) = sync_channel(1);
        let late = in_time(1, move || {
            let begun = Instant::now();
            let mut lowest = 0;
            while lowest != Worker::LOWEST && begun.elapsed() < Duration::from_secs(60) {
                lowest = priority();
                std::thread::yield_now();
            }
            tell.send(lowest).expect("the test listens");
        });
        assert_eq!(late.unwrap_err().code(), "schema_too_complex");
        assert_eq!(told.recv().expect("the thread goes on"), Worker::LOWEST);
        assert_eq!(priority(), before, "only the late one steps back");
    }
}
