//! The handlers of `/generate`, `/generate_stream` and `/`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use trunkline_contract::RequestNumbers;
use trunkline_scheduler::TokenLogprob;
use trunkline_text::{StopText, Tokenizer};

use super::ErrorResponse;
use super::timings::Timings;
use super::types::{
    Body, Details, GenerateAnswer, LOWEST_LOGPROB, Parameters, Prefill, Sequence, StreamAnswer,
    StreamDetails, Token, finish_reason,
};
use crate::app::App;
use crate::chat::structured;
use crate::joined::Joined;
use crate::pipeline::{self, Asked, Call, Completed, Prompts, Scope};
use crate::respond;
use crate::respond::ErrorForm;
use crate::stream::Render;
use trunkline_base::error::ApiError;
use trunkline_generation::adapters::Named;
use trunkline_generation::answer_memory::{repeated_scores_bytes, repeated_text_bytes};
use trunkline_generation::fold::{Folded, KeepTokens, rank};
use trunkline_generation::generate::{FinishReason, Output, OutputToken, Usage};
use trunkline_generation::grammars::CompiledGrammar;
use trunkline_generation::request::checked::{CheckedParams, NumChoices};
use trunkline_generation::request::number::too_small;
use trunkline_generation::request::raw::{FieldNames, RawParams};
use trunkline_generation::request::ready::{GenerationRequest, Prompt};
use trunkline_generation::request::tokens::{PromptLogprobsField, TokenFields};
use trunkline_http::{Events, IgnoredFields, OtherFields, Refused, parse_noting};

/// The default of `max_new_tokens`, as in TGI's OpenAPI document.
const DEFAULT_MAX_NEW_TOKENS: u32 = 1024;

const NAMES: FieldNames = FieldNames {
    max_new_tokens: "max_new_tokens",
    min_tokens: "min_new_tokens",
    top_logprobs: "top_n_tokens",
    prompt: "inputs",
    stop: "stop",
};

/// Fields of `parameters` that are refused, because ignoring them would change the answer.
pub(super) const REFUSED: &[Refused] = &[
    Refused { field: "num_return_sequences", neutral: &["1"], hint: "use `best_of` with `details`" },
    Refused { field: "num_beams", neutral: &["1"], hint: "leave it out" },
    Refused { field: "length_penalty", neutral: &["1", "1.0"], hint: "leave it out" },
    Refused { field: "no_repeat_ngram_size", neutral: &["0"], hint: "use `repetition_penalty`" },
];
/// The known fields that [`Parameters`] does not have.
const OTHERS: OtherFields<'_> = OtherFields { refused: REFUSED, harmless: &[] };

/// The form in which the answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A single JSON object.
    Object,
    /// A JSON list with one object, which is the form of TGI's `/`.
    List,
    /// A stream of server-sent events.
    Events,
}

/// Generates text that continues a prompt; as events with `stream`.
#[utoipa::path(
    post, path = "/generate", request_body = Body,
    responses(
        (
            status = 200, body = GenerateAnswer,
            description = "The output; a stream of StreamResponse events if `stream` is true",
        ),
        (status = 422, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn generate(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(&app, request, Form::Object).await
}

/// Generates text that continues a prompt, always as events.
#[utoipa::path(
    post, path = "/generate_stream", request_body = Body,
    responses(
        (status = 200, description = "A stream of events", content_type = "text/event-stream", body = StreamAnswer),
        (status = 422, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn generate_stream(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(&app, request, Form::Events).await
}

/// Generates text like `/generate`, but returns a list with one output unless `stream` is true.
#[utoipa::path(
    post, path = "/", request_body = Body,
    responses(
        (status = 200, description = "The output; a stream of events if `stream` is true", body = Vec<GenerateAnswer>),
        (status = 422, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn root(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(&app, request, Form::List).await
}

async fn respond(app: &Arc<App>, request: Request, form: Form) -> Response {
    respond::answer::<ErrorResponse>(
        pipeline::answer::<_, ErrorResponse>(app, request, move |body, ignored| {
            Generate::parse(body, form, ignored)
        })
        .await,
    )
}

/// The optional parts of an answer.
#[derive(Debug, Clone)]
struct Shown {
    details: bool,
    top_tokens: bool,
    /// The seed, if the output is sampled.
    seed: Option<u64>,
    /// The text to put before the output: the prompt with `return_full_text`.
    prefix: Option<Arc<str>>,
}

pub(crate) struct Generate {
    inputs: String,
    parameters: Parameters,
    form: Form,
}

impl Generate {
    /// Creates a call whose answer is one text.
    pub(super) fn text_only(inputs: String, parameters: Parameters) -> Self {
        Self { inputs, parameters, form: Form::Object }
    }

    fn parse(body: &[u8], form: Form, ignored: &mut IgnoredFields) -> Result<Self, ApiError> {
        let body = parse_body(body, ignored)?;
        if body.inputs.is_empty() {
            return Err(ApiError::value("inputs", "is empty; hint: send at least one character"));
        }
        let form = if body.stream == Some(true) { Form::Events } else { form };
        Ok(Self { inputs: body.inputs, parameters: body.parameters.unwrap_or_default(), form })
    }
}

impl Call for Generate {
    type Prompts = Inputs;

    fn named(&self) -> Named<'_> {
        Named { adapter_id: self.parameters.adapter_id.as_deref(), ..Named::default() }
    }

    fn asked(self, scope: &Scope) -> Result<Asked<Inputs>, ApiError> {
        let Self { inputs, mut parameters, form } = self;
        let inputs: Arc<str> = inputs.into();
        let is_stream = form == Form::Events;
        let prefill = parameters.decoder_input_details == Some(true);
        if prefill && is_stream {
            let problem = "cannot be streamed; hint: do not stream";
            return Err(ApiError::value("decoder_input_details", problem));
        }
        let details = parameters.details.unwrap_or(false) || prefill;
        let grammar = structured::request_grammar(
            "grammar",
            parameters.grammar.take(),
            structured::Relaxed::ByDefault,
        )?;
        let mut params = raw_params(&mut parameters, is_stream || details)?;
        let is_sampled = params.numbers.temperature != Some(0.0);
        let num_choices = scope.validator.num_choices(None, parameters.best_of, 1)?;
        if num_choices.is_ranked() && !is_sampled {
            let problem = "is more than 1, but the output is greedy; hint: set `do_sample` to true";
            return Err(ApiError::value("best_of", problem));
        }
        if num_choices.is_ranked() && is_stream {
            let problem = "is more than 1, but the best output is known only at the end; hint: do not stream";
            return Err(ApiError::value("best_of", problem));
        }
        // Outputs are ranked by their logprobs.
        params.logprobs = params.logprobs.or(num_choices.is_ranked().then_some(0));
        Ok(Asked {
            params,
            grammar,
            num_choices,
            is_stream,
            prompts: Inputs {
                shown: Shown {
                    details,
                    top_tokens: parameters.top_n_tokens.is_some_and(|top| top > 0),
                    seed: None,
                    prefix: (parameters.return_full_text == Some(true)).then(|| inputs.clone()),
                },
                inputs,
                is_sampled,
                form,
            },
        })
    }
}

pub(crate) struct Inputs {
    inputs: Arc<str>,
    is_sampled: bool,
    /// What the answer shows. Its seed is filled in with the prompt.
    shown: Shown,
    form: Form,
}

impl Prompts for Inputs {
    type Answer = GenerateAnswerer;

    async fn complete(
        self,
        scope: &Scope,
        params: &CheckedParams,
        grammar: Option<CompiledGrammar>,
        num_choices: NumChoices,
    ) -> Result<Completed<GenerateAnswerer>, ApiError> {
        let Self { inputs, is_sampled, shown, form } = self;
        let served = &scope.app.served;
        let text = inputs.clone();
        let token_ids = served
            .tokenize(&scope.arrival.caller, inputs.len(), move |model| model.encode_prompt(&text))
            .await?;
        let request = params.with_prompt(Prompt { token_ids, grammar, ..Prompt::default() })?;
        let answer = GenerateAnswerer {
            shown: Shown { seed: is_sampled.then_some(request.sequence.sampling.seed), ..shown },
            form,
            timings: Timings::queued_now(scope.arrival.at, &inputs, &scope.shard.device),
            tokenizer: served.model.text.tokenizer.clone(),
            end_token_id: served.model.text.end_token_ids.first().copied().unwrap_or_default(),
            num_choices,
        };
        Ok(Completed { requests: vec![request], answer })
    }
}

pub(crate) struct GenerateAnswerer {
    shown: Shown,
    form: Form,
    timings: Timings,
    tokenizer: Arc<Tokenizer>,
    /// The token of the last event if the output ended without an end token.
    end_token_id: u32,
    num_choices: NumChoices,
}

impl GenerateAnswerer {
    /// Returns the text to put before the output.
    pub(super) fn prefix(&self) -> &str {
        self.shown.prefix.as_deref().unwrap_or_default()
    }
}

impl pipeline::Answer for GenerateAnswerer {
    type Render = GenerateStream;

    fn keeps_tokens(&self) -> KeepTokens {
        if self.shown.details || self.num_choices.is_ranked() { KeepTokens::Yes } else { KeepTokens::No }
    }

    fn prompt_bytes(&self, requests: &[GenerationRequest]) -> usize {
        let num_shown = if self.shown.details { self.num_choices.computed } else { 1 };
        let scores = |request: &GenerationRequest| {
            let is_shown = request.sequence.sampling.prompt_logprobs.is_some();
            let num_more = if is_shown { num_shown - 1 } else { 0 };
            repeated_scores_bytes(request.sequence.token_ids.len(), 0, num_more)
        };
        let scores = requests.iter().map(scores).fold(0, usize::saturating_add);
        scores.saturating_add(repeated_text_bytes(self.prefix(), num_shown))
    }

    fn stream_headers(&self) -> HeaderMap {
        self.timings.headers()
    }

    fn render(self) -> GenerateStream {
        let Self { shown, tokenizer, end_token_id, .. } = self;
        let text = shown.prefix.as_deref().unwrap_or_default().to_owned();
        GenerateStream { text, shown, tokenizer, index: 0, end_token_id }
    }

    fn whole(self, mut outputs: Vec<Folded>, _usage: Usage) -> Response {
        let Self { shown, tokenizer, .. } = &self;
        let prefill = Prefill(outputs[0].prompt.take().map(|prompt| (prompt, tokenizer.clone())));
        rank(&mut outputs);
        let headers = self.timings.complete(&outputs[0]);
        let answer = whole_answer(outputs, prefill, shown, tokenizer);
        match self.form {
            Form::List => (headers, axum::Json([answer])).into_response(),
            Form::Object | Form::Events => (headers, axum::Json(answer)).into_response(),
        }
    }
}

fn parse_body(body: &[u8], ignored: &mut IgnoredFields) -> Result<Body, ApiError> {
    /// The parameters as JSON text, to check their fields by name.
    #[derive(serde::Deserialize)]
    struct Raw<'a> {
        #[serde(borrow)]
        parameters: Option<&'a serde_json::value::RawValue>,
    }
    let parsed: Body = parse_noting(body, OtherFields { refused: &[], harmless: &[] }, "", ignored)?;
    if parsed.parameters.is_some() {
        // The body was parsed above, so this cannot fail.
        let raw: Raw<'_> = serde_json::from_slice(body)
            .map_err(|error| ApiError::InvalidJson { detail: error.to_string() })?;
        if let Some(parameters) = raw.parameters {
            parse_noting::<Parameters>(parameters.get().as_bytes(), OTHERS, "parameters.", ignored)?;
        }
    }
    Ok(parsed)
}

/// Converts the parameters. Like TGI, it samples if `do_sample` is true or if a parameter is set that only sampling
/// uses.
fn raw_params(parameters: &mut Parameters, logprobs: bool) -> Result<RawParams, ApiError> {
    let sample = parameters.do_sample.unwrap_or(false)
        || parameters.temperature.is_some_and(|temperature| temperature != 1.0)
        || parameters.top_k.is_some_and(|k| k != 0)
        || parameters.top_p.is_some_and(|p| p < 1.0)
        || parameters.min_p.is_some_and(|p| p > 0.0)
        || parameters.typical_p.is_some_and(|p| p < 1.0);
    if let Some(temperature) = parameters.temperature.filter(|temperature| *temperature <= 0.0) {
        let problem =
            format!("is {temperature}, must be greater than 0; hint: leave it out for greedy decoding");
        return Err(ApiError::value("temperature", problem));
    }
    if let Some(last) = parameters.truncate.filter(|last| *last < 1) {
        return Err(too_small("truncate", last, 1));
    }
    Ok(RawParams {
        names: NAMES,
        max_new_tokens: parameters.max_new_tokens,
        default_max_new_tokens: Some(DEFAULT_MAX_NEW_TOKENS),
        numbers: RequestNumbers {
            temperature: Some(if sample { parameters.temperature.unwrap_or(1.0) } else { 0.0 }),
            ..parameters.numbers()
        },
        seed: parameters.seed.map(|seed| seed.0),
        min_tokens: parameters.min_new_tokens,
        ignore_eos: parameters.ignore_eos_token.unwrap_or(false),
        stops: parameters.stop.take().unwrap_or_default().0,
        stop_text: StopText::Include,
        logprobs: (logprobs || parameters.top_n_tokens.is_some())
            .then(|| parameters.top_n_tokens.unwrap_or(0)),
        tokens: TokenFields {
            prompt_logprobs: (parameters.decoder_input_details == Some(true))
                .then_some(PromptLogprobsField { field: "decoder_input_details", num_top: 0 }),
            truncate_prompt_tokens: parameters.truncate,
            ..TokenFields::default()
        },
        timeout: parameters.timeout,
        watermark: parameters.watermark.unwrap_or(false),
        ..RawParams::default()
    })
}

fn token(tokenizer: &Tokenizer, token: &OutputToken) -> Token {
    // A control token has no text in the output, so its name is shown.
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

/// Returns the answer of at least one output, sorted with the best one first.
fn whole_answer(
    folded: Vec<Folded>,
    prefill: Prefill,
    shown: &Shown,
    tokenizer: &Tokenizer,
) -> GenerateAnswer {
    let num_outputs = folded.len();
    let sequence = |folded: Folded| Sequence {
        finish_reason: finish_reason(folded.reason),
        generated_tokens: folded.usage.output_tokens,
        seed: shown.seed,
        prefill: prefill.clone(),
        tokens: folded.tokens.iter().map(|output| token(tokenizer, output)).collect(),
        top_tokens: shown.top_tokens.then(|| {
            folded.tokens.iter().map(|output| top_tokens(tokenizer, &output.top_logprobs)).collect()
        }),
        generated_text: Joined { shared: shown.prefix.clone(), own: folded.text },
    };
    // Without details only the best output is written.
    let num_shown = if shown.details { num_outputs } else { 1 };
    let mut outputs: Vec<Sequence> = folded.into_iter().take(num_shown).map(sequence).collect();
    let best = outputs.remove(0);
    if !shown.details {
        return GenerateAnswer { generated_text: best.generated_text, details: None };
    }
    let details = Details {
        finish_reason: best.finish_reason,
        generated_tokens: best.generated_tokens,
        seed: best.seed,
        prefill: best.prefill,
        tokens: best.tokens,
        top_tokens: best.top_tokens,
        best_of_sequences: (num_outputs > 1).then_some(outputs),
    };
    GenerateAnswer { generated_text: best.generated_text, details: Some(details) }
}

pub(crate) struct GenerateStream {
    shown: Shown,
    tokenizer: Arc<Tokenizer>,
    /// The text of the output so far, which the last event repeats.
    text: String,
    index: u32,
    /// The token of the last event if the output ended without an end token.
    end_token_id: u32,
}

impl GenerateStream {
    /// Returns the token of an event. TGI's events always have one. An output that its grammar ended has no end token,
    /// so the model's end token is shown.
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
