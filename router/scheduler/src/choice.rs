//! Chooses the lane on which a waiting sequence runs.
//!
//! No sequence belongs to a lane while it waits. A lane with room takes the next one from the queue, but passes over a
//! sequence that another lane will probably answer sooner, because it has more of its prefix or less to do. So a
//! conversation stays where its prefix is, until the wait there costs more than computing the prefix again.

use crate::lane::Lane;
use crate::lifecycle::Lifecycle;
use crate::sequence::{Sequence, SequenceKey};
use crate::sequences::Sequences;

/// The most waiting sequences that a lane passes over for one plan. It bounds the time of a plan.
const MAX_PASSED: usize = 32;
/// A running sequence delays a new one as much as the prefill of so many tokens. So sequences that have no prefix
/// anywhere go to the lane with the fewest streams.
const TOKENS_PER_STREAM: u64 = 16;
/// The assumed milliseconds of prefill for a token before any was measured on any lane.
const UNMEASURED_TOKEN_MS: f64 = 1.0;

/// The prospects of a waiting sequence on a lane.
#[derive(Clone, Copy, Debug)]
struct Prospect {
    /// True if the lane would take it now.
    has_room: bool,
    /// Predicted milliseconds until its first token.
    first_token_ms: f64,
}

/// Returns the next sequence in the queue that the lane should take. Those that are better off elsewhere are added to
/// `passed`, which holds what was passed over before for the same plan.
pub(crate) fn next_waiting(parts: &mut Lifecycle<'_>, passed: &mut Vec<SequenceKey>) -> Option<SequenceKey> {
    while passed.len() < MAX_PASSED {
        let key = parts.sequences.first_waiting(passed)?;
        if !is_better_elsewhere(parts, key) {
            return Some(key);
        }
        parts.sequences[key].wait.passed_at.get_or_insert(parts.now);
        passed.push(key);
    }
    None
}

/// Returns the next suspect that the lane should take.
pub(crate) fn next_suspect(parts: &Lifecycle<'_>) -> Option<SequenceKey> {
    parts.sequences.suspects().find(|&key| !is_better_elsewhere(parts, key))
}

/// Returns true if the lane should leave a waiting sequence to another lane.
fn is_better_elsewhere(parts: &Lifecycle<'_>, key: SequenceKey) -> bool {
    if parts.others.iter().all(|lane| lane.shard.is_none()) {
        return false;
    }
    let sequence = &parts.sequences[key];
    let Some(here) = prospect(parts, parts.lane, sequence) else { return true };
    let elsewhere = parts.others.iter().filter_map(|lane| prospect(parts, lane, sequence));
    // An idle lane waits for no full one.
    let waits_for_place = here.has_room && parts.lane.running.len() > 0;
    let window_ms = parts.config.cached_first_window_ms;
    let may_wait = sequence.wait.passed_at.is_none_or(|at| parts.now.since(at) < window_ms);
    let mut better = elsewhere.filter(|other| other.first_token_ms < here.first_token_ms);
    may_wait && better.any(|other| other.has_room || waits_for_place)
}

/// Predicts how a waiting sequence would fare on a lane. None if it cannot run there.
fn prospect(parts: &Lifecycle<'_>, lane: &Lane, sequence: &Sequence) -> Option<Prospect> {
    let shard = lane.shard.as_ref().filter(|shard| shard.takes(sequence))?;
    let num_cached = sequence.wait.cached_tokens.get(lane.id.0 as usize).copied().unwrap_or(0);
    let num_uncached = u64::from(sequence.num_tokens().saturating_sub(num_cached));
    let num_running = lane.running.len();
    let has_place = num_running < lane.max_running(parts.config);
    let has_blocks = shard.blocks_for(sequence.num_tokens().saturating_sub(num_cached))
        <= shard.kv.device().available_to(&sequence.request.salt);
    let num_ahead = prefill_ahead(parts.sequences, lane) + TOKENS_PER_STREAM * num_running as u64;
    let mut first_token_ms = (num_uncached + num_ahead) as f64 * token_ms(parts, lane);
    if !has_place {
        first_token_ms += lane.throughput.mean_run_ms() as f64 / num_running.max(1) as f64;
    }
    Some(Prospect { has_room: has_place && has_blocks && lane.suspect.is_none(), first_token_ms })
}

/// Tokens that the lane's sequences still compute before their next token.
fn prefill_ahead(sequences: &Sequences, lane: &Lane) -> u64 {
    let prefilling =
        lane.running.keys().iter().map(|&key| &sequences[key]).filter(|sequence| sequence.is_prefilling());
    prefilling.map(|sequence| u64::from(sequence.run().prefill_end - sequence.run().acknowledged)).sum()
}

/// Milliseconds of prefill for a token on a lane, or on the others before it was measured there.
fn token_ms(parts: &Lifecycle<'_>, lane: &Lane) -> f64 {
    let of_lane = |lane: &Lane| lane.throughput.predict_prefill_ms(1);
    of_lane(lane).or_else(|| parts.lanes().find_map(of_lane)).unwrap_or(UNMEASURED_TOKEN_MS)
}
