//! The complete request, which every dialect ends in.

use tokio::time::Instant;
use trunkline_draft::Drafter;
use trunkline_reply::Sections;
use trunkline_scheduler::{PooledPrompt, SequenceRequest, TokenLogprob, TokenScore};
use trunkline_text::{DecodeSpecial, Infill, ModelText, StopText, TextError};

use super::deadline::Deadline;
use super::raw::FieldNames;
use super::retention::Breakpoint;
use crate::adapters::Chosen;
use crate::grammars::CompiledGrammar;
use trunkline_base::request_id::RequestId;

/// A request that passed every check, for one sequence. Later stages check none of its fields again.
/// [`CheckedParams::with_prompt`](super::checked::CheckedParams::with_prompt) makes it.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    /// The computation, which moves to the scheduler. Its prompt has 1 to `max_input_tokens` ids, each below the size
    /// of the vocabulary; prompt and output fit the context. `max_new_tokens` is 0 only if the response shows the
    /// prompt.
    pub sequence: SequenceRequest,
    /// The rest, which stays here while the sequence is computed.
    pub delivery: Delivery,
    pub grammar: Option<CompiledGrammar>,
    /// The client's guess at much of the output, from which it is drafted as from the prompt. `None` if nothing may be
    /// drafted.
    pub prediction_token_ids: Option<Vec<u32>>,
}

/// The rules by which the tokens of a sequence become an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Names the HTTP request in the log and in internal errors.
    pub id: RequestId,
    pub arrived: Instant,
    pub deadline: Option<Deadline>,
    /// The client's names of fields, for error messages.
    pub names: FieldNames,
    /// Tokens that end the output: the model's, and those that the request adds.
    pub end_token_ids: Vec<u32>,
    /// The end tokens that only the request adds.
    pub stop_token_ids: Vec<u32>,
    /// Control tokens whose names are text of the output, such as the one that begins a tool call.
    pub shown_token_ids: Vec<u32>,
    /// Says whether the output contains the text of control tokens.
    pub special_tokens: DecodeSpecial,
    /// Strings that end the output; none is empty.
    pub stops: Vec<String>,
    pub stop_text: StopText,
    /// The adapter of the request, if it names one.
    pub adapter: Option<Chosen>,
    /// Tells reasoning from content, where only content is searched for stop strings. `None` if all is content.
    pub sections: Option<Sections>,
}

/// A prompt, and everything else of a request that only its prompt decides.
#[derive(Debug, Default)]
pub struct Prompt {
    pub token_ids: Vec<u32>,
    pub grammar: Option<CompiledGrammar>,
    /// Control tokens whose names are text of the output.
    pub shown_token_ids: Vec<u32>,
    /// Tokens that end the output behind this prompt, in addition to the model's.
    pub end_token_ids: Vec<u32>,
    /// Tells reasoning from content, if the reply may hold reasoning.
    pub sections: Option<Sections>,
    /// The mark up to which the client wants the prompt kept.
    pub breakpoint: Option<Breakpoint>,
    /// The client's guess at much of the output.
    pub prediction_token_ids: Vec<u32>,
    /// Set if a vector is asked for instead of tokens.
    pub pooling: Option<PooledPrompt>,
}

impl Prompt {
    /// Returns the prompt for a text to fill in, whose output also ends at a fill-in-the-middle token. `field` is the
    /// client's name of the suffix, for the error if the model lacks such tokens.
    pub fn infill(model: &ModelText, infill: &Infill, field: &'static str) -> Result<Self, TextError> {
        let token_ids = model.encode_infill(infill, field)?;
        let ends = model.infill.as_ref().map(|tokens| tokens.end_token_ids().to_vec());
        Ok(Self { token_ids, end_token_ids: ends.unwrap_or_default(), ..Self::default() })
    }
}

impl GenerationRequest {
    /// Returns the memory that the prompt takes in `num_choices` outputs, from when they are submitted.
    pub fn num_bytes(&self, num_choices: usize) -> usize {
        let sequence = &self.sequence;
        let num_tokens = sequence.token_ids.len();
        let drafter = self.prediction_token_ids.as_ref();
        let drafter = drafter.map_or(0, |prediction| (num_tokens + prediction.len()) * Drafter::TOKEN_BYTES);
        let scores = sequence.sampling.prompt_logprobs.map_or(0, |num_top| {
            num_tokens * (size_of::<(u32, TokenScore)>() + num_top as usize * size_of::<TokenLogprob>())
        });
        (num_tokens * size_of::<u32>() + drafter).saturating_mul(num_choices).saturating_add(scores)
    }

    /// Returns the request of each choice. They differ only in the choice's number, which is the second part of the
    /// random generator's key. Only the first reports the logprobs of the prompt.
    pub fn into_choices(self, num_choices: usize) -> Vec<Self> {
        let mut choices = vec![self; num_choices];
        for (idx, choice) in choices.iter_mut().enumerate() {
            choice.sequence.sampling.choice = idx as u32;
            if idx > 0 {
                choice.sequence.sampling.prompt_logprobs = None;
            }
        }
        choices
    }
}
