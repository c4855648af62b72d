//! Lets the sequences of a lost shard go on with another one, and fails the sequence that crashes shards.
//!
//! A lost sequence goes back to the queue with the tokens that are known, as after a preemption. Sampling depends only
//! on the seed and the position, so its text is the same.
//!
//! The sequences that the shard was computing become suspects, because one of them may have crashed it. Suspects run
//! before all others and one at a time, with nothing else in flight, until they are past the position at which the
//! shard was lost. Then they are cleared and run with the others again. If another shard is lost while a suspect alone
//! is in flight, that suspect is convicted and fails.

use std::collections::BTreeSet;

use crate::event::{EndReason, RejectReason, ShardLimits, Update};
use crate::lifecycle::Lifecycle;
use crate::plan::{SequenceError, SequenceErrorCode};
use crate::refusal::reject;
use crate::sequence::{Phase, Run, SequenceKey};
use crate::shard::Shard;

/// The sequences that a shard computes or restores.
fn in_flight(shard: &Shard) -> BTreeSet<SequenceKey> {
    let chunks = shard.steps.iter().flat_map(|step| &step.chunks);
    chunks.map(|chunk| chunk.key).chain(shard.restores.awaiting()).collect()
}

/// Puts the runs of the lane, whose shard was lost, back in the queue.
pub(crate) fn requeue_lost(parts: &mut Lifecycle<'_>, lost: &Shard) {
    for chunk in lost.steps.iter().flat_map(|step| &step.chunks) {
        parts.sequences.release_cost(chunk.key, chunk.cost);
    }
    let in_flight = in_flight(lost);
    // The last steps of a suspect that was cleared may still be in flight while the next suspect waits for a restore.
    let is_alone = in_flight.len() == 1;
    let convicted = parts.lane.suspect.take().filter(|suspect| is_alone && in_flight.contains(suspect));
    let mut keys = parts.sequences.keys_by_arrival();
    let is_concerned = |run: &Run| run.lane == parts.lane.id;
    keys.retain(|&key| parts.sequences[key].run.as_ref().is_none_or(is_concerned));
    // All sequences leave the queue before any is removed, because a parked sequence names the one that it waits for.
    for &key in &keys {
        if parts.sequences[key].run.is_none() {
            parts.sequences.leave_queue(key);
        }
    }
    for key in keys {
        if parts.sequences[key].is_running() {
            parts.sequences.end_running(key);
        }
        let sequence = &mut parts.sequences[key];
        let Some(run) = sequence.run.take() else {
            parts.enter_queue(key);
            continue;
        };
        if run.phase == Phase::Ending {
            parts.sequences.remove(key);
            continue;
        }
        if convicted == Some(key) {
            convict(parts, key);
            continue;
        }
        if let (Some(constraint), Some(mask)) = (&mut sequence.constraint, run.sent_mask) {
            constraint.set_mask(mask);
        }
        if in_flight.contains(&key) {
            sequence.suspect_until = sequence.suspect_until.max(Some(run.planned));
        }
        sequence.waiting_since = parts.now;
        parts.counters.replays += u64::from(sequence.first_start.is_some());
        parts.enter_queue(key);
    }
}

/// Removes a sequence that has neither a run nor a place in the queue, because it crashed two shards in a row.
fn convict(parts: &mut Lifecycle<'_>, key: SequenceKey) {
    let sequence = parts.sequences.remove(key);
    let error = SequenceError {
        code: SequenceErrorCode::CrashedShard,
        message: "the shard was lost twice in a row while it computed this request".to_owned(),
    };
    let usage = sequence.usage();
    parts.counters.convictions += 1;
    parts.updates.push(Update::Ended { id: sequence.id, reason: EndReason::Failed(error), usage });
}

/// Ends the waiting sequences that cannot go on with a shard that was just connected.
pub(crate) fn end_misfits(parts: &mut Lifecycle<'_>, shard: &Shard) {
    for key in parts.sequences.keys_by_arrival() {
        let sequence = &parts.sequences[key];
        let misfit =
            shard.misfit(&sequence.tokens, sequence.num_prompt_tokens as usize, sequence.max_new_tokens);
        if sequence.first_start.is_some() {
            let ShardLimits { numerics, .. } = shard.limits;
            if misfit.is_some() || sequence.has_results() && sequence.numerics != numerics {
                parts.end(key, EndReason::ShardLost);
            }
        } else if let Some(reason) = misfit {
            let id = parts.remove_waiting(key);
            reject(parts, id, reason);
        }
    }
}

/// Ends all waiting sequences, because no shard comes that could run them.
pub(crate) fn end_waiting(parts: &mut Lifecycle<'_>) {
    for key in parts.sequences.keys_by_arrival() {
        let sequence = &parts.sequences[key];
        if sequence.run.is_some() {
            continue;
        }
        if sequence.first_start.is_some() {
            parts.end(key, EndReason::ShardLost);
        } else {
            let id = parts.remove_waiting(key);
            reject(parts, id, RejectReason::ShardAway);
        }
    }
}

/// Clears a suspect that is past the position at which the shard was lost.
pub(crate) fn clear_suspect(parts: &mut Lifecycle<'_>, key: SequenceKey) {
    let sequence = &mut parts.sequences[key];
    let acknowledged = sequence.run.as_ref().map_or(0, |run| run.acknowledged);
    if sequence.suspect_until.is_some_and(|until| until <= acknowledged) {
        sequence.suspect_until = None;
        parts.lane.suspect = None;
    }
}

/// True while steps or restores of other sequences than `key` are in flight.
pub(crate) fn has_others_in_flight(parts: &Lifecycle<'_>, key: SequenceKey) -> bool {
    in_flight(parts.lane.shard()).iter().any(|&other| other != key)
}
