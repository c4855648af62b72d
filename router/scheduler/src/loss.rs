//! Lets the sequences of a lost shard go on with another one, and fails the sequence that crashes shards.
//!
//! A lost sequence goes back to the queue with the tokens that are known, as after a preemption. Sampling depends only
//! on the seed and the position, so its text is the same.
//!
//! The sequences that the shard was computing become suspects, because one of them may have crashed it. Suspects run
//! before all others and one at a time, with nothing else in flight, until they have computed the positions that were
//! in flight. Then they are cleared and run with the others again. If another shard is lost while a suspect alone
//! is in flight, that suspect is convicted and fails, and so do all sequences of equal requests. Equal requests are
//! refused for a while (`poison.rs`).
//!
//! A sequence that escaped from a late step is a suspect as well, but the step is no loss before its shard is lost. So
//! a loss meanwhile convicts no one: the suspect waits until the step is answered, or lost, too.
//!
//! If sequences are in flight at a second loss after they were cleared, they are separated (`cells.rs`).

use std::collections::BTreeSet;

use crate::event::{EndReason, Millis, RejectReason, Update};
use crate::lifecycle::Lifecycle;
use crate::neighbours;
use crate::plan::{SequenceError, SequenceErrorCode};
use crate::poison::{POISON_MS, RequestDigest};
use crate::refusal::{clearest, reject};
use crate::sequence::{Loss, MAX_LOSSES, Phase, Run, Sequence, SequenceKey, Suspicion};
use crate::shard::Shard;

/// A sequence is convicted, too, if it was in flight at [`MAX_LOSSES`] losses within this time and alone at the last.
/// The launcher counts crashes for as long.
const BURST_MS: u64 = 60_000;
/// Sequences that were in flight at this many losses are separated.
const MIN_LOSSES_TO_SEPARATE: usize = 2;

/// The sequences that a shard computes or restores, or whose adapters it loads.
pub(crate) fn in_flight(shard: &Shard) -> BTreeSet<SequenceKey> {
    let chunks = shard.steps.iter().flat_map(|step| &step.chunks);
    chunks.map(|chunk| chunk.key).chain(shard.restores.awaiting()).chain(shard.adapters.awaiting()).collect()
}

/// Puts the runs of the lane, whose shard was lost, back in the queue.
pub(crate) fn requeue_lost(parts: &mut Lifecycle<'_>, lost: &Shard) {
    for chunk in lost.steps.iter().flat_map(|step| &step.chunks) {
        parts.sequences.release_cost(chunk.key, chunk.cost);
    }
    neighbours::end_lost_reads(&mut parts.others, parts.sequences, lost);
    let in_flight = in_flight(lost);
    let loss = parts.lane.losses.begin(parts.lane.id, parts.now, !in_flight.is_empty());
    for &key in &in_flight {
        let sequence = &mut parts.sequences[key];
        note_loss(sequence, loss);
        sequence.escaped.take_if(|run| run.lane == loss.lane);
    }
    let convicted = find_convicted(parts, &in_flight);
    if in_flight.len() > 1 {
        separate(parts, &in_flight);
    }
    let mut keys = parts.sequences.keys_by_arrival();
    let is_concerned = |run: &Run| run.lane == parts.lane.id;
    keys.retain(|&key| parts.sequences[key].run.as_ref().is_none_or(is_concerned));
    // All sequences leave the queue before any is removed, because a parked sequence names the one that it waits for.
    for &key in &keys {
        if parts.sequences[key].run.is_none() {
            parts.sequences.leave_queue(key);
        }
    }
    let mut guilty = Vec::new();
    for key in keys {
        if parts.sequences[key].is_running() {
            parts.sequences.end_running(key);
        }
        let sequence = &mut parts.sequences[key];
        let run = sequence.run.take();
        if let Some(run) = run.as_ref().filter(|_| in_flight.contains(&key)) {
            let positions = lost.steps.positions_of(run);
            sequence.is_load_suspected |= run.awaits_adapter;
            sequence.suspected = Some(match sequence.suspected.take() {
                Some(earlier) => earlier.start.min(positions.start)..earlier.end.max(positions.end),
                None => positions,
            });
        }
        if run.as_ref().is_some_and(|run| run.phase == Phase::Ending) {
            // Nobody waits for it any more, so it is not computed again.
            parts.leave(key);
            parts.remove(key);
            continue;
        }
        if convicted.contains(&key) {
            guilty.push(convict(parts, key));
            continue;
        }
        let Some(run) = run else {
            parts.enter_queue(key);
            continue;
        };
        if let (Some(constraint), Some(mask)) = (&mut sequence.constraint, run.sent_mask) {
            constraint.set_mask(mask);
        }
        sequence.waiting_since = parts.now;
        parts.counters.replays += u64::from(sequence.first_start.is_some());
        parts.enter_queue(key);
    }
    guilty.iter().for_each(|guilty| end_equal(parts, guilty));
}

/// Notes that a sequence was in flight at a loss.
fn note_loss(sequence: &mut Sequence, loss: Loss) {
    sequence.losses.retain(|earlier| loss.at.since(earlier.at) < POISON_MS);
    if sequence.losses.len() == MAX_LOSSES {
        sequence.losses.pop_front();
    }
    sequence.losses.push_back(loss);
}

/// Returns the sequences that are to blame for a loss: the suspect, if it was the only one in flight, and those that
/// awaited the answer of a late step. The last steps of a suspect that was cleared may still be in flight while the
/// next suspect waits for a restore.
fn find_convicted(parts: &mut Lifecycle<'_>, in_flight: &BTreeSet<SequenceKey>) -> Vec<SequenceKey> {
    let lone_suspect = parts.lane.suspect.take().filter(|suspect| in_flight.iter().eq([suspect]));
    let mut convicted = Vec::new();
    for &key in in_flight {
        let sequence = &mut parts.sequences[key];
        let losses = &sequence.losses;
        let is_burst =
            in_flight.len() == 1 && losses.len() == MAX_LOSSES && is_recent(losses.front(), parts.now);
        let is_late = sequence.suspicion == Suspicion::Late && sequence.escaped.is_some();
        let is_lone_suspect = lone_suspect == Some(key);
        if is_burst || sequence.awaits_late_step() || is_lone_suspect && !is_late {
            convicted.push(key);
        }
        sequence.suspicion =
            if is_lone_suspect && is_late { Suspicion::LateAndLoss } else { Suspicion::Loss };
    }
    convicted
}

fn is_recent(loss: Option<&Loss>, now: Millis) -> bool {
    loss.is_some_and(|loss| now.since(loss.at) < BURST_MS)
}

/// Separates the sequences that were in flight at several losses.
fn separate(parts: &mut Lifecycle<'_>, in_flight: &BTreeSet<SequenceKey>) {
    let mut keys: Vec<SequenceKey> = in_flight.iter().copied().collect();
    keys.retain(|&key| parts.sequences[key].losses.len() >= MIN_LOSSES_TO_SEPARATE);
    for key in parts.cells.separate(parts.sequences, &keys, parts.now) {
        let losses = parts.sequences[key].losses.clone();
        parts.explain_losses(&losses);
        parts.poisons.separate(&parts.sequences[key], parts.now);
    }
}

fn crashed() -> EndReason {
    EndReason::Failed(SequenceError {
        code: SequenceErrorCode::CrashedShard,
        message: "the shard was lost twice in a row while it computed this request".to_owned(),
    })
}

/// A convicted request.
struct Guilty {
    digest: RequestDigest,
    num_prompt_tokens: u32,
}

/// Ends a sequence that has neither a run nor a place in the queue, because it crashed two shards in a
/// row.
fn convict(parts: &mut Lifecycle<'_>, key: SequenceKey) -> Guilty {
    let sequence = &parts.sequences[key];
    let digest = RequestDigest::of_sequence(sequence);
    let guilty = Guilty { digest, num_prompt_tokens: sequence.num_prompt_tokens };
    let (id, usage, losses) = (sequence.request.id, sequence.usage(), sequence.losses.clone());
    parts.poisons.convict(digest, parts.now);
    parts.counters.convictions += 1;
    parts.explain_losses(&losses);
    parts.updates.push(Update::Ended { id, reason: crashed(), usage });
    parts.sequences.clear_deadline(key);
    parts.remove(key);
    guilty
}

/// Ends the waiting sequences whose requests are equal to that of a convicted one.
fn end_equal(parts: &mut Lifecycle<'_>, guilty: &Guilty) {
    for key in parts.sequences.keys_by_arrival() {
        let sequence = &parts.sequences[key];
        let is_equal = sequence.run.is_none()
            && sequence.num_prompt_tokens == guilty.num_prompt_tokens
            && RequestDigest::of_sequence(sequence) == guilty.digest;
        if !is_equal {
            continue;
        }
        if sequence.first_start.is_some() {
            parts.end(key, crashed());
        } else {
            let id = parts.remove_waiting(key);
            reject(parts, id, RejectReason::Poison { for_ms: POISON_MS });
        }
    }
}

/// Ends the waiting sequences that no connected shard takes.
pub(crate) fn end_stranded(parts: &mut Lifecycle<'_>) {
    for key in parts.sequences.keys_by_arrival() {
        let sequence = &parts.sequences[key];
        let shards = || parts.lanes().filter_map(|lane| lane.shard.as_ref());
        if sequence.run.is_some() || shards().any(|shard| shard.takes(sequence)) {
            continue;
        }
        if sequence.first_start.is_some() {
            parts.end(key, EndReason::ShardLost);
        } else {
            let misfit = clearest(shards().filter_map(|shard| shard.misfit_of(sequence)));
            let id = parts.remove_waiting(key);
            reject(parts, id, misfit.unwrap_or(RejectReason::ShardAway));
        }
    }
}

/// Clears a suspect that is past the position at which the shard was lost.
pub(crate) fn clear_suspect(parts: &mut Lifecycle<'_>, key: SequenceKey) {
    let sequence = &mut parts.sequences[key];
    let acknowledged = sequence.run.as_ref().map_or(0, |run| run.acknowledged);
    if sequence.suspected.as_ref().is_some_and(|positions| positions.end <= acknowledged) {
        (sequence.suspected, sequence.suspicion) = (None, Suspicion::Loss);
        sequence.is_load_suspected = false;
        parts.lane.suspect = None;
        parts.lane.losses.worked();
    }
}
