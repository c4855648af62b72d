//! Masks of sequences under a grammar: those of a step are worked out together, while the device works on the step that
//! will use them. Where they are a moment's work the driver does it, else threads of their own: where these share
//! their cores with the kernels, each that wakes takes a core from a step and leaves its other threads waiting.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use trunkline_grammar::{Constraint, Forcing, GrammarError, Next};
use trunkline_scheduler::{Allowed, NextTokens, SequenceId, TokenMask};

/// A mask that takes a core longer is slow: the next one of its sequence is worked out beside the others, and no step
/// waits for it. About half of a step of a small model; a mask of a schema takes some 0.01 ms.
const SLOW_MASK: Duration = Duration::from_millis(3);
/// A turn's masks that are expected to take a core longer, by how long the last ones took, are left to the threads.
const MAX_OWN_WORK: Duration = Duration::from_micros(500);
/// Threads that work masks out, at most.
const MAX_MASK_THREADS: usize = 4;
/// Masks that are worth another thread.
const MIN_MASKS_PER_THREAD: usize = 4;

/// A constraint to be worked on.
struct Work {
    id: SequenceId,
    constraint: Constraint,
    forcing: Forcing,
    /// Sampled last; none at the beginning.
    token_id: Option<u32>,
}

/// A constraint that was worked on, and what may follow.
pub(super) struct Worked {
    id: SequenceId,
    constraint: Constraint,
    allowed: Result<trunkline_grammar::Allowed, GrammarError>,
    /// Of a core.
    pub(super) time: Duration,
}

impl Work {
    fn run(mut self) -> Worked {
        let begin = thread_time();
        // A step waits for this: a panic in the parser ends its sequence, and nothing else.
        let work = AssertUnwindSafe(|| {
            let accepted = self.token_id.map_or(Ok(()), |token_id| self.constraint.accept(token_id));
            accepted.and_then(|()| self.constraint.allowed(self.forcing))
        });
        let allowed = catch_unwind(work).unwrap_or_else(|_| {
            Err(GrammarError::Failed { detail: "the parser failed; see the log".to_owned() })
        });
        Worked {
            id: self.id,
            constraint: self.constraint,
            allowed,
            time: thread_time().saturating_sub(begin),
        }
    }
}

/// Where a sequence's constraint is.
struct Entry {
    /// None while it is being worked on.
    constraint: Option<Constraint>,
    forcing: Forcing,
    /// What its last mask took of a core; none before the first.
    last_time: Option<Duration>,
}

impl Entry {
    fn is_slow(&self) -> bool {
        self.last_time.is_none_or(|time| time > SLOW_MASK)
    }
}

/// The constraints of all sequences that have one.
pub(super) struct Constraints {
    entries: HashMap<SequenceId, Entry>,
    /// What this turn has to be worked out, and what that is expected to take.
    batch: Vec<Work>,
    expected: Duration,
    threads: Vec<Sender<Vec<Work>>>,
    /// Each sequence has one piece of work at most.
    worked: mpsc::Sender<Vec<Worked>>,
    /// Where the first masks and slow ones are worked out.
    workers: Handle,
    vocab_size: u32,
}

impl Constraints {
    pub(super) fn new(max_requests: usize, workers: Handle) -> (Self, mpsc::Receiver<Vec<Worked>>) {
        let (worked, worked_out) = mpsc::channel(max_requests.max(1));
        let num_cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let num_threads = (num_cores / 2).clamp(1, MAX_MASK_THREADS);
        let threads = (0..num_threads).filter_map(|_| start_thread(worked.clone())).collect();
        let entries = HashMap::new();
        (
            Self {
                entries,
                batch: Vec::new(),
                expected: Duration::ZERO,
                threads,
                worked,
                workers,
                vocab_size: 0,
            },
            worked_out,
        )
    }

    /// Masks have a bit for each of so many tokens.
    pub(super) fn set_vocab_size(&mut self, vocab_size: u32) {
        self.vocab_size = vocab_size;
    }

    /// A sequence begins: works out what may follow its prompt. With logprobs every token is sampled.
    pub(super) fn begin(&mut self, id: SequenceId, constraint: Constraint, wants_logprobs: bool) {
        let forcing = if wants_logprobs { Forcing::Never } else { Forcing::Allow };
        self.entries.insert(id, Entry { constraint: None, forcing, last_time: None });
        self.work_beside(Work { id, constraint, forcing, token_id: None });
    }

    /// Works out what may follow a token that was sampled, with all others of this turn: see `flush`. What is returned
    /// is to be told at once.
    pub(super) fn follow(&mut self, id: SequenceId, token_id: u32) -> Option<Allowed> {
        let entry = self.entries.get_mut(&id)?;
        let Some(constraint) = entry.constraint.take() else {
            tracing::error!(sequence_id = id.0, "a token came before its mask was told");
            let next = NextTokens::Failed("a token came before its mask was told".to_owned());
            return Some(Allowed { forced: Vec::new(), next, is_slow: false });
        };
        let work = Work { id, constraint, forcing: entry.forcing, token_id: Some(token_id) };
        if entry.is_slow() {
            self.work_beside(work);
        } else {
            self.expected += entry.last_time.unwrap_or_default();
            self.batch.push(work);
        }
        None
    }

    /// Does the turn's work, or hands it to the threads: what was expected to take long, and what is left once the work
    /// has taken longer than expected. What is returned is to be told at once.
    pub(super) fn flush(&mut self) -> Vec<Worked> {
        let mut batch = std::mem::take(&mut self.batch).into_iter();
        let mut worked = Vec::new();
        if std::mem::take(&mut self.expected) <= MAX_OWN_WORK {
            let mut taken = Duration::ZERO;
            while taken <= MAX_OWN_WORK
                && let Some(work) = batch.next()
            {
                worked.push(work.run());
                taken += worked.last().map_or(Duration::ZERO, |worked| worked.time);
            }
        }
        self.hand_over(batch.collect());
        worked
    }

    /// Parts the work among the threads.
    fn hand_over(&self, mut batch: Vec<Work>) {
        let num_parts = batch.len().div_ceil(MIN_MASKS_PER_THREAD).min(self.threads.len());
        for index in 0..num_parts {
            let rest = batch.split_off(batch.len().div_ceil(num_parts - index));
            let part = std::mem::replace(&mut batch, rest);
            if let Err(SendError(part)) = self.threads[index].send(part) {
                part.into_iter().for_each(|work| self.work_beside(work));
            }
        }
        // Where no thread could be started.
        batch.into_iter().for_each(|work| self.work_beside(work));
    }

    /// Takes a constraint back; none if its sequence has ended meanwhile.
    pub(super) fn end(&mut self, worked: Worked) -> Option<(SequenceId, Allowed)> {
        let entry = self.entries.get_mut(&worked.id)?;
        entry.constraint = Some(worked.constraint);
        entry.last_time = Some(worked.time);
        let is_slow = entry.is_slow();
        let (forced, next) = match worked.allowed {
            Ok(allowed) => {
                let next = match allowed.next {
                    Next::Mask(mask) => NextTokens::Mask(TokenMask(mask.for_rows(self.vocab_size))),
                    Next::End => NextTokens::End,
                };
                (allowed.forced, next)
            }
            Err(error) => (Vec::new(), NextTokens::Failed(error.to_string())),
        };
        Some((worked.id, Allowed { forced, next, is_slow }))
    }

    /// The sequence has ended.
    pub(super) fn forget(&mut self, id: SequenceId) {
        self.entries.remove(&id);
    }

    fn work_beside(&self, work: Work) {
        let worked = self.worked.clone();
        self.workers.spawn_blocking(move || {
            // It fails only if the driver is gone, and with it the process.
            let _ = worked.blocking_send(vec![work.run()]);
        });
    }
}

/// Time that a core gave this thread: what others do on the machine does not make a mask slow.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// A thread that works until the driver is gone; none if the system has no more.
fn start_thread(worked: mpsc::Sender<Vec<Worked>>) -> Option<Sender<Vec<Work>>> {
    let (sender, batches): (_, Receiver<Vec<Work>>) = channel();
    let work = move || {
        for batch in batches {
            if worked.blocking_send(batch.into_iter().map(Work::run).collect()).is_err() {
                return;
            }
        }
    };
    match std::thread::Builder::new().name("masks".to_owned()).spawn(work) {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::warn!(%error, "no thread for masks");
            None
        }
    }
}
