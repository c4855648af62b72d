//! What a step's result does to its sequences.

use crate::event::{Allowed, EndReason, Millis, NextTokens, SequenceId, Update};
use crate::plan::{
    SampledToken, SequenceError, SequenceErrorCode, SequenceOutcome, SequenceResult, StepResult,
};
use crate::scheduler::{PlannedChunk, Scheduler};
use crate::sequence::{Phase, SequenceKey};

/// A step's outcomes, to be taken by wire id; in the order of the chunks that costs O(1) each.
struct Outcomes {
    results: Vec<Option<SequenceResult>>,
    next: usize,
    num_left: u64,
}

impl Outcomes {
    fn take(&mut self, wire_id: u64) -> Option<SequenceResult> {
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

impl Scheduler {
    /// The result of the oldest plan in flight; anything else is counted and otherwise ignored.
    pub(crate) fn take_result(&mut self, now: Millis, result: StepResult, updates: &mut Vec<Update>) {
        let step = self.shard.as_mut().and_then(|shard| {
            let is_expected = shard.in_flight.front().is_some_and(|step| step.step_id == result.step_id);
            if is_expected { shard.in_flight.pop_front() } else { None }
        });
        let Some(step) = step else {
            self.counters.unexpected_results += 1;
            return;
        };
        self.throughput.add_step(step.num_prefill_tokens, result.device_time_us);
        if let Some(shard) = &mut self.shard {
            shard.restoring.step_done(step.step_id, now, &self.throughput, shard.limits.block_size);
        }
        let num_left = result.sequences.len() as u64;
        let results = result.sequences.into_iter().map(Some).collect();
        let mut outcomes = Outcomes { results, next: 0, num_left };
        for chunk in &step.chunks {
            let outcome = if outcomes.num_left > 0 { outcomes.take(chunk.wire_id) } else { None };
            self.take_outcome(now, chunk, outcome, updates);
        }
        if let Some(shard) = &mut self.shard {
            shard.keep_room(step.chunks);
        }
        self.counters.unexpected_results += outcomes.num_left;
    }

    fn take_outcome(
        &mut self,
        now: Millis,
        chunk: &PlannedChunk,
        result: Option<SequenceResult>,
        updates: &mut Vec<Update>,
    ) {
        let (outcome, scores) = result.map(|result| (result.outcome, result.scores)).unzip();
        let sequence = &mut self.sequences[chunk.key];
        let num_known = sequence.num_tokens();
        let run = sequence.run_mut();
        assert_eq!(run.wire_id, chunk.wire_id, "who is in flight keeps its wire id");
        run.steps_in_flight -= 1;
        if let Some(shard) = &mut self.shard {
            shard.kv.release_copy_source(&mut run.table);
        }
        let error = match &outcome {
            Some(SequenceOutcome::Error(error)) => Some(error.clone()),
            _ => None,
        };
        if error.is_some() {
            run.has_failed = true;
        }
        if !run.has_failed {
            // Less than the chunk's end only past the end of a sequence: what is there never enters the index.
            run.acknowledged = chunk.end.min(num_known);
        }
        if run.phase == Phase::Ending {
            self.release_if_idle(chunk.key);
            return;
        }
        if let Some(error) = error {
            self.end(chunk.key, EndReason::Failed(error), updates);
            return;
        }
        self.index(chunk.key);
        if let Some(first) = chunk.scored_from
            && !self.take_scores(chunk.key, (first, chunk.end), scores.unwrap_or_default(), updates)
        {
            return;
        }
        match (chunk.sample, outcome) {
            (true, Some(SequenceOutcome::Token(token))) => self.take_token(now, chunk.key, token, updates),
            (true, _) => {
                self.fail_result(chunk.key, "the result lacks the token that was asked for", updates)
            }
            (false, Some(SequenceOutcome::Computed)) if chunk.scored_from.is_some() => {}
            (false, Some(_)) => self.counters.unexpected_results += 1,
            (false, None) => {}
        }
        if self.is_same_run(chunk) {
            self.release_if_idle(chunk.key);
        }
    }

    /// False if the outcome already ended the sequence for good.
    fn is_same_run(&self, chunk: &PlannedChunk) -> bool {
        let sequence = self.sequences.get(chunk.key);
        sequence.and_then(|s| s.run.as_ref()).is_some_and(|run| run.wire_id == chunk.wire_id)
    }

    /// Enters what is acknowledged in the KV index, whole blocks of it, and wakes those that wait for it.
    pub(crate) fn index(&mut self, key: SequenceKey) {
        let shard = self.shard.as_mut().expect("a result has a shard");
        let sequence = &mut self.sequences[key];
        let run = sequence.run.as_mut().expect("the sequence does not wait");
        let before = run.table.num_indexed_blocks();
        shard.kv.index(&mut run.table, &sequence.tokens[..run.acknowledged as usize]);
        let num_blocks = run.table.num_indexed_blocks();
        if num_blocks > before && !run.waiters.is_empty() {
            self.wake_waiters(key, Some(num_blocks));
        }
    }

    fn take_token(&mut self, now: Millis, key: SequenceKey, token: SampledToken, updates: &mut Vec<Update>) {
        let vocab_size = self.shard.as_ref().map_or(0, |shard| shard.limits.vocab_size);
        if token.token_id >= vocab_size {
            self.fail_result(key, "the result names a token outside the vocabulary", updates);
            return;
        }
        self.pin_prompt(key, updates);
        let sequence = &mut self.sequences[key];
        sequence.run_mut().pending_samples -= 1;
        let (id, constrained, token_id) = (sequence.id, sequence.constrained, token.token_id);
        if !self.append_token(now, key, token, updates) && constrained {
            updates.push(Update::Awaits { id, token_id });
        }
    }

    /// What may follow in a constrained sequence. Panics if nobody asked: that is a bug of the caller.
    pub(crate) fn allow(&mut self, now: Millis, id: SequenceId, allowed: Allowed, updates: &mut Vec<Update>) {
        let Some(key) = self.sequences.key(id) else { return };
        let sequence = &mut self.sequences[key];
        let run = sequence.run.as_ref();
        if run.is_some_and(|run| run.phase == Phase::Ending) {
            return;
        }
        let is_asked = sequence.constrained
            && sequence.allowed.is_none()
            && sequence.early.is_none()
            && run.is_none_or(|run| run.pending_samples == 0);
        assert!(is_asked, "who is told what may follow waits for it: {}", id.0);
        if sequence.first_start.is_none() && !allowed.forced.is_empty() {
            sequence.early = Some(allowed);
        } else {
            self.follow(now, key, allowed, updates);
        }
    }

    /// Appends what is forced, and keeps what may be sampled then.
    pub(crate) fn follow(
        &mut self,
        now: Millis,
        key: SequenceKey,
        allowed: Allowed,
        updates: &mut Vec<Update>,
    ) {
        for token_id in allowed.forced {
            if let Some(run) = &mut self.sequences[key].run {
                run.num_unsent_tokens += u32::from(run.is_on_shard);
            }
            let token = SampledToken { token_id, ..SampledToken::default() };
            if self.append_token(now, key, token, updates) {
                return;
            }
        }
        match allowed.next {
            NextTokens::Mask(mask) => self.sequences[key].allowed = Some(mask),
            NextTokens::End => self.end(key, EndReason::EndToken, updates),
            NextTokens::Failed(message) => {
                let error = SequenceError { code: SequenceErrorCode::GrammarFailed, message };
                self.end(key, EndReason::Failed(error), updates);
            }
        }
    }

    /// One more token of the output. True if the sequence ended with it.
    fn append_token(
        &mut self,
        now: Millis,
        key: SequenceKey,
        token: SampledToken,
        updates: &mut Vec<Update>,
    ) -> bool {
        let sequence = &mut self.sequences[key];
        sequence.tokens.push(token.token_id);
        self.counters.output_tokens += 1;
        let is_end_token = sequence.is_end_token(token.token_id);
        updates.push(Update::Token { id: sequence.id, token });
        let reason = if is_end_token {
            EndReason::EndToken
        } else if sequence.num_output_tokens() >= sequence.max_new_tokens {
            EndReason::Length
        } else {
            return false;
        };
        if let Some(start) = sequence.first_start {
            self.throughput.add_run(now.since(start.at));
        }
        self.end(key, reason, updates);
        true
    }

    pub(crate) fn fail_result(&mut self, key: SequenceKey, message: &str, updates: &mut Vec<Update>) {
        self.sequences[key].run_mut().has_failed = true;
        let error = SequenceError { code: SequenceErrorCode::InvalidResult, message: message.to_owned() };
        self.end(key, EndReason::Failed(error), updates);
    }
}
