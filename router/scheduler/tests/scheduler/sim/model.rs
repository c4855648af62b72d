//! A model whose text follows from hashes, and the text that it writes for a single request.

use std::sync::Arc;

use trunkline_scheduler::{
    AdapterUse, Allowed, MaskedDraft, NextTokens, Pooling, SequenceRequest, TokenMask, TokenScore,
};

use super::rng::mix;

/// A model whose text depends only on the salt, the tokens, their positions and the seed.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub vocab_size: u32,
}

impl Model {
    /// Returns the vector of the prompt with this hash.
    pub fn vector(hash: u64) -> Vec<f32> {
        vec![(hash % 65_536) as f32, (hash >> 48) as f32]
    }

    pub fn start(salt: u64) -> u64 {
        mix(salt ^ 0xabcd)
    }

    pub fn extend(prefix: u64, token_id: u32) -> u64 {
        mix(prefix.wrapping_mul(31).wrapping_add(u64::from(token_id) + 2)) | 2
    }

    pub fn sample(self, prefix: u64, seed: u64) -> u32 {
        (mix(prefix ^ mix(seed)) % u64::from(self.vocab_size)) as u32
    }

    /// Like [`Model::sample`], but takes the next allowed token in a circle.
    pub fn sample_allowed(self, prefix: u64, seed: u64, mask: &[u8]) -> u32 {
        let mut token = self.sample(prefix, seed);
        while mask[token as usize / 8] >> (token % 8) & 1 == 0 {
            token = (token + 1) % self.vocab_size;
        }
        token
    }

    /// Returns the score of a token that follows a prefix.
    pub fn score(prefix: u64, token_id: u32) -> TokenScore {
        TokenScore { logprob: -((Self::extend(prefix, token_id) >> 32) as f32), ..TokenScore::default() }
    }

    /// A grammar: returns the tokens that may follow an output. Often this is a single token, and sometimes the output
    /// must end.
    pub fn allowed(self, seed: u64, output: &[u32]) -> Option<TokenMask> {
        let last = output.last().map_or(0, |&token| u64::from(token) + 1);
        let state = mix(seed ^ mix(output.len() as u64 * 64 + last));
        if output.len() > 1 && state.is_multiple_of(12) {
            return None;
        }
        let all = (1u64 << self.vocab_size) - 1;
        let bits = if state.is_multiple_of(3) {
            1 << (state / 12 % u64::from(self.vocab_size))
        } else {
            state >> 8 & all
        };
        let bits = if bits == 0 { all } else { bits };
        Some(TokenMask(bits.to_le_bytes()[..self.vocab_size.div_ceil(8) as usize].into()))
    }

    /// Returns the output of a request without other requests, and whether its grammar ended it.
    pub fn generate(self, known: &Known, seed: u64, max_new_tokens: u32, ends: &[u32]) -> (Vec<u32>, bool) {
        let start = Self::start(known.salt);
        let mut prefix = known.prompt.iter().fold(start, |prefix, &token| Self::extend(prefix, token));
        let mut output = Vec::new();
        while output.len() < max_new_tokens as usize {
            let token = if known.is_constrained {
                let Some(mask) = self.allowed(seed, &output) else { return (output, true) };
                self.sample_allowed(prefix, seed, &mask.0)
            } else {
                self.sample(prefix, seed)
            };
            output.push(token);
            if ends.contains(&token) {
                break;
            }
            prefix = Self::extend(prefix, token);
        }
        (output, false)
    }

    /// Returns the grammar's answer after an output, with all forced tokens and the drafts that it permits.
    pub fn follow(self, seed: u64, output: &[u32], drafts: &[u32]) -> Allowed {
        // Some masks take long to compute.
        let is_slow = mix(seed ^ output.len() as u64).is_multiple_of(5);
        let (mut output, mut forced) = (output.to_vec(), Vec::new());
        loop {
            let Some(mask) = self.allowed(seed, &output) else {
                return Allowed { forced, next: NextTokens::End, is_slow, drafts: Vec::new() };
            };
            let mut ids = (0..self.vocab_size).filter(|id| mask.0[*id as usize / 8] >> (id % 8) & 1 == 1);
            match (ids.next(), ids.next()) {
                (Some(id), None) => {
                    output.push(id);
                    forced.push(id);
                }
                _ => {
                    let behind = drafts.strip_prefix(&forced[..]).unwrap_or_default();
                    let drafts = self.permitted(seed, &mut output, &mask, behind);
                    return Allowed { forced, next: NextTokens::Mask(mask), is_slow, drafts };
                }
            }
        }
    }

    /// Returns the first drafts behind an output that the grammar permits, up to one that ends the output.
    fn permitted(
        self,
        seed: u64,
        output: &mut Vec<u32>,
        first: &TokenMask,
        drafts: &[u32],
    ) -> Vec<MaskedDraft> {
        let (mut permitted, mut mask) = (Vec::new(), first.clone());
        for &token_id in drafts {
            if mask.0[token_id as usize / 8] >> (token_id % 8) & 1 == 0 {
                break;
            }
            output.push(token_id);
            let Some(next) = self.allowed(seed, output) else { break };
            mask = next;
            permitted.push(MaskedDraft { token_id, mask: mask.clone() });
        }
        permitted
    }
}

/// The facts about a request that the shard checks. They are found by its sampling seed, which is unique in a run.
#[derive(Clone, Debug)]
pub struct Known {
    pub salt: u64,
    pub prompt: Vec<u32>,
    pub is_constrained: bool,
    pub is_scored: bool,
    pub pooling: Option<Pooling>,
    pub adapter: Option<Arc<AdapterUse>>,
}

impl Known {
    /// Returns the facts about a request. `salt` is its salt as a number.
    pub fn of(request: &SequenceRequest, salt: u64) -> Self {
        Self {
            salt,
            prompt: request.token_ids.clone(),
            is_constrained: request.constrained,
            is_scored: request.sampling.prompt_logprobs.is_some(),
            pooling: request.pooling.map(|pooled| pooled.pooling),
            adapter: request.adapter.clone(),
        }
    }
}
