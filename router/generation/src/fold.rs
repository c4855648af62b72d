//! The plain answer: all events of a request folded into whole outputs.

use std::sync::Arc;

use tokio::time::Instant;

use super::answer_memory::{AnswerMemory, output_bytes, scores_bytes};
use super::choices::Choices;
use super::generate::{FinishReason, GenerationEvent, OutputToken, ScoredPrompt, Usage};
use trunkline_base::error::ApiError;

/// Says whether [`fold`] keeps the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepTokens {
    /// The answer shows only text and usage.
    No,
    /// The answer shows the tokens, or ranks outputs by them.
    Yes,
}

/// An output after its last event.
#[derive(Debug)]
pub struct Folded {
    pub text: String,
    /// The tokens; empty unless they are kept.
    pub tokens: Vec<OutputToken>,
    pub reason: FinishReason,
    pub usage: Usage,
    /// The time at which its first step was planned.
    pub started: Option<Instant>,
    /// The prompt's logprobs, if the request asks for them. Only the first output of a prompt has them.
    pub prompt: Option<Arc<ScoredPrompt>>,
}

/// Folds all events into complete outputs, in the order of their choices, and returns them with their usage. `memory`
/// grows with them.
pub async fn fold(
    mut choices: Choices,
    keep: KeepTokens,
    memory: &mut AnswerMemory,
) -> Result<(Vec<Folded>, Usage), ApiError> {
    let mut num_bytes = 0;
    let mut drafts = vec![Draft::default(); choices.num_choices()];
    while let Some((index, event)) = choices.next().await {
        let output = match event {
            GenerationEvent::Started(_) => {
                drafts[index].started = Some(Instant::now());
                continue;
            }
            GenerationEvent::Prompt(prompt) => {
                let num_top = prompt.scores.first().map_or(0, |score| score.top_logprobs.len());
                num_bytes += scores_bytes(prompt.scores.len(), num_top);
                memory.grow_to(num_bytes)?;
                drafts[index].prompt = Some(prompt);
                continue;
            }
            GenerationEvent::Output(output) => output,
            GenerationEvent::Failed(error) => return Err(error),
        };
        let token = output.token.filter(|_| keep == KeepTokens::Yes);
        num_bytes += output_bytes(&output.text, token.as_ref());
        memory.grow_to(num_bytes)?;
        let draft = &mut drafts[index];
        draft.text.push_str(&output.text);
        draft.tokens.extend(token);
        draft.finish = output.finish;
    }
    let folded: Option<Vec<Folded>> = drafts.into_iter().map(Draft::fold).collect();
    let folded = folded.ok_or_else(|| ApiError::Bug { request_id: choices.request_id().clone() })?;
    Ok((folded, choices.usage()))
}

/// An output that is not complete yet.
#[derive(Debug, Clone, Default)]
struct Draft {
    text: String,
    tokens: Vec<OutputToken>,
    finish: Option<(FinishReason, Usage)>,
    started: Option<Instant>,
    prompt: Option<Arc<ScoredPrompt>>,
}

impl Draft {
    fn fold(self) -> Option<Folded> {
        let (reason, usage) = self.finish?;
        let (started, prompt) = (self.started, self.prompt);
        Some(Folded { text: self.text, tokens: self.tokens, reason, usage, started, prompt })
    }
}

/// Sorts the outputs of one prompt by the mean logprob of their tokens, highest first. The sort is stable. The outputs
/// must have kept their tokens, with logprobs.
pub fn rank(outputs: &mut [Folded]) {
    outputs.sort_by(|a, b| mean_logprob(&b.tokens).total_cmp(&mean_logprob(&a.tokens)));
}

fn mean_logprob(tokens: &[OutputToken]) -> f64 {
    let sum: f64 = tokens.iter().map(|token| f64::from(token.logprob)).sum();
    sum / tokens.len().max(1) as f64
}
