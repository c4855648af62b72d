//! Counts the losses of a lane, and notes which of them the launcher should not hold against the shard.

use std::collections::BTreeSet;

use crate::event::Millis;
use crate::poison::POISON_MS;
use crate::sequence::{Loss, Sequence};

/// The most losses that can still be explained. Older ones stay unexplained.
const MAX_UNEXPLAINED: usize = 64;

/// The losses of a lane.
///
/// A loss is explained once it is known which sequences crashed the shard: one is convicted, or ends before it was
/// cleared, or some are separated. A shard that loses every sequence would be explained by each of them, so losses are
/// excused for a limited time after the shard has last done useful work.
#[derive(Debug, Default)]
pub(crate) struct LossLog {
    num_losses: u64,
    /// The numbers of losses that nothing explains yet.
    unexplained: BTreeSet<u64>,
    /// The first loss since a sequence ended well or was cleared; none if there was none.
    failing_since: Option<Millis>,
}

impl LossLog {
    /// Counts a loss. `is_attributable`: sequences were in flight that may explain it.
    pub(crate) fn begin(&mut self, at: Millis, is_attributable: bool) -> Loss {
        self.num_losses += 1;
        self.failing_since.get_or_insert(at);
        if is_attributable {
            self.unexplained.insert(self.num_losses);
            if self.unexplained.len() > MAX_UNEXPLAINED {
                self.unexplained.pop_first();
            }
        }
        Loss { number: self.num_losses, at }
    }

    /// Notes that a shard has done useful work.
    pub(crate) fn worked(&mut self) {
        self.failing_since = None;
    }

    /// Takes the losses of a sequence for explained. Returns how many of them are excused by that.
    pub(crate) fn explain(&mut self, sequence: &Sequence, now: Millis) -> u64 {
        let is_excused = self.failing_since.is_none_or(|since| now.since(since) < POISON_MS);
        let explained = sequence.losses.iter().filter(|loss| self.unexplained.remove(&loss.number)).count();
        if is_excused { explained as u64 } else { 0 }
    }
}
