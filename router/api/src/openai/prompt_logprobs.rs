//! Logprobs of the prompt: vLLM's `prompt_logprobs`, and those that `echo` adds before the output's.

use std::fmt;
use std::sync::Arc;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use trunkline_text::{DecodeSpecial, Detokenizer, ModelText, TextStart, Tokenizer};

use super::logprobs::{self, CompletionLogprobs, finite};
use trunkline_generation::generate::{OutputToken, ScoredPrompt};

/// The value of `prompt_logprobs`: a number of likeliest tokens. `true` means 0; `false` is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// The text that `echo` writes before the output; `None` without `echo`.
    pub text: Option<Arc<str>>,
    /// The prompt's tokens, if the answer has them.
    pub token_ids: Option<Vec<u32>>,
    /// The number of leading tokens that the text does not contain.
    num_unspelled: usize,
    /// True if the text contains the names of control tokens.
    spells_special: bool,
}

impl EchoedPrompt {
    /// Decodes a prompt that was sent as token ids, or that was cut, without its control tokens.
    pub fn of_tokens(tokenizer: &Tokenizer, token_ids: &[u32]) -> Self {
        let text = tokenizer.decode(token_ids, DecodeSpecial::Skip, TextStart::Beginning);
        Self { text: Some(text.into()), ..Self::default() }
    }

    /// Repeats a prompt that was sent as text.
    pub fn of_text(model: &ModelText, text: String) -> Self {
        let names = model.prefix_ids.iter().filter_map(|id| model.tokenizer.token_bytes(*id));
        let is_spelled = text.as_bytes().starts_with(&names.collect::<Vec<_>>().concat());
        let num_unspelled = if is_spelled { 0 } else { model.prefix_ids.len() };
        Self { text: Some(text.into()), token_ids: None, num_unspelled, spells_special: true }
    }
}

/// The logprobs of an echoed prompt in the completion form, read piece by piece.
#[derive(Debug)]
pub struct EchoedLogprobs {
    scored: Arc<ScoredPrompt>,
    detokenizer: Detokenizer,
    /// The number of likeliest tokens at each position.
    num_top: usize,
    num_tokens_read: usize,
    num_chars_read: usize,
    /// The bytes of the prompt's text in the pieces so far.
    num_bytes_read: usize,
}

impl EchoedLogprobs {
    pub fn new(
        prompt: &EchoedPrompt,
        scored: Arc<ScoredPrompt>,
        tokenizer: &Arc<Tokenizer>,
        num_top: usize,
    ) -> Self {
        let special = if prompt.spells_special { DecodeSpecial::Keep } else { DecodeSpecial::Skip };
        let detokenizer = Detokenizer::new(tokenizer.clone(), special, TextStart::Beginning);
        Self { scored, detokenizer, num_top, num_tokens_read: 0, num_chars_read: 0, num_bytes_read: 0 }
    }

    /// Returns at most the next `most` tokens with their text, or `None` at the end. The text of all pieces is that of
    /// the prompt.
    pub fn next<'a>(
        &mut self,
        prompt: &'a EchoedPrompt,
        tokenizer: &Tokenizer,
        most: usize,
    ) -> Option<(CompletionLogprobs, &'a str)> {
        let rest = &self.scored.token_ids[self.num_tokens_read..];
        let ids = &rest[..most.min(rest.len())];
        if ids.is_empty() {
            return None;
        }
        let first = self.num_tokens_read;
        let (mut list, mut offset) = (CompletionLogprobs::default(), self.num_chars_read);
        for (idx, id) in (first..).zip(ids) {
            let score = idx.checked_sub(1).and_then(|before| self.scored.scores.get(before));
            let text = if idx < prompt.num_unspelled { String::new() } else { self.detokenizer.push(*id) };
            let token = OutputToken {
                id: *id,
                text,
                logprob: score.map_or(0.0, |score| score.logprob),
                top_logprobs: score.map_or_else(Vec::new, |score| {
                    score.top_logprobs.iter().take(self.num_top).copied().collect()
                }),
                special: false,
                is_end: false,
            };
            logprobs::push_completion_token(&mut list, tokenizer, &token, &mut offset);
        }
        // The first token has no probability, because no token precedes it.
        if first == 0
            && let (Some(logprob), Some(top)) =
                (list.token_logprobs.first_mut(), list.top_logprobs.first_mut())
        {
            (*logprob, *top) = (None, None);
        }
        let text = &prompt.text.as_deref().unwrap_or_default()[self.num_bytes_read..];
        let num_chars = offset - self.num_chars_read;
        // The text of the tokens may differ from the text that was sent.
        let end = text.char_indices().nth(num_chars).map_or(text.len(), |(at, _)| at);
        let text = if ids.len() == rest.len() { text } else { &text[..end] };
        self.num_tokens_read += ids.len();
        self.num_chars_read = offset;
        self.num_bytes_read += text.len();
        Some((list, text))
    }
}
