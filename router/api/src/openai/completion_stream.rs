//! Writes a completion as events.

use std::collections::VecDeque;
use std::sync::Arc;

use trunkline_text::Tokenizer;

use super::completion_types::{Answer, Choice};
use super::logprobs::ChoiceLogprobs;
use super::prompt_logprobs::{EchoedLogprobs, EchoedPrompt};
use super::{CompletionLogprobs, ErrorResponse, StopReason, StreamUsage, Usage, finish_reason, logprobs};
use crate::respond::ErrorForm;
use crate::stream::Render;
use trunkline_base::error::ApiError;
use trunkline_generation::generate::{self, FinishReason, Output, OutputToken, ScoredPrompt};
use trunkline_http::{EventFrame, Events};

/// The optional parts of an answer.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    /// If true, the prompt precedes the output.
    pub(super) echo: bool,
    /// The number of likeliest tokens in `logprobs`; `None` without logprobs. They cover the prompt if it is shown.
    pub(super) logprobs: Option<usize>,
    /// The number of likeliest tokens in `prompt_logprobs`, vLLM's form of the prompt's logprobs.
    pub(super) prompt_logprobs: Option<usize>,
    pub(super) usage: StreamUsage,
    /// True if pieces have `timings`.
    pub(super) timings: bool,
    /// True if pieces have the ids of their tokens, and the first one those of the prompt.
    pub(super) token_ids: bool,
    /// The stop strings, for `stop_reason`.
    pub(super) stops: Vec<String>,
}

impl Shown {
    pub(super) fn end(&self, reason: FinishReason) -> (&'static str, Option<StopReason>) {
        (finish_reason(reason), StopReason::new(reason, &self.stops))
    }

    /// Returns true if each piece has its tokens or the counts up to it.
    fn details_each_piece(&self) -> bool {
        self.timings || self.usage == StreamUsage::Each || self.token_ids
    }

    /// Returns the ids of tokens, if the answer has them.
    pub(super) fn token_ids(&self, tokens: &[OutputToken]) -> Option<Vec<u32>> {
        self.token_ids.then(|| tokens.iter().map(|token| token.id).collect())
    }
}

/// Returns the logprobs of the tokens. An end token, which is not part of the text, is listed only with `echo`, because
/// clients that score texts count the tokens.
pub(super) fn completion_logprobs(
    tokenizer: &Tokenizer,
    tokens: &[OutputToken],
    offset: &mut usize,
    echo: bool,
) -> CompletionLogprobs {
    let mut list = CompletionLogprobs::default();
    for token in tokens.iter().filter(|token| echo || !token.is_end) {
        logprobs::push_completion_token(&mut list, tokenizer, token, offset);
    }
    list
}

/// The fields that are equal in all pieces of an answer.
pub(super) struct Head {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) system_fingerprint: String,
}

impl Head {
    pub(super) fn answer<'a>(&'a self, choices: Vec<Choice<'a>>, usage: Option<Option<Usage>>) -> Answer<'a> {
        Answer {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.system_fingerprint,
            choices,
            usage,
            timings: None,
        }
    }
}

/// The most tokens of a prompt in one event, and the most bytes of its text.
const MAX_ECHOED_TOKENS: usize = 256;
const MAX_ECHOED_BYTES: usize = 4 << 10;

pub(crate) struct CompletionStream {
    head: Head,
    tokenizer: Arc<Tokenizer>,
    shown: Shown,
    prompts: Vec<EchoedPrompt>,
    choices: Vec<ChoiceStream>,
    /// The prompts that are still to be written, by choice. Only few of their events are in memory at a time.
    echoes: VecDeque<(usize, Echo)>,
}

struct ChoiceStream {
    /// The frame of events that have only text.
    piece: EventFrame,
    /// Tokens whose text is still held back; only with logprobs or token ids.
    pending: Vec<OutputToken>,
    /// The number of characters of text written.
    offset: usize,
    /// True once a piece has shown the ids of the prompt.
    has_shown_ids: bool,
}

/// The rest of a prompt that precedes a choice.
enum Echo {
    /// Only text, whose bytes before this position are written.
    Text(usize),
    /// Text and logprobs.
    Scored(EchoedLogprobs),
}

impl CompletionStream {
    /// Creates the writer for `per_prompt` choices of each prompt.
    pub(super) fn new(
        head: Head,
        tokenizer: Arc<Tokenizer>,
        prompts: Vec<EchoedPrompt>,
        per_prompt: usize,
        shown: Shown,
    ) -> Self {
        let choice = |index: usize| {
            let piece = EventFrame::new(|text| {
                let choice = Choice { text: text.into(), index: index as u32, ..Choice::default() };
                // Where events have counts, they have no frame.
                head.answer(vec![choice], (shown.usage != StreamUsage::None).then_some(None))
            });
            ChoiceStream { piece, pending: Vec::new(), offset: 0, has_shown_ids: false }
        };
        let num_choices = prompts.len() * per_prompt;
        let choices = (0..num_choices).map(choice).collect();
        let is_text = shown.echo && shown.logprobs.is_none();
        let echoes = (0..num_choices).filter(|_| is_text).map(|index| (index, Echo::Text(0))).collect();
        Self { head, tokenizer, shown, prompts, choices, echoes }
    }

    fn per_prompt(&self) -> usize {
        self.choices.len() / self.prompts.len().max(1)
    }
}

impl Render for CompletionStream {
    fn prompt(&mut self, index: usize, scored: Arc<ScoredPrompt>, _events: &mut Events) {
        let Some(num_top) = self.shown.logprobs.filter(|_| self.shown.echo) else { return };
        let per_prompt = self.per_prompt();
        let prompt = &self.prompts[index / per_prompt];
        let num_chars = prompt.text.as_deref().map_or(0, |text| text.chars().count());
        for index in index..index + per_prompt {
            self.choices[index].offset = num_chars;
            let echo = EchoedLogprobs::new(prompt, scored.clone(), &self.tokenizer, num_top);
            self.echoes.push_back((index, Echo::Scored(echo)));
        }
    }

    fn prompts(&mut self, events: &mut Events) -> bool {
        let per_prompt = self.per_prompt();
        let Some((index, echo)) = self.echoes.front_mut() else { return false };
        let (index, prompt) = (*index, &self.prompts[*index / per_prompt]);
        let is_over = match echo {
            Echo::Text(begin) => {
                let text = &prompt.text.as_deref().unwrap_or_default()[*begin..];
                let most = text.len().min(MAX_ECHOED_BYTES);
                let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
                let piece = &text[..end];
                events.framed(&self.choices[index].piece, piece);
                *begin += piece.len();
                piece.len() == text.len()
            }
            Echo::Scored(echo) => match echo.next(prompt, &self.tokenizer, MAX_ECHOED_TOKENS) {
                None => true,
                Some((own, text)) => {
                    let logprobs = Some(ChoiceLogprobs { prompt: None, own });
                    let choice =
                        Choice { text: text.into(), index: index as u32, logprobs, ..Choice::default() };
                    let usage = self.shown.usage.of_chunk(|| generate::Usage::default().into());
                    events.json(&self.head.answer(vec![choice], usage));
                    false
                }
            },
        };
        if is_over {
            self.echoes.pop_front();
        }
        true
    }

    fn output(&mut self, index: usize, output: Output, events: &mut Events) {
        let per_prompt = self.per_prompt();
        let choice = &mut self.choices[index];
        let with_logprobs = self.shown.logprobs.is_some();
        if !with_logprobs && output.finish.is_none() && !self.shown.details_each_piece() {
            if !output.text.is_empty() {
                events.framed(&choice.piece, &output.text);
            }
            return;
        }
        if with_logprobs || self.shown.token_ids {
            choice.pending.extend(output.token);
        }
        if output.text.is_empty() && output.finish.is_none() {
            return;
        }
        let tokens = std::mem::take(&mut choice.pending);
        let logprobs = with_logprobs.then(|| ChoiceLogprobs {
            prompt: None,
            own: completion_logprobs(&self.tokenizer, &tokens, &mut choice.offset, self.shown.echo),
        });
        let has_shown_ids = std::mem::replace(&mut choice.has_shown_ids, true);
        let prompt = &self.prompts[index / per_prompt];
        let end = output.finish.map(|(reason, _)| self.shown.end(reason));
        let choice = Choice {
            text: output.text.into(),
            index: index as u32,
            logprobs,
            finish_reason: end.as_ref().map(|(reason, _)| *reason),
            stop_reason: end.map(|(_, stop_reason)| stop_reason),
            prompt_token_ids: prompt.token_ids.as_deref().filter(|_| !has_shown_ids),
            token_ids: self.shown.token_ids(&tokens),
            ..Choice::default()
        };
        let usage = self.shown.usage.of_chunk(|| output.so_far.into());
        let timings = self.shown.timings.then(|| output.so_far.into());
        events.json(&Answer { timings, ..self.head.answer(vec![choice], usage) });
    }

    fn finished(&mut self, usage: generate::Usage, events: &mut Events) {
        if self.shown.usage != StreamUsage::None {
            let timings = self.shown.timings.then(|| usage.into());
            events.json(&Answer { timings, ..self.head.answer(Vec::new(), Some(Some(usage.into()))) });
        }
        events.done();
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.json(&ErrorResponse::from_error(error));
    }
}
