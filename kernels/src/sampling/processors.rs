//! Applies bias, penalties and masks to logits before a token is chosen.

use trunkline_contract::SamplingParams;

use super::scan::keep;
use crate::isa::Isa;

/// Returns what is wrong with the number of bytes of a mask, if anything is.
pub fn check_mask_size(num_bytes: usize, vocab_size: usize) -> Result<(), String> {
    let expected = vocab_size.div_ceil(8);
    match num_bytes.checked_sub(expected) {
        Some(penalties) if penalties % PENALTY_BYTES == 0 => Ok(()),
        _ => Err(format!(
            "a mask of {num_bytes} bytes, expected {expected} and {PENALTY_BYTES} for each penalty"
        )),
    }
}

const PENALTY_BYTES: usize = 8;

/// Adds the penalties that follow the bits of a mask.
fn add_penalties(logits: &mut [f32], mask: &[u8]) {
    let pairs = mask.get(logits.len().div_ceil(8)..).unwrap_or_default();
    for [id0, id1, id2, id3, addend @ ..] in pairs.as_chunks::<PENALTY_BYTES>().0 {
        let token_id = u32::from_le_bytes([*id0, *id1, *id2, *id3]);
        if let Some(logit) = logits.get_mut(token_id as usize) {
            *logit += f32::from_le_bytes(*addend);
        }
    }
}

/// The context of a sampled token in its sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleContext<'a> {
    pub position: u32,
    pub num_output: usize,
    pub previous: u32,
    /// The last tokens of the output, if the sequence's [`TokenCounts`] do not have them yet.
    pub drafts: &'a [u32],
}

fn needs_counts(params: &SamplingParams) -> bool {
    params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0
}

/// The tokens of a sequence and their number of occurrences in its output. Empty if no penalty needs them.
#[derive(Clone, Debug, Default)]
pub struct TokenCounts {
    /// For each token id, 0 if the sequence does not contain it, otherwise 1 plus its number of occurrences in the
    /// output.
    marks: Vec<u32>,
    /// The distinct tokens of the sequence, in order of their first occurrence.
    held: Vec<u32>,
}

impl TokenCounts {
    /// Counts `token_ids`, the first `num_prompt_tokens` of which are the prompt. Token ids beyond the vocabulary are
    /// ignored. Costs O(V) if a penalty is set. Later pushes do not allocate.
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

/// Applies the bias, the penalties of `masks` and of `params`, `min_tokens` and the bits of `masks` in place, in this
/// order. Returns true if logits may have changed.
///
/// Token ids beyond the vocabulary are ignored.
pub fn process(
    isa: Isa,
    logits: &mut [f32],
    params: &SamplingParams,
    counts: &TokenCounts,
    context: SampleContext<'_>,
    masks: [Option<&[u8]>; 2],
) -> bool {
    for (token_id, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(*token_id as usize) {
            *logit += bias;
        }
    }
    masks.iter().flatten().for_each(|mask| add_penalties(logits, mask));
    let drafts = if counts.marks.is_empty() { &[] } else { context.drafts };
    let num_drafted = |token_id| drafts.iter().filter(|&&draft| draft == token_id).count() as u32;
    for token_id in &counts.held {
        let num_in_output = counts.marks[*token_id as usize] - 1 + num_drafted(*token_id);
        penalise(logits, params, *token_id, num_in_output);
    }
    for (index, token_id) in drafts.iter().enumerate() {
        let is_held = counts.marks.get(*token_id as usize).is_none_or(|mark| *mark > 0);
        if !is_held && !drafts[..index].contains(token_id) {
            penalise(logits, params, *token_id, num_drafted(*token_id));
        }
    }
    let is_masked = context.num_output < params.min_tokens as usize && !params.end_token_ids.is_empty();
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

/// Applies the penalties to the logit of a token that the sequence contains, `num_in_output` times in its output.
fn penalise(logits: &mut [f32], params: &SamplingParams, token_id: u32, num_in_output: u32) {
    let Some(logit) = logits.get_mut(token_id as usize) else { return };
    if params.repetition_penalty != 1.0 {
        *logit = if *logit > 0.0 {
            *logit / params.repetition_penalty
        } else {
            *logit * params.repetition_penalty
        };
    }
    if num_in_output > 0 {
        *logit -= num_in_output as f32 * params.frequency_penalty + params.presence_penalty;
    }
}
