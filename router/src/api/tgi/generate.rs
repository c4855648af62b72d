//! `/generate`, `/generate_stream` and `/`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use trunkline_scheduler::TokenLogprob;
use trunkline_text::{GenerationDefaults, StopText, Tokenizer};

use super::ErrorResponse;
use super::timings::Timings;
use super::types::{
    Body, Details, GenerateAnswer, Parameters, PrefillToken, Sequence, StreamAnswer, StreamDetails, Token,
    finish_reason,
};
use crate::api::Dialect;
use crate::api::app::App;
use crate::api::chat::structured;
use crate::api::sse::{self, Folded, KeepTokens, Render};
use crate::error::ApiError;
use crate::generation::choices::rank;
use crate::generation::generate::{FinishReason, Output, OutputToken, ScoredPrompt, Usage};
use crate::http::{Events, Refused, parse};
use crate::request::ready::GenerationRequest;
use crate::request::retention::RawRetention;
use crate::request::service_tier::Wanted;
use crate::request::tokens::{PromptLogprobsField, TokenFields};
use crate::request::validate::{FieldNames, RawParams};

/// Tokens generated if the request does not say; the default of TGI's OpenAPI document.
const DEFAULT_MAX_NEW_TOKENS: u32 = 1024;

pub(super) const NAMES: FieldNames = FieldNames {
    max_new_tokens: "max_new_tokens",
    min_tokens: "min_new_tokens",
    top_logprobs: "top_n_tokens",
    prompt: "inputs",
    stop: "stop",
};

/// Stands for probabilities that f32 cannot tell from 0, as JSON has no infinity.
const LOWEST_LOGPROB: f32 = -9999.0;

/// Fields of `parameters` that would change the answer.
pub(super) const REFUSED: &[Refused] = &[
    Refused { field: "num_return_sequences", neutral: &["1"], hint: "use `best_of` with `details`" },
    Refused { field: "adapter_id", neutral: &[], hint: "adapters are not supported yet" },
    Refused { field: "num_beams", neutral: &["1"], hint: "leave it out" },
    Refused { field: "length_penalty", neutral: &["1", "1.0"], hint: "leave it out" },
    Refused { field: "no_repeat_ngram_size", neutral: &["0"], hint: "use `repetition_penalty`" },
];

/// How the answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As `stream` says; else one object.
    Object,
    /// As `stream` says; else a list of one object: what `/` always gave.
    List,
    /// As events.
    Events,
}

/// Continues a prompt.
#[utoipa::path(
    post, path = "/generate", tag = "TGI", request_body = Body,
    responses(
        (status = 200, description = "The output; with `stream` as events of StreamResponse", body = GenerateAnswer),
        (status = 422, description = "The request is wrong", body = ErrorResponse),
        (status = 429, description = "Too many requests", body = ErrorResponse),
        (status = 503, description = "Not ready, or draining", body = ErrorResponse),
    )
)]
pub async fn generate(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(&app, request, Form::Object).await
}

/// Continues a prompt, token by token.
#[utoipa::path(
    post, path = "/generate_stream", tag = "TGI", request_body = Body,
    responses(
        (status = 200, description = "Events", content_type = "text/event-stream", body = StreamAnswer),
        (status = 422, description = "The request is wrong", body = ErrorResponse),
        (status = 429, description = "Too many requests", body = ErrorResponse),
        (status = 503, description = "Not ready, or draining", body = ErrorResponse),
    )
)]
pub async fn generate_stream(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(&app, request, Form::Events).await
}

/// As `/generate`, but the whole answer is a list of one.
#[utoipa::path(
    post, path = "/", tag = "TGI", request_body = Body,
    responses(
        (status = 200, description = "The output; with `stream` as events", body = Vec<GenerateAnswer>),
        (status = 422, description = "The request is wrong", body = ErrorResponse),
        (status = 429, description = "Too many requests", body = ErrorResponse),
        (status = 503, description = "Not ready, or draining", body = ErrorResponse),
    )
)]
pub async fn root(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(&app, request, Form::List).await
}

async fn respond(app: &Arc<App>, request: Request, form: Form) -> Response {
    Dialect::Tgi.answer(answer(app, request, form).await)
}

/// What the answer shows beyond the text.
#[derive(Debug, Clone)]
struct Shown {
    details: bool,
    top_tokens: bool,
    /// The seed, if the output is sampled.
    seed: Option<u64>,
    /// Put before the output.
    prefix: String,
}

async fn answer(app: &Arc<App>, request: Request, form: Form) -> Result<Response, ApiError> {
    let (admitted, body) = app.admit(request).await?;
    let mut body: Body = parse_body(&body)?;
    if body.inputs.is_empty() {
        return Err(ApiError::value("inputs", "is empty; hint: send at least one character"));
    }
    let mut parameters = body.parameters.take().unwrap_or_default();
    let as_events = form == Form::Events || body.stream == Some(true);
    let prefill = parameters.decoder_input_details == Some(true);
    let details = parameters.details.unwrap_or(false) || prefill;
    if prefill && as_events {
        let problem = "cannot be streamed; hint: do not stream";
        return Err(ApiError::value("decoder_input_details", problem));
    }
    let full_text = parameters.return_full_text.unwrap_or(false);
    let top_tokens = parameters.top_n_tokens.is_some_and(|top| top > 0);
    let mut raw = raw_params(&mut parameters, as_events || details)?;
    raw.deadline = admitted.deadline(parameters.timeout)?;
    let validator = app.validator(&admitted.shard);
    validator.check(&raw, NAMES)?;
    let num_choices = validator.num_choices(None, parameters.best_of, 1)?;
    // Outputs are ranked by their logprobs.
    raw.logprobs = raw.logprobs.or(num_choices.is_ranked().then_some(0));

    app.compile(&mut raw, &admitted.caller).await?;

    let inputs: Arc<str> = body.inputs.into();
    let text = inputs.clone();
    let prompt = app.tokenize(inputs.len(), move |model| model.encode_prompt(&text)).await?;
    let prompt = truncated(prompt, parameters.truncate)?;
    let request = validator.validate(
        (admitted.arrived, &admitted.caller),
        prompt,
        raw,
        &GenerationDefaults::default(),
        NAMES,
    )?;
    if num_choices.is_ranked() && !is_sampled(&request) {
        let problem = "is more than 1, but the output is greedy; hint: set `do_sample` to true";
        return Err(ApiError::value("best_of", problem));
    }
    if num_choices.is_ranked() && as_events {
        let problem = "is more than 1, but which output is best shows only at the end; hint: do not stream";
        return Err(ApiError::value("best_of", problem));
    }
    let shown = Shown {
        details,
        top_tokens,
        seed: is_sampled(&request).then_some(request.sampling.seed),
        prefix: if full_text { inputs.to_string() } else { String::new() },
    };
    let timings = Timings::queued_now(admitted.arrived, &inputs, &admitted.shard.device);
    let choices = app.generate(vec![request], num_choices.computed, admitted.permit).await?;
    let tokenizer = app.model.text.tokenizer.clone();
    if as_events {
        let end_token_id = app.model.text.end_token_ids.first().copied().unwrap_or_default();
        let render = GenerateStream { text: shown.prefix.clone(), shown, tokenizer, index: 0, end_token_id };
        let events = sse::stream(choices, render, app);
        return Ok((timings.headers(), events).into_response());
    }
    let keep = if details || num_choices.is_ranked() { KeepTokens::Yes } else { KeepTokens::No };
    let (mut folded, _) = sse::fold(choices, keep).await?;
    let prefill = folded[0].prompt.take().map_or_else(Vec::new, |prompt| prefill_tokens(&tokenizer, &prompt));
    rank(&mut folded);
    let headers = timings.complete(&folded[0]);
    let answer = whole_answer(folded, prefill, &shown, &tokenizer)?;
    Ok(match form {
        Form::List => (headers, axum::Json([answer])).into_response(),
        Form::Object | Form::Events => (headers, axum::Json(answer)).into_response(),
    })
}

fn parse_body(body: &[u8]) -> Result<Body, ApiError> {
    /// The parameters as text, to check their fields by name.
    #[derive(serde::Deserialize)]
    struct Raw<'a> {
        #[serde(borrow)]
        parameters: Option<&'a serde_json::value::RawValue>,
    }
    let parsed: Body = parse(body, &[], "")?;
    if parsed.parameters.is_some() {
        // It parsed above, so this finds the same object.
        let raw: Raw<'_> = serde_json::from_slice(body)
            .map_err(|error| ApiError::InvalidJson { detail: error.to_string() })?;
        if let Some(parameters) = raw.parameters {
            parse::<serde::de::IgnoredAny>(parameters.get().as_bytes(), REFUSED, "parameters.")?;
        }
    }
    Ok(parsed)
}

/// The last tokens of the prompt, as many as are asked for.
pub(super) fn truncated(mut prompt: Vec<u32>, asked: Option<i64>) -> Result<Vec<u32>, ApiError> {
    let Some(last) = asked else { return Ok(prompt) };
    match usize::try_from(last) {
        Ok(last) if last > 0 => drop(prompt.drain(..prompt.len().saturating_sub(last))),
        _ => return Err(ApiError::value("truncate", format!("is {last}, must be at least 1"))),
    }
    Ok(prompt)
}

fn is_sampled(request: &GenerationRequest) -> bool {
    request.sampling.temperature > 0.0
}

/// TGI samples if `do_sample` says so, or if a parameter is set that has no meaning without.
pub(super) fn raw_params(parameters: &mut Parameters, logprobs: bool) -> Result<RawParams, ApiError> {
    let sample = parameters.do_sample.unwrap_or(false)
        || parameters.temperature.is_some_and(|temperature| temperature != 1.0)
        || parameters.top_k.is_some_and(|k| k != 0)
        || parameters.top_p.is_some_and(|p| p < 1.0)
        || parameters.min_p.is_some_and(|p| p > 0.0)
        || parameters.typical_p.is_some_and(|p| p < 1.0);
    if let Some(temperature) = parameters.temperature.filter(|temperature| *temperature <= 0.0) {
        let problem = format!("is {temperature}, must be greater than 0; hint: leave it out to be greedy");
        return Err(ApiError::value("temperature", problem));
    }
    Ok(RawParams {
        max_new_tokens: parameters.max_new_tokens,
        default_max_new_tokens: Some(DEFAULT_MAX_NEW_TOKENS),
        temperature: Some(if sample { parameters.temperature.unwrap_or(1.0) } else { 0.0 }),
        top_p: parameters.top_p,
        top_k: parameters.top_k,
        min_p: parameters.min_p,
        seed: parameters.seed.map(|seed| seed.0),
        presence_penalty: parameters.presence_penalty,
        frequency_penalty: parameters.frequency_penalty,
        repetition_penalty: parameters.repetition_penalty,
        min_tokens: parameters.min_new_tokens,
        ignore_eos: parameters.ignore_eos_token.unwrap_or(false),
        stops: parameters.stop.take().unwrap_or_default().0,
        stop_text: Some(StopText::Include),
        logprobs: (logprobs || parameters.top_n_tokens.is_some())
            .then(|| parameters.top_n_tokens.unwrap_or(0)),
        typical_p: parameters.typical_p,
        tokens: TokenFields {
            prompt_logprobs: (parameters.decoder_input_details == Some(true))
                .then_some(PromptLogprobsField { field: "decoder_input_details", num_top: 0 }),
            ..TokenFields::default()
        },
        shows_prompt: false,
        grammar: structured::request_grammar("grammar", parameters.grammar.take())?,
        cache_salt: None,
        class: Wanted::default(),
        deadline: None,
        retention: RawRetention::default(),
        watermark: parameters.watermark.unwrap_or(false),
    })
}

fn token(tokenizer: &Tokenizer, token: &OutputToken) -> Token {
    // A control token has no text in the output, but it has a name.
    let text = if token.special || token.is_end { name(tokenizer, token.id) } else { token.text.clone() };
    Token { id: token.id, text, logprob: token.logprob.max(LOWEST_LOGPROB), special: token.special }
}

fn name(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default()).into_owned()
}

fn top_tokens(tokenizer: &Tokenizer, top: &[TokenLogprob]) -> Vec<Token> {
    let tokens = top.iter().map(|top| Token {
        id: top.token_id,
        text: name(tokenizer, top.token_id),
        logprob: top.logprob.max(LOWEST_LOGPROB),
        special: tokenizer.is_special(top.token_id),
    });
    tokens.collect()
}

/// The prompt's tokens; nothing comes before the first.
fn prefill_tokens(tokenizer: &Tokenizer, prompt: &ScoredPrompt) -> Vec<PrefillToken> {
    let scores = prompt.scores.iter().map(|score| Some(score.logprob.max(LOWEST_LOGPROB)));
    let tokens = prompt.token_ids.iter().zip(std::iter::once(None).chain(scores));
    tokens.map(|(&id, logprob)| PrefillToken { id, text: name(tokenizer, id), logprob }).collect()
}

/// `folded`: the best first, at least one.
fn whole_answer(
    folded: Vec<Folded>,
    prefill: Vec<PrefillToken>,
    shown: &Shown,
    tokenizer: &Tokenizer,
) -> Result<GenerateAnswer, ApiError> {
    let num_outputs = folded.len();
    let mut outputs = folded.into_iter().map(|folded| Sequence {
        finish_reason: finish_reason(folded.reason),
        generated_tokens: folded.usage.output_tokens,
        seed: shown.seed,
        prefill: prefill.clone(),
        tokens: folded.tokens.iter().map(|output| token(tokenizer, output)).collect(),
        top_tokens: shown.top_tokens.then(|| {
            folded.tokens.iter().map(|output| top_tokens(tokenizer, &output.top_logprobs)).collect()
        }),
        generated_text: format!("{}{}", shown.prefix, folded.text),
    });
    let best = outputs.next().ok_or_else(|| ApiError::Bug { request_id: crate::random::id() })?;
    if !shown.details {
        return Ok(GenerateAnswer { generated_text: best.generated_text, details: None });
    }
    let details = Details {
        finish_reason: best.finish_reason,
        generated_tokens: best.generated_tokens,
        seed: best.seed,
        prefill: best.prefill,
        tokens: best.tokens,
        top_tokens: best.top_tokens,
        best_of_sequences: (num_outputs > 1).then(|| outputs.collect()),
    };
    Ok(GenerateAnswer { generated_text: best.generated_text, details: Some(details) })
}

struct GenerateStream {
    shown: Shown,
    tokenizer: Arc<Tokenizer>,
    /// The output so far, for the last event.
    text: String,
    index: u32,
    /// What the last event shows if the output ended without a token of its own.
    end_token_id: u32,
}

impl GenerateStream {
    /// TGI's events have a token each. An output that its grammar ended has no last one: it could only have been this.
    fn token(&self, output: &Output) -> Token {
        match &output.token {
            Some(output) => token(&self.tokenizer, output),
            None => {
                let id = self.end_token_id;
                Token { id, text: name(&self.tokenizer, id), logprob: 0.0, special: true }
            }
        }
    }

    fn details(&self, (reason, usage): (FinishReason, Usage)) -> Option<StreamDetails> {
        self.shown.details.then(|| StreamDetails {
            finish_reason: finish_reason(reason),
            generated_tokens: usage.output_tokens,
            seed: self.shown.seed,
            input_length: usage.prompt_tokens,
        })
    }
}

impl Render for GenerateStream {
    fn output(&mut self, _index: usize, output: Output, events: &mut Events) {
        self.text.push_str(&output.text);
        self.index += 1;
        let top_tokens = match (&output.token, self.shown.top_tokens) {
            (Some(output), true) => Some(top_tokens(&self.tokenizer, &output.top_logprobs)),
            _ => None,
        };
        events.json(&StreamAnswer {
            index: self.index,
            token: self.token(&output),
            top_tokens,
            generated_text: output.finish.map(|_| std::mem::take(&mut self.text)),
            details: output.finish.and_then(|finish| self.details(finish)),
        });
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.json(&ErrorResponse::from_error(error));
    }
}
