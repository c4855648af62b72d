//! The outputs of one request: one for each of its prompts and choices, read as one stream.

use std::task::{Context, Poll};

use trunkline_scheduler::Pinned;

use super::generate::{FinishReason, Generation, GenerationEvent, Usage};
use trunkline_base::request_id::RequestId;
use trunkline_base::trace::TokenCounts;

/// Generations that are answered together: first all choices of the first prompt, then those of the next. Dropping it
/// aborts the generations that have not ended.
pub struct Choices {
    generations: Vec<Generation>,
    per_prompt: usize,
    /// The generation that is polled first. It rotates, so that no generation waits for the end of another.
    turn: usize,
    num_open: usize,
    usage: Usage,
    finish_reasons: Vec<&'static str>,
    request_id: RequestId,
}

impl Choices {
    /// Combines generations, `per_prompt` of each prompt. Panics if there is none.
    pub fn new(generations: Vec<Generation>, per_prompt: usize) -> Self {
        let request_id = generations[0].id().clone();
        let num_open = generations.len();
        Self {
            num_open,
            generations,
            per_prompt,
            turn: 0,
            usage: Usage::default(),
            finish_reasons: Vec::new(),
            request_id,
        }
    }

    pub fn request_id(&self) -> &RequestId {
        &self.request_id
    }

    /// Returns the number of choices, including those that have ended.
    pub fn num_choices(&self) -> usize {
        self.generations.len()
    }

    /// Returns the next event and the index of its choice; `None` after all choices have ended or one has failed.
    pub async fn next(&mut self) -> Option<(usize, GenerationEvent)> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next event; see [`Self::next`]. A failure is the last event, because it aborts the other choices.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, GenerationEvent)>> {
        let mut is_waiting = false;
        for _ in 0..self.generations.len() {
            let index = self.turn;
            self.turn = (index + 1) % self.generations.len();
            // The logprobs of a prompt precede all of its outputs.
            let first = index - index % self.per_prompt;
            if index != first && self.generations[first].awaits_prompt() {
                is_waiting = true;
                continue;
            }
            match self.generations[index].poll_next(cx) {
                Poll::Ready(Some(event)) => {
                    self.count(index, &event);
                    return Poll::Ready(Some((index, event)));
                }
                Poll::Ready(None) => {}
                Poll::Pending => is_waiting = true,
            }
        }
        if is_waiting { Poll::Pending } else { Poll::Ready(None) }
    }

    fn count(&mut self, index: usize, event: &GenerationEvent) {
        match event {
            GenerationEvent::Started(_) | GenerationEvent::Prompt(_) => {}
            GenerationEvent::Output(output) => {
                let Some((reason, usage)) = output.finish else { return };
                self.finish_reasons.push(reason_name(reason));
                self.num_open -= 1;
                self.usage.output_tokens += usage.output_tokens;
                self.usage.accepted_drafts += usage.accepted_drafts;
                self.usage.rejected_drafts += usage.rejected_drafts;
                self.usage.prompt_time = self.usage.prompt_time.max(usage.prompt_time);
                self.usage.output_time = self.usage.output_time.max(usage.output_time);
                // A prompt counts once. Its other choices find in the cache the blocks that the first one computed.
                if index.is_multiple_of(self.per_prompt) {
                    self.usage.prompt_tokens += usage.prompt_tokens;
                    self.usage.cached_tokens += usage.cached_tokens;
                    self.usage.restored += usage.restored;
                    self.usage.pinned = joined(self.usage.pinned, usage.pinned);
                }
            }
            GenerationEvent::Failed(error) => {
                self.record(Some(error.code()));
                self.num_open = 0;
                self.generations.clear();
            }
        }
    }

    /// Adds the tokens so far, the outcome and an error to the request's record.
    fn record(&mut self, error: Option<&'static str>) {
        let Some(trace) = self.request_id.trace() else { return };
        let mut tokens = TokenCounts::default();
        for (index, usage) in self.generations.iter().map(Generation::usage).enumerate() {
            tokens.output += usage.output_tokens;
            if index.is_multiple_of(self.per_prompt) {
                tokens.prompt += usage.prompt_tokens;
                tokens.cached += usage.cached_tokens;
            }
        }
        let is_aborted = error.is_none() && self.num_open > 0;
        trace.update(|record| {
            // After a failure the generations are gone, and all is recorded.
            if record.error.is_none() {
                record.tokens = Some(tokens);
                record.finish_reasons = std::mem::take(&mut self.finish_reasons);
                record.is_aborted = is_aborted;
                record.error = error;
            }
        });
    }

    pub fn is_over(&self) -> bool {
        self.num_open == 0
    }

    /// Returns the sum over all choices that have ended.
    pub fn usage(&self) -> Usage {
        self.usage
    }
}

impl Drop for Choices {
    fn drop(&mut self) {
        self.record(None);
    }
}

/// Returns the name of OpenTelemetry's conventions.
fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::EndToken | FinishReason::StopToken { .. } | FinishReason::StopString { .. } => "stop",
    }
}

/// Adds the pinned tokens of two prompts.
fn joined(one: Option<Pinned>, other: Option<Pinned>) -> Option<Pinned> {
    let (Some(one), Some(other)) = (one, other) else { return one.or(other) };
    let on_disk = [one.num_stored_tokens, other.num_stored_tokens];
    Some(Pinned {
        num_tokens: one.num_tokens + other.num_tokens,
        num_stored_tokens: on_disk.into_iter().flatten().reduce(|one, other| one + other),
    })
}
