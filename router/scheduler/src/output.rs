//! Growth of a sequence's output: sampled tokens, forced tokens, and the answers of its grammar.

use crate::consumption::Consumption;
use crate::event::{Allowed, EndReason, NextTokens, Update};
use crate::fairness::PROMPT_TOKEN_COST;
use crate::lifecycle::Lifecycle;
use crate::plan::{SampledToken, SequenceError, SequenceErrorCode};
use crate::sequence::{Sequence, SequenceKey};

/// Appends one token to the output and reports it. Returns true if the sequence ended with it.
pub(crate) fn append_token(parts: &mut Lifecycle<'_>, key: SequenceKey, token: SampledToken) -> bool {
    let sequence = &mut parts.sequences[key];
    sequence.tokens.push(token.token_id);
    let is_end_token = sequence.is_end_token(token.token_id);
    parts.sequences.extend_drafter(key, token.token_id);
    parts.counters.output_tokens += 1;
    parts.sequences.consume(key, Consumption { output_tokens: 1, ..Consumption::default() });
    let sequence = &parts.sequences[key];
    parts.updates.push(Update::Token { id: sequence.request.id, token });
    let reason = if is_end_token {
        EndReason::EndToken
    } else if sequence.num_output_tokens() >= sequence.request.max_new_tokens {
        EndReason::Length
    } else {
        return false;
    };
    if let Some(start) = sequence.first_start {
        parts.lane.throughput.add_run(parts.now.since(start.at));
    }
    parts.end(key, reason);
    true
}

/// Takes a grammar's answer for a sequence. It is ignored if the sequence has ended.
///
/// Panics if the sequence does not wait for an answer, which is a bug of the caller.
pub(crate) fn allow(parts: &mut Lifecycle<'_>, key: SequenceKey, allowed: Allowed) {
    let sequence = &mut parts.sequences[key];
    if sequence.is_ending() {
        return;
    }
    let id = sequence.request.id.0;
    assert!(is_answer_due(sequence), "a grammar's answer is for a sequence that waits for it: {id}");
    let constraint = sequence.constraint.as_mut().expect("the sequence is constrained");
    constraint.end_awaiting(allowed.is_slow);
    if let Some(run) = &mut sequence.run {
        match &allowed.next {
            NextTokens::Mask(mask) if allowed.forced.is_empty() => {
                if run.mask_step_id.is_some() {
                    parts.lane.shard_mut().send_late_mask(run, mask.clone(), parts.now);
                    return;
                }
            }
            _ => parts.lane.shard_mut().cancel_late_mask(key, run, parts.now),
        }
    }
    if sequence.first_start.is_none() && !allowed.forced.is_empty() {
        constraint.set_early(allowed);
    } else {
        apply(parts, key, allowed);
    }
}

/// Appends the forced tokens of a grammar's answer, and keeps the mask of the sample after them.
pub(crate) fn apply(parts: &mut Lifecycle<'_>, key: SequenceKey, allowed: Allowed) {
    parts.sequences.charge(key, allowed.forced.len() as u64 * PROMPT_TOKEN_COST);
    for token_id in allowed.forced {
        if let Some(run) = &mut parts.sequences[key].run {
            run.num_unsent_tokens += u32::from(run.is_on_shard);
        }
        let token = SampledToken { token_id, ..SampledToken::default() };
        if append_token(parts, key, token) {
            return;
        }
    }
    match allowed.next {
        NextTokens::Mask(mask) => {
            if let Some(constraint) = &mut parts.sequences[key].constraint {
                constraint.set_mask(mask);
                constraint.set_drafts(allowed.drafts);
            }
        }
        NextTokens::End => parts.end(key, EndReason::EndToken),
        NextTokens::Failed(message) => {
            let error = SequenceError { code: SequenceErrorCode::GrammarFailed, message };
            parts.end(key, EndReason::Failed(error));
        }
    }
}

/// Returns true if no answer is at hand and all samples in flight, except one that awaits a mask, have arrived.
fn is_answer_due(sequence: &Sequence) -> bool {
    let has_none = sequence.constraint.as_ref().is_some_and(|constraint| !constraint.has_answer());
    let run = sequence.run.as_ref();
    has_none && run.is_none_or(|run| run.pending_samples == u32::from(run.mask_step_id.is_some()))
}
