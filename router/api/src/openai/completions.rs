//! The handler of `/v1/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use trunkline_text::{Infill, ModelText, Tokenizer};

use super::completion_stream::{CompletionStream, Head, Shown, completion_logprobs};
use super::completion_types::{Answer, Body, Choice};
use super::logprobs::ChoiceLogprobs;
use super::prompt_logprobs::{EchoedLogprobs, EchoedPrompt, PromptLogprobs};
use super::prompts::Prompt;
use super::{CompletionLogprobs, ErrorResponse, StreamUsage, foreign, system_fingerprint};
use crate::app::App;
use crate::joined::Joined;
use crate::pipeline::{self, Asked, Call, Completed, Prompts, Scope};
use crate::respond;
use trunkline_base::clock::unix_s;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_generation::adapters::Named;
use trunkline_generation::answer_memory::{repeated_ids_bytes, repeated_scores_bytes, repeated_text_bytes};
use trunkline_generation::fold::{Folded, KeepTokens, rank};
use trunkline_generation::generate::Usage;
use trunkline_generation::grammars::CompiledGrammar;
use trunkline_generation::request::checked::{CheckedParams, NumChoices};
use trunkline_generation::request::raw::{FieldNames, RawParams};
use trunkline_generation::request::ready::{self, GenerationRequest};
use trunkline_generation::request::tokens::PromptLogprobsField;
use trunkline_generation::served::ServedModel;
use trunkline_http::{IgnoredFields, OtherFields, Refused, parse_noting};

/// The default of `max_tokens`, which is also OpenAI's.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Fields that are refused, because ignoring them would change the answer.
const REFUSED: &[Refused] = &[
    Refused { field: "prompt_embeds", neutral: &[], hint: "send text or token ids" },
    Refused { field: "add_special_tokens", neutral: &["true"], hint: "send token ids for full control" },
    Refused { field: "thinking_token_budget", neutral: &["-1"], hint: "use /v1/chat/completions" },
    Refused { field: "reasoning_budget_tokens", neutral: &["-1"], hint: "use /v1/chat/completions" },
    Refused { field: "reasoning", neutral: &["{}"], hint: "use /v1/chat/completions" },
];

/// Continues one or more prompts of text or token ids, whole or as events.
#[utoipa::path(
    post, path = "/v1/completions", request_body = Body,
    responses(
        (status = 200, description = "The outputs; a stream of such objects if `stream` is true", body = Answer),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(pipeline::answer::<_, ErrorResponse>(&app, request, parse_body).await)
}

pub(crate) fn parse_body(body: &[u8], ignored: &mut IgnoredFields) -> Result<Body, ApiError> {
    let refused = [REFUSED, foreign::REFUSED].concat();
    parse_noting(body, OtherFields { refused: &refused, harmless: foreign::HARMLESS }, "", ignored)
}

impl Call for Body {
    type Prompts = Completion;

    fn named(&self) -> Named<'_> {
        self.names()
    }

    fn asked(mut self, scope: &Scope) -> Result<Asked<Completion>, ApiError> {
        let mut params = raw_params(&mut self)?;
        let grammar = self.structured().grammar()?;
        let num_choices = scope.validator.num_choices(self.n, self.best_of, self.prompt.0.len())?;
        let suffix = self.suffix.take().filter(|suffix| !suffix.is_empty());
        check_together(&self, num_choices)?;
        if suffix.is_some() {
            check_infill(&self)?;
        }
        let count = |asked: Option<i64>| asked.and_then(|count| usize::try_from(count).ok());
        let shown = Shown {
            echo: self.echo == Some(true),
            logprobs: count(params.logprobs),
            prompt_logprobs: count(self.prompt_logprobs.and_then(|count| count.0)),
            usage: StreamUsage::of(self.stream_options),
            timings: self.timings_per_token == Some(true),
            token_ids: self.return_token_ids == Some(true),
            stops: params.stops.clone(),
        };
        // Outputs are ranked by their logprobs.
        params.logprobs = params.logprobs.or(num_choices.is_ranked().then_some(0));
        Ok(Asked {
            params,
            grammar,
            num_choices,
            is_stream: self.stream == Some(true),
            prompts: Completion { prompts: self.prompt.0, suffix, shown },
        })
    }
}

pub(crate) struct Completion {
    prompts: Vec<Prompt>,
    /// The text that follows each output.
    suffix: Option<String>,
    shown: Shown,
}

impl Prompts for Completion {
    type Answer = CompletionAnswer;

    async fn complete(
        self,
        scope: &Scope,
        params: &CheckedParams,
        grammar: Option<CompiledGrammar>,
        num_choices: NumChoices,
    ) -> Result<Completed<CompletionAnswer>, ApiError> {
        let Self { prompts, suffix, shown } = self;
        let (served, caller) = (&scope.app.served, &scope.arrival.caller);
        let echo = shown.echo;
        let texts = prompts.iter().filter(|prompt| matches!(prompt, Prompt::Text(_)));
        let num_suffix_bytes = suffix.as_ref().map_or(0, String::len);
        let num_bytes = texts.map(|prompt| prompt.num_bytes() + num_suffix_bytes).sum();
        let limits = params.clone();
        let encode = move |model: &ModelText| {
            let whole = |token_ids| ready::Prompt { token_ids, ..ready::Prompt::default() };
            let encode = |prompt| match (prompt, &suffix) {
                (Prompt::Text(prefix), Some(suffix)) => {
                    let infill = Infill { prefix, suffix: suffix.clone(), ..Infill::default() };
                    let prompt = ready::Prompt::infill(model, &infill, "suffix")?;
                    // Many prompts with a long suffix would take much memory before any is refused.
                    limits.check_length(prompt.token_ids.len())?;
                    Ok((prompt, None))
                }
                (Prompt::Text(text), None) => {
                    Ok((whole(model.encode_prompt(&text)?), Some(text).filter(|_| echo)))
                }
                (Prompt::TokenIds(ids), _) => Ok((whole(ids), None)),
            };
            prompts.into_iter().map(encode).collect::<Result<Vec<_>, ApiError>>()
        };
        let encoded = served.tokenize(caller, num_bytes, encode).await?;
        let (mut requests, mut texts) = (Vec::new(), Vec::new());
        for (prompt, text) in encoded {
            let num_sent = prompt.token_ids.len();
            let request = params.with_prompt(ready::Prompt { grammar: grammar.clone(), ..prompt })?;
            // The text of a prompt that was cut is that of the remaining tokens.
            texts.push(text.filter(|_| request.sequence.token_ids.len() == num_sent));
            requests.push(request);
        }
        let tokenizer = served.model.text.tokenizer.clone();
        // Only ids that were checked are decoded.
        let (requests, mut echoed) = match echo {
            true => echoed(served, caller, requests, texts).await?,
            false => (requests, vec![EchoedPrompt::default(); texts.len()]),
        };
        if shown.token_ids {
            let with_ids = requests.iter().zip(&mut echoed);
            with_ids
                .for_each(|(request, prompt)| prompt.token_ids = Some(request.sequence.token_ids.clone()));
        }
        let head = Head {
            id: format!("cmpl-{}", trunkline_base::random::id()),
            created: unix_s(),
            model: params.model().to_owned(),
            system_fingerprint: system_fingerprint(&scope.shard),
        };
        let answer = CompletionAnswer { head, shown, tokenizer, echoed, num_choices };
        Ok(Completed { requests, answer })
    }
}

/// Returns requests with the prompts to repeat. `texts` are those that were sent as text and not cut.
async fn echoed(
    served: &ServedModel,
    caller: &Caller,
    requests: Vec<GenerationRequest>,
    texts: Vec<Option<String>>,
) -> Result<(Vec<GenerationRequest>, Vec<EchoedPrompt>), ApiError> {
    let num_bytes = |(request, text): (&GenerationRequest, &Option<String>)| match text {
        Some(_) => 0,
        None => size_of_val(&request.sequence.token_ids[..]),
    };
    let num_bytes = requests.iter().zip(&texts).map(num_bytes).sum();
    let decode = move |model: &ModelText| {
        let echoed = |(request, text): (&GenerationRequest, Option<String>)| match text {
            Some(text) => EchoedPrompt::of_text(model, text),
            None => EchoedPrompt::of_tokens(&model.tokenizer, &request.sequence.token_ids),
        };
        let echoed = requests.iter().zip(texts).map(echoed).collect();
        Ok::<_, ApiError>((requests, echoed))
    };
    served.tokenize(caller, num_bytes, decode).await
}

pub(crate) struct CompletionAnswer {
    head: Head,
    shown: Shown,
    tokenizer: Arc<Tokenizer>,
    echoed: Vec<EchoedPrompt>,
    num_choices: NumChoices,
}

impl pipeline::Answer for CompletionAnswer {
    type Render = CompletionStream;

    fn keeps_tokens(&self) -> KeepTokens {
        let is_needed = self.shown.logprobs.is_some() || self.shown.token_ids || self.num_choices.is_ranked();
        if is_needed { KeepTokens::Yes } else { KeepTokens::No }
    }

    fn prompt_bytes(&self, requests: &[GenerationRequest]) -> usize {
        let num_choices = self.num_choices.shown;
        let bytes = |(request, prompt): (&GenerationRequest, &EchoedPrompt)| {
            let num_tokens = request.sequence.token_ids.len();
            let text = prompt.text.as_deref().map_or(0, |text| repeated_text_bytes(text, num_choices));
            let ids = prompt.token_ids.as_ref().map_or(0, |ids| repeated_ids_bytes(ids.len(), num_choices));
            let echoed = self.shown.logprobs.filter(|_| self.shown.echo);
            let scores = |num_top: Option<usize>, num_more: usize| {
                num_top.map_or(0, |num_top| repeated_scores_bytes(num_tokens, num_top, num_more))
            };
            // The logprobs have the memory for being written once.
            let num_more = if echoed.is_some() { num_choices } else { num_choices - 1 };
            let scores = [scores(echoed, num_choices - 1), scores(self.shown.prompt_logprobs, num_more)];
            [text, ids].into_iter().chain(scores).fold(0, usize::saturating_add)
        };
        requests.iter().zip(&self.echoed).map(bytes).fold(0, usize::saturating_add)
    }

    fn render(self) -> CompletionStream {
        let per_prompt = self.num_choices.computed;
        CompletionStream::new(self.head, self.tokenizer, self.echoed, per_prompt, self.shown)
    }

    fn whole(self, mut outputs: Vec<Folded>, usage: Usage) -> Response {
        let mut choices = Vec::new();
        for (prompt, outputs) in self.echoed.iter().zip(outputs.chunks_mut(self.num_choices.computed)) {
            let scored = outputs[0].prompt.take();
            // The choices of a prompt share its logprobs.
            let with_prompt = scored.as_ref().zip(self.shown.logprobs).filter(|_| self.shown.echo);
            let shared = with_prompt.and_then(|(scored, num_top)| {
                let mut echoed = EchoedLogprobs::new(prompt, scored.clone(), &self.tokenizer, num_top);
                echoed.next(prompt, &self.tokenizer, usize::MAX)
            });
            let shared = shared.map(|(logprobs, _)| Arc::new(logprobs));
            if self.num_choices.is_ranked() {
                rank(outputs);
            }
            for output in &outputs[..self.num_choices.shown] {
                let index = choices.len() as u32;
                let prompt_logprobs = scored
                    .clone()
                    .zip(self.shown.prompt_logprobs)
                    .map(|(scored, num_top)| PromptLogprobs::new(scored, self.tokenizer.clone(), num_top));
                let own = choice(prompt, shared.clone(), output, &self.shown, &self.tokenizer);
                choices.push(Choice { index, prompt_logprobs, ..own });
            }
        }
        let timings = self.shown.timings.then(|| usage.into());
        axum::Json(Answer { timings, ..self.head.answer(choices, Some(Some(usage.into()))) }).into_response()
    }
}

/// Returns an output as a choice, after its prompt if that is shown.
fn choice<'a>(
    prompt: &'a EchoedPrompt,
    prompt_logprobs: Option<Arc<CompletionLogprobs>>,
    output: &Folded,
    shown: &Shown,
    tokenizer: &Tokenizer,
) -> Choice<'a> {
    let logprobs = shown.logprobs.map(|_| {
        let echoed_text = prompt.text.as_deref().filter(|_| prompt_logprobs.is_some());
        let mut offset = echoed_text.map_or(0, |text| text.chars().count());
        let own = completion_logprobs(tokenizer, &output.tokens, &mut offset, shown.echo);
        ChoiceLogprobs { prompt: prompt_logprobs, own }
    });
    let (finish_reason, stop_reason) = shown.end(output.reason);
    Choice {
        text: Joined { shared: prompt.text.clone(), own: output.text.clone() },
        logprobs,
        finish_reason: Some(finish_reason),
        stop_reason: Some(stop_reason),
        prompt_token_ids: prompt.token_ids.as_deref(),
        token_ids: shown.token_ids(&output.tokens),
        ..Choice::default()
    }
}

/// Refuses combinations of fields that cannot be used together.
fn check_together(body: &Body, num_choices: NumChoices) -> Result<(), ApiError> {
    if body.stream == Some(true) && num_choices.is_ranked() {
        let problem =
            "is greater than `n`, but the best outputs are known only at the end; hint: do not stream";
        return Err(ApiError::value("best_of", problem));
    }
    if body.stream == Some(true) && body.prompt_logprobs.is_some_and(|count| count.0.is_some()) {
        let problem = "cannot be streamed; hint: do not stream, or use `echo` with `logprobs`";
        return Err(ApiError::value("prompt_logprobs", problem));
    }
    Ok(())
}

/// Refuses what cannot be combined with a `suffix`.
fn check_infill(body: &Body) -> Result<(), ApiError> {
    let problem = if body.prompt.0.iter().any(|prompt| matches!(prompt, Prompt::TokenIds(_))) {
        "needs a `prompt` that is text; hint: send text, or a whole prompt of token ids without it"
    } else if body.echo == Some(true) {
        "cannot be combined with `echo`; hint: put your prompt before the output"
    } else if body.truncate_prompt_tokens.is_some() {
        "cannot be combined with `truncate_prompt_tokens`; hint: send shorter texts"
    } else {
        return Ok(());
    };
    Err(ApiError::value("suffix", problem))
}

fn raw_params(body: &mut Body) -> Result<RawParams, ApiError> {
    let mut raw = body.shared_params()?;
    raw.names = FieldNames { top_logprobs: "logprobs", prompt: "prompt", ..FieldNames::default() };
    if body.max_tokens.is_none() && body.n_predict.is_some() {
        raw.names.max_new_tokens = "n_predict";
    }
    raw.max_new_tokens = body.max_tokens.or(body.n_predict.filter(|asked| *asked != -1));
    raw.default_max_new_tokens = Some(DEFAULT_MAX_TOKENS).filter(|_| body.n_predict != Some(-1));
    raw.logprobs = body.logprobs;
    raw.tokens.prompt_logprobs = prompt_logprobs(body);
    raw.shows_prompt = body.echo == Some(true);
    Ok(raw)
}

/// Returns the request for the prompt's logprobs. `prompt_logprobs` and `logprobs` with `echo` share one computation
/// with the larger number of likeliest tokens.
fn prompt_logprobs(body: &Body) -> Option<PromptLogprobsField> {
    let asked = body.prompt_logprobs.and_then(|count| count.0);
    let echoed = body.logprobs.filter(|_| body.echo == Some(true));
    match (asked, echoed) {
        (Some(num_top), echoed) if echoed.is_none_or(|echoed| echoed <= num_top) => {
            Some(PromptLogprobsField { field: "prompt_logprobs", num_top })
        }
        (_, Some(num_top)) => Some(PromptLogprobsField { field: "logprobs", num_top }),
        (_, None) => None,
    }
}
