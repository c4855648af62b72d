//! The outputs of one request: one for each of its prompts and choices, read as one stream.

use std::task::{Context, Poll};

use trunkline_scheduler::Pinned;

use super::generate::{Generation, GenerationEvent, Usage};
use crate::request_id::RequestId;

/// Generations that are answered together, in the order of their indices: all choices of the first prompt, then those
/// of the next. Dropping it aborts what has not ended.
pub struct Choices {
    generations: Vec<Generation>,
    /// How many of them continue the same prompt.
    per_prompt: usize,
    /// Whose turn it is to be asked first, so that none is read only after another's end.
    turn: usize,
    num_open: usize,
    usage: Usage,
    request_id: RequestId,
}

impl Choices {
    /// `generations` are `per_prompt` for each prompt, at least one.
    pub fn new(generations: Vec<Generation>, per_prompt: usize) -> Self {
        let request_id = generations[0].request().id.clone();
        let num_open = generations.len();
        Self { num_open, generations, per_prompt, turn: 0, usage: Usage::default(), request_id }
    }

    /// Returns the id of the HTTP request that asked for them.
    pub fn request_id(&self) -> &RequestId {
        &self.request_id
    }

    /// How many choices there are, ended ones included.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.generations.len()
    }

    /// The next event and the index of its choice; none when all have ended, or one has failed.
    pub async fn next(&mut self) -> Option<(usize, GenerationEvent)> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As `next`. A failure is the last event: the other choices are aborted with it.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, GenerationEvent)>> {
        let mut is_waiting = false;
        for _ in 0..self.generations.len() {
            let index = self.turn;
            self.turn = (index + 1) % self.generations.len();
            // A prompt is told of before any of its outputs.
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
                let Some((_, usage)) = output.finish else { return };
                self.num_open -= 1;
                self.usage.output_tokens += usage.output_tokens;
                // A prompt counts once; what its other choices found in the cache is what the first one computed.
                if index.is_multiple_of(self.per_prompt) {
                    self.usage.prompt_tokens += usage.prompt_tokens;
                    self.usage.cached_tokens += usage.cached_tokens;
                    self.usage.pinned = joined(self.usage.pinned, usage.pinned);
                }
            }
            GenerationEvent::Failed(_) => {
                self.num_open = 0;
                self.generations.clear();
            }
        }
    }

    /// Whether no event comes any more.
    pub fn is_over(&self) -> bool {
        self.num_open == 0
    }

    /// What all that have ended took together.
    pub fn usage(&self) -> Usage {
        self.usage
    }
}

/// What of several prompts is kept.
fn joined(one: Option<Pinned>, other: Option<Pinned>) -> Option<Pinned> {
    let (Some(one), Some(other)) = (one, other) else { return one.or(other) };
    let on_disk = [one.num_stored_tokens, other.num_stored_tokens];
    Some(Pinned {
        num_tokens: one.num_tokens + other.num_tokens,
        num_stored_tokens: on_disk.into_iter().flatten().reduce(|one, other| one + other),
    })
}
