//! Masks of sequences under a grammar: computed on the blocking pool of the threads of HTTP, while the device works on
//! other sequences.

use std::collections::HashMap;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use trunkline_grammar::{Constraint, Forcing, GrammarError, Next};
use trunkline_scheduler::{Allowed, NextTokens, SequenceId, TokenMask};

/// A constraint that was worked on, and what may follow.
pub(super) struct Worked {
    id: SequenceId,
    constraint: Constraint,
    allowed: Result<trunkline_grammar::Allowed, GrammarError>,
}

/// Where a sequence's constraint is.
struct Entry {
    /// None while it is being worked on.
    constraint: Option<Constraint>,
    forcing: Forcing,
}

/// The constraints of all sequences that have one.
pub(super) struct Constraints {
    entries: HashMap<SequenceId, Entry>,
    /// Each sequence has one piece of work at most.
    worked: mpsc::Sender<Worked>,
    workers: Handle,
    vocab_size: u32,
}

impl Constraints {
    pub(super) fn new(max_requests: usize, workers: Handle) -> (Self, mpsc::Receiver<Worked>) {
        let (worked, worked_out) = mpsc::channel(max_requests.max(1));
        (Self { entries: HashMap::new(), worked, workers, vocab_size: 0 }, worked_out)
    }

    /// Masks have a bit for each of so many tokens.
    pub(super) fn set_vocab_size(&mut self, vocab_size: u32) {
        self.vocab_size = vocab_size;
    }

    /// A sequence begins: works out what may follow its prompt. With logprobs every token is sampled.
    pub(super) fn begin(&mut self, id: SequenceId, constraint: Constraint, wants_logprobs: bool) {
        let forcing = if wants_logprobs { Forcing::Never } else { Forcing::Allow };
        self.entries.insert(id, Entry { constraint: None, forcing });
        self.work(id, constraint, forcing, None);
    }

    /// Works out what may follow a token that was sampled.
    pub(super) fn follow(&mut self, id: SequenceId, token_id: u32) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let forcing = entry.forcing;
        if let Some(constraint) = entry.constraint.take() {
            self.work(id, constraint, forcing, Some(token_id));
        } else {
            tracing::error!(sequence_id = id.0, "a token came before its mask was told");
        }
    }

    /// Takes a constraint back; none if its sequence has ended meanwhile.
    pub(super) fn end(&mut self, worked: Worked) -> Option<(SequenceId, Allowed)> {
        let entry = self.entries.get_mut(&worked.id)?;
        entry.constraint = Some(worked.constraint);
        let allowed = match worked.allowed {
            Ok(allowed) => Allowed {
                forced: allowed.forced,
                next: match allowed.next {
                    Next::Mask(mask) => NextTokens::Mask(TokenMask(mask.for_rows(self.vocab_size).into())),
                    Next::End => NextTokens::End,
                },
            },
            Err(error) => Allowed { forced: Vec::new(), next: NextTokens::Failed(error.to_string()) },
        };
        Some((worked.id, allowed))
    }

    /// The sequence has ended.
    pub(super) fn forget(&mut self, id: SequenceId) {
        self.entries.remove(&id);
    }

    fn work(&self, id: SequenceId, mut constraint: Constraint, forcing: Forcing, token_id: Option<u32>) {
        let worked = self.worked.clone();
        self.workers.spawn_blocking(move || {
            let accepted = token_id.map_or(Ok(()), |token_id| constraint.accept(token_id));
            let allowed = accepted.and_then(|()| constraint.allowed(forcing));
            // It fails only if the driver is gone, and with it the process.
            let _ = worked.blocking_send(Worked { id, constraint, allowed });
        });
    }
}
