//! Counts the losses of a lane, and notes which of them the launcher should not hold against the shard.

use std::collections::BTreeSet;

use crate::event::{LaneId, Millis};
use crate::poison::POISON_MS;
use crate::sequence::Loss;

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
    pub(crate) fn begin(&mut self, lane: LaneId, at: Millis, is_attributable: bool) -> Loss {
        self.num_losses += 1;
        self.failing_since.get_or_insert(at);
        if is_attributable {
            self.unexplained.insert(self.num_losses);
            if self.unexplained.len() > MAX_UNEXPLAINED {
                self.unexplained.pop_first();
            }
        }
        Loss { lane, number: self.num_losses, at }
    }

    /// The number of losses.
    pub(crate) fn count(&self) -> u64 {
        self.num_losses
    }

    /// Notes that a shard has done useful work.
    pub(crate) fn worked(&mut self) {
        self.failing_since = None;
    }

    /// Takes a loss for explained. Returns true if it was not, and is excused by that.
    pub(crate) fn explain(&mut self, loss: Loss, now: Millis) -> bool {
        let is_excused = self.failing_since.is_none_or(|since| now.since(since) < POISON_MS);
        self.unexplained.remove(&loss.number) && is_excused
    }
}
