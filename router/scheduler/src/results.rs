//! The effect of a step's result on its sequences.

use crate::constraint::Constraint;
use crate::consumption::{Consumption, TimeDivision};
use crate::drafts::drafts_to_check;
use crate::event::{EndReason, Update};
use crate::fairness::OUTPUT_TOKEN_COST;
use crate::in_flight::PlannedChunk;
use crate::lifecycle::Lifecycle;
use crate::loss::clear_suspect;
use crate::output::append_token;
use crate::plan::{Outcome, SampledToken, SequenceResult, StepResult, TokenScore};
use crate::sequence::{Phase, SequenceKey};

/// A step's outcomes, taken by wire id. Taking them in the order of the chunks costs O(1) each.
struct Outcomes {
    results: Vec<Option<SequenceResult>>,
    next: usize,
    num_left: u64,
}

impl Outcomes {
    fn new(results: Vec<SequenceResult>) -> Self {
        let num_left = results.len() as u64;
        Self { results: results.into_iter().map(Some).collect(), next: 0, num_left }
    }

    fn take(&mut self, wire_id: u64) -> Option<SequenceResult> {
        if self.num_left == 0 {
            return None;
        }
        let is_it = |slot: &Option<SequenceResult>| slot.as_ref().is_some_and(|r| r.sequence_id == wire_id);
        let index = match self.results.get(self.next) {
            Some(slot) if is_it(slot) => self.next,
            _ => self.results.iter().position(is_it)?,
        };
        self.next = index + 1;
        self.num_left -= 1;
        self.results[index].take()
    }
}

/// Takes the result of the oldest step in flight. A result of any other step is counted and ignored.
pub(crate) fn take_result(parts: &mut Lifecycle<'_>, result: StepResult) {
    let lane = &mut *parts.lane;
    let Some(step) = lane.shard.as_mut().and_then(|shard| shard.steps.take(result.step_id, parts.now)) else {
        parts.counters.unexpected_results += 1;
        return;
    };
    let draft_time_us = result.draft_time_us.min(result.device_time_us);
    let step_time_us = result.device_time_us - draft_time_us;
    lane.throughput.add_step(step.work, step.num_prefill_tokens, step_time_us);
    let num_drafted = result.sequences.iter().map(|sequence| sequence.num_own_drafts).max();
    lane.throughput.add_drafts(num_drafted.unwrap_or(0), draft_time_us);
    parts.counters.draft_time_us += draft_time_us;
    if let Some(shard) = &mut lane.shard {
        shard.restores.begin_waiting(step.step_id, parts.now, &lane.throughput, shard.limits.block_size);
        if let Some(store) = shard.kv.store_mut() {
            step.discards.iter().for_each(|&slot| store.end_discard(slot));
        }
    }
    let num_tokens = step.chunks.iter().map(|chunk| u64::from(chunk.num_rows())).sum();
    let mut times = TimeDivision::new(result.device_time_us, num_tokens);
    let mut outcomes = Outcomes::new(result.sequences);
    for chunk in &step.chunks {
        let device_time_us = times.next(chunk.num_rows());
        parts.sequences.consume(chunk.key, Consumption { device_time_us, ..Consumption::default() });
        take_outcome(parts, chunk, outcomes.take(chunk.wire_id));
    }
    if let Some(shard) = &mut parts.lane.shard {
        shard.steps.recycle(step.chunks);
    }
    parts.counters.unexpected_results += outcomes.num_left;
}

fn take_outcome(parts: &mut Lifecycle<'_>, chunk: &PlannedChunk, result: Option<SequenceResult>) {
    let has_result = result.is_some();
    let SequenceResult { outcome, more_tokens, num_own_drafts, scores, vector, .. } =
        result.unwrap_or_default();
    let more = MoreTokens { tokens: more_tokens, num_own_drafts };
    parts.sequences.release_cost(chunk.key, chunk.cost);
    let sequence = &mut parts.sequences[chunk.key];
    if let Some(run) = sequence.escaped_run(parts.lane.id, chunk.wire_id) {
        run.steps_in_flight -= 1;
        parts.lane.shard_mut().kv.device_mut().release_copy_source(&mut run.table);
        parts.release_escaped(chunk.key);
        return;
    }
    let (num_known, is_whole) = (sequence.num_tokens(), sequence.is_whole());
    let run = sequence.run_mut();
    assert_eq!(run.wire_id, chunk.wire_id, "a sequence with steps in flight keeps its wire id");
    run.steps_in_flight -= 1;
    let mut drafts = Vec::new();
    if chunk.num_drafts > 0 {
        drafts = std::mem::take(&mut run.drafts);
        run.num_own_drafts = 0;
    }
    if let Some(shard) = &mut parts.lane.shard {
        shard.kv.device_mut().release_copy_source(&mut run.table);
    }
    let (token, error) = match outcome {
        Some(Outcome::Token(token)) => (Some(token), None),
        Some(Outcome::Error(error)) => (None, Some(error)),
        None => (None, None),
    };
    if error.is_some() {
        run.has_failed = true;
    }
    if !run.has_failed {
        // This is less than the chunk's end only where a chunk runs past the end of its sequence. Such positions never
        // enter the KV index, and neither do those that depend on what follows them.
        run.acknowledged = if is_whole { 0 } else { chunk.end.min(num_known) };
    }
    let (is_computed, is_ending) = (!run.has_failed, run.phase == Phase::Ending);
    if is_computed {
        parts.sequences.pay_prompt(chunk.key, chunk.end);
        clear_suspect(parts, chunk.key);
    }
    if is_ending {
        parts.release_if_idle(chunk.key);
        return;
    }
    if let Some(error) = error {
        parts.end(chunk.key, EndReason::Failed(error.into()));
        return;
    }
    parts.index(chunk.key);
    let is_scored = chunk.rows.num_scored > 0;
    if is_scored && !take_scores(parts, chunk, scores) {
        return;
    }
    let is_pooled = parts.sequences[chunk.key].request.pooling.is_some();
    match (chunk.rows.sample, token) {
        (true, None) if is_pooled && !vector.is_empty() => take_vector(parts, chunk.key, vector),
        (true, Some(token)) if !is_pooled => take_tokens(parts, chunk, token, &drafts, more),
        (true, _) => parts.fail_result(chunk.key, "the result lacks the token or vector that was asked for"),
        (false, None) if is_scored && vector.is_empty() => {}
        (false, _) => parts.counters.unexpected_results += u64::from(has_result),
    }
    // The outcome may have ended the sequence for good.
    let run = parts.sequences.get(chunk.key).and_then(|sequence| sequence.run.as_ref());
    if run.is_some_and(|run| run.wire_id == chunk.wire_id) {
        parts.release_if_idle(chunk.key);
    }
}

/// Reports the vector of a prompt, which ends its sequence.
fn take_vector(parts: &mut Lifecycle<'_>, key: SequenceKey, vector: Vec<f32>) {
    let sequence = &mut parts.sequences[key];
    let id = sequence.request.id;
    sequence.run_mut().pending_samples -= 1;
    parts.updates.push(Update::Pooled { id, vector });
    parts.end(key, EndReason::Length);
}

/// The tokens of a result behind the first one, and the drafts that the shard added by itself.
#[derive(Default)]
struct MoreTokens {
    tokens: Vec<SampledToken>,
    num_own_drafts: u32,
}

/// Takes the sampled token of a chunk, and those that were sampled after drafts that were right.
fn take_tokens(
    parts: &mut Lifecycle<'_>,
    chunk: &PlannedChunk,
    first: SampledToken,
    drafts: &[u32],
    MoreTokens { tokens: more, num_own_drafts }: MoreTokens,
) {
    let key = chunk.key;
    let num_drafts = drafts.len() as u32 + num_own_drafts;
    let num_accepted = more.len() as u32;
    let sampled = [&first].into_iter().chain(&more).map(|token| &token.token_id);
    let are_right = sampled.zip(drafts).take(more.len()).all(|(token, draft)| token == draft);
    if num_own_drafts > chunk.num_own_drafts || num_accepted > num_drafts || !are_right {
        parts.fail_result(key, "the result goes on behind a draft that was wrong");
        return;
    }
    if num_drafts > 0 {
        parts.counters.accepted_draft_tokens += u64::from(num_accepted);
        parts.counters.drafted_tokens += u64::from(num_drafts);
        parts.updates.push(Update::Drafted { id: parts.sequences[key].request.id, num_drafts, num_accepted });
        parts.sequences[key].own_acceptance.add(num_own_drafts, num_accepted);
    }
    let is_constrained = parts.sequences[key].constraint.is_some();
    let mut token_ids = Vec::new();
    if is_constrained {
        token_ids.extend(std::iter::once(&first).chain(&more).map(|token| token.token_id));
    }
    take_token(parts, key, first, true);
    for token in more {
        // A token may have ended the sequence. Those behind it are dropped.
        if !is_open(parts, chunk) {
            return;
        }
        // The position of the token before it was computed as a draft.
        let run = parts.sequences[key].run_mut();
        run.acknowledged += 1;
        run.planned += 1;
        parts.index(key);
        take_token(parts, key, token, false);
    }
    if is_constrained && is_open(parts, chunk) {
        let drafts = drafts_to_check(parts, key);
        let sequence = &mut parts.sequences[key];
        sequence.constraint.iter_mut().for_each(Constraint::begin_awaiting);
        parts.updates.push(Update::Awaits { id: sequence.request.id, token_ids, drafts });
    }
}

/// Returns true if the sequence of a chunk has not ended.
fn is_open(parts: &Lifecycle<'_>, chunk: &PlannedChunk) -> bool {
    let run = parts.sequences.get(chunk.key).and_then(|sequence| sequence.run.as_ref());
    run.is_some_and(|run| run.wire_id == chunk.wire_id && run.phase != Phase::Ending)
}

/// Takes a sampled token. `is_planned` is false for tokens beyond the one that the chunk was planned to sample.
fn take_token(parts: &mut Lifecycle<'_>, key: SequenceKey, token: SampledToken, is_planned: bool) {
    let vocab_size = parts.lane.shard().limits.vocab_size;
    if token.token_id >= vocab_size {
        parts.fail_result(key, "the result names a token outside the vocabulary");
        return;
    }
    let run = parts.sequences[key].run();
    if run.mask_step_id.is_some() && run.pending_samples == 1 {
        parts.fail_result(key, "the result has a token that could not be chosen yet");
        return;
    }
    parts.pin_prompt(key);
    parts.sequences.charge(key, OUTPUT_TOKEN_COST);
    let run = parts.sequences[key].run_mut();
    run.pending_samples -= u32::from(is_planned);
    run.sent_mask = None;
    append_token(parts, key, token);
}

/// Reports the prompt logprobs of a chunk. Returns false if the sequence ended with that.
fn take_scores(parts: &mut Lifecycle<'_>, chunk: &PlannedChunk, mut scores: Vec<TokenScore>) -> bool {
    let key = chunk.key;
    let sequence = &mut parts.sequences[key];
    if scores.len() != chunk.rows.num_scored as usize {
        parts.fail_result(key, "the result lacks logprobs of the prompt that were asked for");
        return false;
    }
    // Scores that were reported before a preemption are not reported again.
    let num_known = sequence.num_scored.saturating_sub(chunk.first).min(scores.len() as u32);
    scores.drain(..num_known as usize);
    sequence.num_scored += scores.len() as u32;
    let is_over = sequence.request.max_new_tokens == 0 && sequence.num_scored == sequence.num_to_score();
    if !scores.is_empty() {
        parts.updates.push(Update::Scored { id: sequence.request.id, scores });
    }
    if is_over {
        parts.pin_prompt(key);
        parts.end(key, EndReason::Length);
    }
    !is_over
}
