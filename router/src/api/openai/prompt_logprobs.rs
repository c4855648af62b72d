//! Logprobs of the prompt: vLLM's `prompt_logprobs`, and those that `echo` adds before the output's.

use std::fmt;
use std::sync::Arc;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use trunkline_text::{DecodeSpecial, Detokenizer, ModelText, TextError, TextStart, Tokenizer};

use super::logprobs::{self, CompletionLogprobs, finite};
use super::prompts::Prompt;
use crate::generation::generate::{OutputToken, ScoredPrompt};

/// The value of `prompt_logprobs`: a number of likeliest tokens. `true` means 0; `false` is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, utoipa::ToSchema)]
#[schema(value_type = i64)]
pub struct PromptLogprobsCount(pub Option<i64>);

impl<'de> Deserialize<'de> for PromptLogprobsCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor)
    }
}

struct CountVisitor;

impl Visitor<'_> for CountVisitor {
    type Value = PromptLogprobsCount;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an integer")
    }

    fn visit_bool<E: Error>(self, asked: bool) -> Result<PromptLogprobsCount, E> {
        Ok(PromptLogprobsCount(asked.then_some(0)))
    }

    fn visit_i64<E: Error>(self, count: i64) -> Result<PromptLogprobsCount, E> {
        Ok(PromptLogprobsCount(Some(count)))
    }

    fn visit_u64<E: Error>(self, count: u64) -> Result<PromptLogprobsCount, E> {
        Ok(PromptLogprobsCount(Some(i64::try_from(count).unwrap_or(i64::MAX))))
    }
}

/// The `prompt_logprobs` of a response, converted while they are serialised. The list has null for the first token,
/// then an object for each position. The object's keys are token ids, starting with the prompt's own token.
#[derive(Debug, Clone)]
pub struct PromptLogprobs {
    prompt: Arc<ScoredPrompt>,
    tokenizer: Arc<Tokenizer>,
    num_top: usize,
}

impl PromptLogprobs {
    /// Creates the logprobs of a prompt with the `num_top` likeliest tokens at each position.
    pub fn new(prompt: Arc<ScoredPrompt>, tokenizer: Arc<Tokenizer>, num_top: usize) -> Self {
        Self { prompt, tokenizer, num_top }
    }

    fn entry(&self, id: u32, logprob: f32, rank: usize) -> (String, PromptTokenLogprob) {
        let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
        let decoded_token = String::from_utf8_lossy(bytes).into_owned();
        (id.to_string(), PromptTokenLogprob { logprob: finite(logprob), rank, decoded_token })
    }
}

#[derive(Serialize)]
struct PromptTokenLogprob {
    logprob: f32,
    rank: usize,
    decoded_token: String,
}

/// The entries of one position by token id.
struct Place(Vec<(String, PromptTokenLogprob)>);

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(id, entry)| (id, entry)))
    }
}

impl Serialize for PromptLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let places = self.prompt.token_ids.iter().skip(1).zip(&self.prompt.scores).map(|(id, score)| {
            let mut place = vec![self.entry(*id, score.logprob, score.rank as usize)];
            let likeliest = score.top_logprobs.iter().take(self.num_top).enumerate();
            let others = likeliest.filter(|(_, top)| top.token_id != *id);
            place.extend(others.map(|(idx, top)| self.entry(top.token_id, top.logprob, idx + 1)));
            Some(Place(place))
        });
        serializer.collect_seq(std::iter::once(None).chain(places))
    }
}

/// A prompt as the answer repeats it.
#[derive(Debug, Clone, Default)]
pub struct EchoedPrompt {
    /// The text that `echo` writes before the output.
    pub text: String,
    /// The prompt's tokens, if the answer has them.
    pub token_ids: Option<Vec<u32>>,
    /// The number of leading tokens that the text does not contain.
    num_unspelled: usize,
    /// True if the text contains the names of control tokens.
    spells_special: bool,
}

impl EchoedPrompt {
    /// Decodes a prompt that was sent as token ids, without its control tokens.
    pub fn of_tokens(tokenizer: &Tokenizer, token_ids: &[u32]) -> Self {
        let text = tokenizer.decode(token_ids, DecodeSpecial::Skip, TextStart::Beginning);
        Self { text, ..Self::default() }
    }

    /// Returns the prompt's tokens, and the text to repeat if `echo` is set.
    pub fn encode(model: &ModelText, prompt: Prompt, echo: bool) -> Result<(Vec<u32>, Self), TextError> {
        match prompt {
            Prompt::TokenIds(ids) => {
                let shown = if echo { Self::of_tokens(&model.tokenizer, &ids) } else { Self::default() };
                Ok((ids, shown))
            }
            Prompt::Text(text) => {
                let ids = model.encode_prompt(&text)?;
                if !echo {
                    return Ok((ids, Self::default()));
                }
                let names = model.prefix_ids.iter().filter_map(|id| model.tokenizer.token_bytes(*id));
                let is_spelled = text.as_bytes().starts_with(&names.collect::<Vec<_>>().concat());
                let num_unspelled = if is_spelled { 0 } else { model.prefix_ids.len() };
                Ok((ids, Self { text, token_ids: None, num_unspelled, spells_special: true }))
            }
        }
    }

    /// Returns the prompt's logprobs in the completion form, with the `num_top` likeliest tokens, and the number of
    /// characters of its text.
    pub fn logprobs(
        &self,
        tokenizer: &Arc<Tokenizer>,
        prompt: &ScoredPrompt,
        num_top: usize,
    ) -> (CompletionLogprobs, usize) {
        let special = if self.spells_special { DecodeSpecial::Keep } else { DecodeSpecial::Skip };
        let mut detokenizer = Detokenizer::new(tokenizer.clone(), special, TextStart::Beginning);
        let (mut list, mut offset) = (CompletionLogprobs::default(), 0);
        for (idx, id) in prompt.token_ids.iter().enumerate() {
            let score = idx.checked_sub(1).and_then(|before| prompt.scores.get(before));
            let text = if idx < self.num_unspelled { String::new() } else { detokenizer.push(*id) };
            let token = OutputToken {
                id: *id,
                text,
                logprob: score.map_or(0.0, |score| score.logprob),
                top_logprobs: score.map_or_else(Vec::new, |score| {
                    score.top_logprobs.iter().take(num_top).copied().collect()
                }),
                special: false,
                is_end: false,
            };
            logprobs::push_completion_token(&mut list, tokenizer, &token, &mut offset);
        }
        // The first token has no probability, because no token precedes it.
        if let (Some(logprob), Some(top)) = (list.token_logprobs.first_mut(), list.top_logprobs.first_mut()) {
            (*logprob, *top) = (None, None);
        }
        (list, self.text.chars().count())
    }
}
