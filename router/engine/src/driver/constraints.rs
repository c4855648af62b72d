//! Computes the token masks of sequences that follow a grammar.
//!
//! The masks of a step are computed together, while the device runs the step that will use them. The driver computes
//! them itself if that is expected to be quick, otherwise it sends them to mask threads. Waking a thread is costly
//! where the kernels run on the same cores: it takes a core from the running step, whose other threads then wait.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use trunkline_grammar::{Constraint, Forcing, GrammarError, Next};
use trunkline_scheduler::{Allowed, MaskedDraft, NextTokens, SequenceId, TokenMask};

use trunkline_base::clock::thread_time;

/// A mask that takes more CPU time is slow. The sequence's next mask is computed separately, and no step waits for it.
/// The value is about half a step of a small model; a typical mask of a schema takes 0.01 ms.
const SLOW_MASK: Duration = Duration::from_millis(3);
/// The most CPU time that the driver spends on a turn's masks. It sends them to the threads if the times of the last
/// masks predict more.
const MAX_OWN_WORK: Duration = Duration::from_micros(500);
/// The most CPU time for a sequence's mask and those of its drafts. The device is idle meanwhile.
const MAX_DRAFT_TIME: Duration = Duration::from_micros(300);
const MAX_MASK_THREADS: usize = 4;
/// The number of masks that justifies waking another thread.
const MIN_MASKS_PER_THREAD: usize = 4;

/// A mask to compute.
struct Work {
    id: SequenceId,
    constraint: Constraint,
    forcing: Forcing,
    /// The tokens that were sampled since the last mask; none for the first one.
    token_ids: Vec<u32>,
    /// Tokens that are likely to follow.
    drafts: Vec<u32>,
}

/// A constraint that was advanced, and the tokens that it allows next.
pub(super) struct Worked {
    id: SequenceId,
    constraint: Constraint,
    allowed: Result<trunkline_grammar::Allowed, GrammarError>,
    /// The first drafts that the grammar permits, and what may follow each.
    drafts: Vec<(u32, trunkline_grammar::TokenMask)>,
    /// The CPU time that the mask took, without those of drafts.
    pub(super) time: Duration,
}

impl Work {
    fn run(mut self) -> Worked {
        let begin = thread_time();
        // A panic in the parser ends only its own sequence. The step that waits for this mask continues.
        let mut time = Duration::ZERO;
        let work = AssertUnwindSafe(|| {
            let mut accepted = self.token_ids.iter().map(|&token_id| self.constraint.accept(token_id));
            accepted.try_for_each(|accepted| accepted)?;
            let allowed = self.constraint.allowed(self.forcing)?;
            time = thread_time().saturating_sub(begin);
            let drafts = permitted(&self.constraint, &allowed, &self.drafts, begin);
            Ok((allowed, drafts))
        });
        let result = catch_unwind(work).unwrap_or_else(|_| {
            Err(GrammarError::Failed { detail: "the parser failed; see the log".to_owned() })
        });
        let (allowed, drafts) = match result {
            Ok((allowed, drafts)) => (Ok(allowed), drafts),
            Err(error) => (Err(error), Vec::new()),
        };
        Worked { id: self.id, constraint: self.constraint, allowed, drafts, time }
    }
}

/// Returns the first drafts behind the forced tokens that the grammar permits, and what may follow each. A draft whose
/// mask cannot be computed, or after which the text must end, and all drafts behind it are left out.
fn permitted(
    constraint: &Constraint,
    allowed: &trunkline_grammar::Allowed,
    drafts: &[u32],
    begin: Duration,
) -> Vec<(u32, trunkline_grammar::TokenMask)> {
    let mut permitted = Vec::new();
    // A draft's mask has no penalties.
    if constraint.has_penalties() {
        return permitted;
    }
    let (Some(drafts), Next::Mask(mask)) = (drafts.strip_prefix(&allowed.forced[..]), &allowed.next) else {
        return permitted;
    };
    if drafts.first().is_none_or(|&draft| !mask.contains(draft)) {
        return permitted;
    }
    let mut ahead = constraint.fork();
    for &draft in drafts {
        let is_permitted = permitted.last().is_none_or(|(_, mask): &(u32, _)| mask.contains(draft));
        if !is_permitted || thread_time().saturating_sub(begin) > MAX_DRAFT_TIME {
            break;
        }
        let next = ahead.accept(draft).and_then(|()| ahead.allowed(Forcing::Never));
        let Ok(trunkline_grammar::Allowed { next: Next::Mask(mask), .. }) = next else { break };
        permitted.push((draft, mask));
    }
    permitted
}

/// A sequence with a constraint.
struct Entry {
    /// `None` while a mask is being computed.
    constraint: Option<Constraint>,
    forcing: Forcing,
    /// The CPU time of the last mask; `None` before the first.
    last_time: Option<Duration>,
}

impl Entry {
    fn is_slow(&self) -> bool {
        self.last_time.is_none_or(|time| time > SLOW_MASK)
    }
}

/// The constraints of all sequences that follow a grammar.
pub(super) struct Constraints {
    entries: HashMap<SequenceId, Entry>,
    /// The masks to compute in this turn.
    batch: Vec<Work>,
    /// The CPU time that `batch` is expected to take.
    expected: Duration,
    threads: Vec<Sender<Vec<Work>>>,
    /// Each sequence has at most one mask in progress.
    worked: mpsc::Sender<Vec<Worked>>,
    /// The runtime whose blocking threads compute first masks and slow ones.
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

    /// Sets the number of bits in a mask.
    pub(super) fn set_vocab_size(&mut self, vocab_size: u32) {
        self.vocab_size = vocab_size;
    }

    /// Starts to compute the mask of a new sequence's first token. With logprobs no token is forced, because each one
    /// must be sampled.
    pub(super) fn begin(&mut self, id: SequenceId, constraint: Constraint, wants_logprobs: bool) {
        let forcing = if wants_logprobs { Forcing::Never } else { Forcing::Allow };
        self.entries.insert(id, Entry { constraint: None, forcing, last_time: None });
        self.work_beside(Work { id, constraint, forcing, token_ids: Vec::new(), drafts: Vec::new() });
    }

    /// Schedules the mask that follows sampled tokens for the next `flush`, or starts it at once if it is likely to be
    /// slow. If a result is returned, the caller must pass it to the scheduler.
    pub(super) fn follow(
        &mut self,
        id: SequenceId,
        token_ids: Vec<u32>,
        drafts: Vec<u32>,
    ) -> Option<Allowed> {
        let entry = self.entries.get_mut(&id)?;
        let Some(constraint) = entry.constraint.take() else {
            tracing::error!(sequence_id = id.0, "a token was sampled before its mask was known");
            let next = NextTokens::Failed("a token was sampled before its mask was known".to_owned());
            return Some(Allowed { forced: Vec::new(), next, is_slow: false, drafts: Vec::new() });
        };
        let work = Work { id, constraint, forcing: entry.forcing, token_ids, drafts };
        if entry.is_slow() {
            self.work_beside(work);
        } else {
            self.expected += entry.last_time.unwrap_or_default();
            self.batch.push(work);
        }
        None
    }

    /// Computes the turn's masks, or sends them to the threads if they are expected to take long. If computing takes
    /// longer than expected, the rest is sent to the threads too. The caller must pass the returned masks to `end`.
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

    /// Divides the work among the threads.
    fn hand_over(&self, mut batch: Vec<Work>) {
        let num_parts = batch.len().div_ceil(MIN_MASKS_PER_THREAD).min(self.threads.len());
        for index in 0..num_parts {
            let rest = batch.split_off(batch.len().div_ceil(num_parts - index));
            let part = std::mem::replace(&mut batch, rest);
            if let Err(SendError(part)) = self.threads[index].send(part) {
                part.into_iter().for_each(|work| self.work_beside(work));
            }
        }
        // Some work is left only if no thread could be started.
        batch.into_iter().for_each(|work| self.work_beside(work));
    }

    /// Puts a constraint back and returns what it allows. Returns `None` if its sequence has ended.
    pub(super) fn end(&mut self, worked: Worked) -> Option<(SequenceId, Allowed)> {
        let entry = self.entries.get_mut(&worked.id)?;
        entry.constraint = Some(worked.constraint);
        entry.last_time = Some(worked.time);
        let is_slow = entry.is_slow();
        let masked = |(token_id, mask): (u32, trunkline_grammar::TokenMask)| MaskedDraft {
            token_id,
            mask: TokenMask(mask.for_rows(self.vocab_size)),
        };
        let drafts = worked.drafts.into_iter().map(masked).collect();
        let (forced, next) = match worked.allowed {
            Ok(allowed) => {
                let next = match allowed.next {
                    Next::Mask(mask) => {
                        NextTokens::Mask(TokenMask::new(mask.for_rows(self.vocab_size), &allowed.penalties))
                    }
                    Next::End => NextTokens::End,
                };
                (allowed.forced, next)
            }
            Err(error) => (Vec::new(), NextTokens::Failed(error.to_string())),
        };
        Some((worked.id, Allowed { forced, next, is_slow, drafts }))
    }

    /// Removes the constraint of a sequence that has ended.
    pub(super) fn forget(&mut self, id: SequenceId) {
        self.entries.remove(&id);
    }

    fn work_beside(&self, work: Work) {
        let worked = self.worked.clone();
        self.workers.spawn_blocking(move || {
            // Sending fails only if the driver is gone, which ends the process.
            let _ = worked.blocking_send(vec![work.run()]);
        });
    }
}

/// Starts a mask thread that runs until the driver is gone. Returns `None` if the system cannot start one.
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
            tracing::warn!(%error, "cannot start a mask thread");
            None
        }
    }
}
