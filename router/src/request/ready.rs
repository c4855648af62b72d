//! The one validated form of a request, which every dialect parses into.

use tokio::time::Instant;
use trunkline_reply::Sections;
use trunkline_scheduler::{Priority, Retention, Salt, SamplingParams};
use trunkline_text::{DecodeSpecial, StopText};

use super::deadline::Deadline;
use super::retention::Breakpoint;
use crate::grammars::CompiledGrammar;
use crate::request_id::RequestId;

/// A request that passed validation: it cannot fail later for its shape. One sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    /// Names the HTTP request in the log and in internal errors.
    pub id: RequestId,
    /// When the request arrived, for TTFT.
    pub arrived: Instant,
    /// When its time is over, if ever.
    pub deadline: Option<Deadline>,
    /// The prompt; 1 to `max_input_tokens` ids below the vocabulary's size.
    pub prompt_token_ids: Vec<u32>,
    /// Most tokens to generate; prompt and output fit the context. 0 only where the answer shows the prompt.
    pub max_new_tokens: u32,
    /// What the client calls `max_new_tokens`, for messages.
    pub max_new_tokens_field: &'static str,
    /// How to choose tokens, all defaults filled in.
    pub sampling: SamplingParams,
    /// Tokens that end the output unless `ignore_eos`: the model's, and those that the request adds.
    pub end_token_ids: Vec<u32>,
    /// Those of them that the request names and that are none of the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Go on after an end token.
    pub ignore_eos: bool,
    /// Control tokens that have text in the output, their own names: what begins tool calls.
    pub shown_token_ids: Vec<u32>,
    /// Whether control tokens have text in the output at all.
    pub special_tokens: DecodeSpecial,
    /// Strings that end the output; none of them empty.
    pub stops: Vec<String>,
    /// Of a reply that may hold reasoning: stop strings count in its content only. None: all of it is content.
    pub sections: Option<Sections>,
    /// Whether the output keeps the stop string that ended it.
    pub stop_text: StopText,
    /// What the output has to be, if it is not free.
    pub grammar: Option<CompiledGrammar>,
    /// Namespace of the KV index.
    pub salt: Salt,
    /// Class in the queue.
    pub priority: Priority,
    /// How long the prompt is kept.
    pub retention: Retention,
}

/// A prompt, and everything else of a request that only its prompt decides.
#[derive(Debug, Default)]
pub struct Prompt {
    /// The tokens.
    pub token_ids: Vec<u32>,
    /// The compiled grammar of the output.
    pub grammar: Option<CompiledGrammar>,
    /// Control tokens whose names are text of the output.
    pub shown_token_ids: Vec<u32>,
    /// How to tell reasoning from content, if the reply may hold reasoning.
    pub sections: Option<Sections>,
    /// The mark up to which the client wants the prompt kept.
    pub breakpoint: Option<Breakpoint>,
}

impl GenerationRequest {
    /// The same request for each of its choices: they differ in the choice's number alone, the second part of the
    /// generator's key, and the first one alone reports the logprobs of the prompt that they share.
    pub fn into_choices(self, num_choices: usize) -> Vec<Self> {
        let mut choices = vec![self; num_choices];
        for (idx, choice) in choices.iter_mut().enumerate() {
            choice.sampling.choice = idx as u32;
            if idx > 0 {
                choice.sampling.prompt_logprobs = None;
            }
        }
        choices
    }

    /// Whether `token_id` ends the output.
    pub fn is_end(&self, token_id: u32) -> bool {
        !self.ignore_eos && self.end_token_ids.contains(&token_id)
    }
}
