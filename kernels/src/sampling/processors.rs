//! What sampling parameters do to logits before a token is chosen, in the order of application.

use trunkline_contract::SamplingParams;

use super::scan::keep;
use crate::isa::Isa;

/// `allowed_token_ids` as a mask over the vocabulary, in which bit `i % 8` of byte `i / 8` is token `i`. None if any token
/// is allowed. Tokens beyond the vocabulary are ignored.
pub fn allowed_mask(params: &SamplingParams, vocab_size: usize) -> Option<Vec<u8>> {
    if params.allowed_token_ids.is_empty() {
        return None;
    }
    let mut mask = vec![0; vocab_size.div_ceil(8)];
    for token_id in &params.allowed_token_ids {
        if let Some(byte) = mask.get_mut(*token_id as usize / 8) {
            *byte |= 1 << (token_id % 8);
        }
    }
    Some(mask)
}

fn needs_counts(params: &SamplingParams) -> bool {
    params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0
}

/// Which tokens a sequence holds and how often its output holds them; empty where no penalty asks for it.
#[derive(Clone, Debug, Default)]
pub struct TokenCounts {
    /// By token id: 0 if the sequence does not hold it, else 1 more than its occurrences in the output.
    marks: Vec<u32>,
    /// Tokens that it holds, each once, in order of their first occurrence.
    held: Vec<u32>,
}

impl TokenCounts {
    /// Counts `token_ids`, of which the first `num_prompt_tokens` are the prompt; those beyond the vocabulary are
    /// passed over. Cost O(V) if a penalty is set; pushes allocate nothing.
    pub fn new(
        params: &SamplingParams,
        token_ids: &[u32],
        num_prompt_tokens: usize,
        vocab_size: usize,
    ) -> Self {
        let mut counts = Self::default();
        if needs_counts(params) {
            counts.marks.resize(vocab_size, 0);
            counts.held.reserve_exact(vocab_size);
            let (prompt, output) = token_ids.split_at(num_prompt_tokens);
            prompt.iter().for_each(|token_id| counts.push(*token_id, 0));
            output.iter().for_each(|token_id| counts.push_output(*token_id));
        }
        counts
    }

    /// Counts one more token of the output.
    pub fn push_output(&mut self, token_id: u32) {
        self.push(token_id, 1);
    }

    fn push(&mut self, token_id: u32, num_outputs: u32) {
        let Some(mark) = self.marks.get_mut(token_id as usize) else { return };
        if *mark == 0 {
            *mark = 1;
            self.held.push(token_id);
        }
        *mark += num_outputs;
    }
}

/// Adds the bias, applies penalties, then the mask of `min_tokens` and those of tokens allowed, in place; returns
/// whether anything may have changed.
///
/// Tokens beyond the vocabulary are passed over.
pub fn process(
    isa: Isa,
    logits: &mut [f32],
    params: &SamplingParams,
    counts: &TokenCounts,
    num_output: usize,
    masks: [Option<&[u8]>; 2],
) -> bool {
    for (token_id, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(*token_id as usize) {
            *logit += bias;
        }
    }
    for token_id in &counts.held {
        let Some(logit) = logits.get_mut(*token_id as usize) else { continue };
        if params.repetition_penalty != 1.0 {
            *logit = if *logit > 0.0 {
                *logit / params.repetition_penalty
            } else {
                *logit * params.repetition_penalty
            };
        }
        let num_in_output = counts.marks[*token_id as usize] - 1;
        if num_in_output > 0 {
            *logit -= num_in_output as f32 * params.frequency_penalty + params.presence_penalty;
        }
    }
    let is_masked = num_output < params.min_tokens as usize && !params.end_token_ids.is_empty();
    if is_masked {
        for token_id in &params.end_token_ids {
            if let Some(logit) = logits.get_mut(*token_id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    for mask in masks.into_iter().flatten() {
        keep(isa, logits, mask);
    }
    is_masked || masks.iter().any(Option::is_some) || !counts.held.is_empty() || !params.logit_bias.is_empty()
}
