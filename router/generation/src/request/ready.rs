//! The complete request, which every dialect ends in.

use tokio::time::Instant;
use trunkline_reply::Sections;
use trunkline_scheduler::{Priority, Retention, Salt, SamplingParams};
use trunkline_text::{DecodeSpecial, StopText};

use super::deadline::Deadline;
use super::retention::Breakpoint;
use crate::grammars::CompiledGrammar;
use trunkline_base::request_id::RequestId;

/// A request that passed every check, for one sequence. Later stages check none of its fields again.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    /// Names the HTTP request in the log and in internal errors.
    pub id: RequestId,
    pub arrived: Instant,
    pub deadline: Option<Deadline>,
    /// The prompt: 1 to `max_input_tokens` ids, each below the size of the vocabulary.
    pub prompt_token_ids: Vec<u32>,
    /// The most tokens to generate; prompt and output fit the context. It is 0 only if the response shows the prompt.
    pub max_new_tokens: u32,
    /// The client's name for `max_new_tokens`, for error messages.
    pub max_new_tokens_field: &'static str,
    /// The rules by which tokens are chosen, with all defaults filled in.
    pub sampling: SamplingParams,
    /// Tokens that end the output unless `ignore_eos`: the model's, and those that the request adds.
    pub end_token_ids: Vec<u32>,
    pub stop_token_ids: Vec<u32>,
    pub ignore_eos: bool,
    /// Control tokens whose names are text of the output, such as the one that begins a tool call.
    pub shown_token_ids: Vec<u32>,
    /// Says whether the output contains the text of control tokens.
    pub special_tokens: DecodeSpecial,
    /// Strings that end the output; none is empty.
    pub stops: Vec<String>,
    /// Tells reasoning from content, where only content is searched for stop strings. `None` if all is content.
    pub sections: Option<Sections>,
    pub stop_text: StopText,
    pub grammar: Option<CompiledGrammar>,
    pub salt: Salt,
    pub priority: Priority,
    pub retention: Retention,
    /// True if the output may be drafted.
    pub speculates: bool,
    /// The client's guess at much of the output.
    pub prediction_token_ids: Vec<u32>,
}

/// A prompt, and everything else of a request that only its prompt decides.
#[derive(Debug, Default)]
pub struct Prompt {
    pub token_ids: Vec<u32>,
    pub grammar: Option<CompiledGrammar>,
    /// Control tokens whose names are text of the output.
    pub shown_token_ids: Vec<u32>,
    /// Tells reasoning from content, if the reply may hold reasoning.
    pub sections: Option<Sections>,
    /// The mark up to which the client wants the prompt kept.
    pub breakpoint: Option<Breakpoint>,
    /// The client's guess at much of the output.
    pub prediction_token_ids: Vec<u32>,
}

impl GenerationRequest {
    /// Returns the request of each choice. They differ only in the choice's number, which is the second part of the
    /// random generator's key. Only the first reports the logprobs of the prompt.
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

    pub fn is_end(&self, token_id: u32) -> bool {
        !self.ignore_eos && self.end_token_ids.contains(&token_id)
    }
}
