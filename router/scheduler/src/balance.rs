//! Moves running sequences from a lane with many to a lane with few, such as one whose shard has just started.
//!
//! A waiting sequence belongs to no lane (`choice.rs`), but a running one stays where it began. While nothing waits, a
//! lane with much less to do therefore takes running sequences over, one at a time: each goes back to the queue as
//! after a preemption, marked for that lane. It is restored there from the store of the lane that it leaves, or its
//! tokens are computed again.

use crate::choice::{mean_token_ms, token_ms};
use crate::event::LaneId;
use crate::lane::Lane;
use crate::lifecycle::Lifecycle;
use crate::neighbours;
use crate::roles::Roles;
use crate::sequence::SequenceKey;

/// A lane takes over from another one that runs at least this many sequences more than twice as many.
const MARGIN: usize = 3;
/// The least time between two sequences that a lane takes over. The first one must show in the list before the next.
const INTERVAL_MS: u64 = 50;
/// The longest predicted time until a sequence that moves has its next token.
const MAX_PAUSE_MS: f64 = 250.0;

/// Lets the lane take a running sequence over, if it has much less to do than another one. The sequence is stopped with
/// the parts of the lane that is returned.
pub(crate) fn take_over(parts: &mut Lifecycle<'_>) -> Option<(LaneId, SequenceKey)> {
    let lane = &*parts.lane;
    let is_ready = lane.serves()
        && lane.is_well(parts.now)
        && lane.suspect.is_none()
        && lane.balanced_at.is_none_or(|at| parts.now.since(at) >= INTERVAL_MS)
        && parts.sequences.queue().num_waiting() == 0
        && parts.sequences.suspects().next().is_none();
    if !is_ready {
        return None;
    }
    let least = 2 * lane.running.len() + MARGIN;
    let busy = parts.others.iter().filter(|other| other.running.len() >= least && other.suspect.is_none());
    let (from, key) = busy
        .filter_map(|other| Some((other.running.len(), other.id, cheapest(parts, other)?)))
        .max_by_key(|(num_running, ..)| *num_running)
        .map(|(_, from, key)| (from, key))?;
    // A sequence that costs too much is looked at again only after the interval, because the look takes time, too.
    parts.lane.balanced_at = Some(parts.now);
    if !is_worth_it(parts, key) {
        return None;
    }
    parts.sequences[key].moves_to = Some(parts.lane.id);
    parts.counters.moves += 1;
    Some((from, key))
}

/// Returns the sequence of a busy lane with the fewest tokens that may move.
fn cheapest(parts: &Lifecycle<'_>, from: &Lane) -> Option<SequenceKey> {
    let roles = Roles::of(parts);
    let may_move = |key: &&SequenceKey| {
        let sequence = &parts.sequences[**key];
        sequence.is_running()
            && !sequence.is_prefilling()
            && !sequence.is_finishing(sequence.run())
            && sequence.run().hand_over_at.is_none()
            && sequence.suspected.is_none()
            && roles.let_take(parts, parts.lane.id, sequence)
            && parts.lane.shard().takes(sequence)
            && parts.lane.shard().adapters.have_room_for(sequence)
    };
    from.running.keys().iter().filter(may_move).min_by_key(|key| parts.sequences[**key].num_tokens()).copied()
}

/// Returns true if a sequence pauses only shortly when it moves to the lane, and has more tokens to come than it
/// computes again.
fn is_worth_it(parts: &Lifecycle<'_>, key: SequenceKey) -> bool {
    let sequence = &parts.sequences[key];
    let lanes: Vec<&Lane> = parts.lanes().collect();
    let (cached_tokens, _) = neighbours::cached_tokens(parts.config, &lanes, sequence);
    let num_cached = cached_tokens.get(parts.lane.id.0 as usize).copied().unwrap_or(0);
    let num_computed = sequence.num_tokens().saturating_sub(num_cached);
    let num_left = sequence.request.max_new_tokens.saturating_sub(sequence.num_output_tokens());
    let pause_ms = f64::from(num_computed) * token_ms(parts.lane, mean_token_ms(parts));
    num_computed <= num_left && pause_ms <= MAX_PAUSE_MS
}
