//! `/v1/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use trunkline_text::Tokenizer;

use super::completion_stream::{CompletionStream, Head, Shown, completion_logprobs};
use super::completion_types::{Answer, Body, Choice};
use super::prompt_logprobs::{EchoedPrompt, PromptLogprobs};
use super::prompts::Prompt;
use super::{ErrorResponse, system_fingerprint};
use crate::api::Dialect;
use crate::api::app::{App, unix_s};
use crate::api::sse::{self, Folded, KeepTokens};
use crate::error::ApiError;
use crate::generation::choices::rank;
use crate::generation::generate::ScoredPrompt;
use crate::http::{Refused, parse};
use crate::request::tokens::PromptLogprobsField;
use crate::request::validate::{FieldNames, NumChoices, RawParams};

/// Tokens generated if the request does not say; OpenAI's own default.
const DEFAULT_MAX_TOKENS: u32 = 16;

const NAMES: FieldNames = FieldNames {
    max_new_tokens: "max_tokens",
    min_tokens: "min_tokens",
    top_logprobs: "logprobs",
    prompt: "prompt",
    stop: "stop",
};

/// Fields that would change the answer.
const REFUSED: &[Refused] = &[
    Refused { field: "suffix", neutral: &["\"\""], hint: "leave it out" },
    Refused { field: "prompt_embeds", neutral: &[], hint: "send text or token ids" },
    Refused { field: "add_special_tokens", neutral: &["true"], hint: "send token ids for full control" },
];

/// Continues a prompt.
#[utoipa::path(
    post, path = "/v1/completions", tag = "OpenAI", request_body = Body,
    responses(
        (status = 200, description = "The output; with `stream` as events of the same shape", body = Answer),
        (status = 400, description = "The request is wrong", body = ErrorResponse),
        (status = 429, description = "Too many requests", body = ErrorResponse),
        (status = 503, description = "Not ready, or draining", body = ErrorResponse),
    )
)]
pub async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    Dialect::OpenAi.answer(answer(&app, request).await)
}

async fn answer(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let (admitted, body) = app.admit(request).await?;
    let refused = [REFUSED, super::REFUSED_EVERYWHERE].concat();
    let mut body: Body = parse(&body, &refused, "")?;
    app.model.check_name(body.model.as_deref())?;
    let mut raw = raw_params(&mut body)?;
    raw.deadline = admitted.deadline(body.timeout)?;
    let is_stream = body.stream == Some(true);
    let validator = app.validator(&admitted.shard);
    validator.check(&raw, NAMES)?;
    let num_choices = validator.num_choices(body.n, body.best_of, body.prompt.0.len())?;
    check_together(&body, num_choices)?;
    let count = |asked: Option<i64>| asked.and_then(|count| usize::try_from(count).ok());
    let logprobs = count(raw.logprobs);
    let prompt_logprobs = count(body.prompt_logprobs.and_then(|count| count.0));
    // Outputs are ranked by their logprobs.
    raw.logprobs = raw.logprobs.or(num_choices.is_ranked().then_some(0));

    let stops = raw.stops.clone();

    app.compile(&mut raw, &admitted.caller).await?;
    let (echo, prompts) = (body.echo == Some(true), body.prompt.0);
    let num_bytes = prompts.iter().map(Prompt::num_bytes).sum();
    let encode = move |prompt, model: &_| EchoedPrompt::encode(model, prompt, echo);
    let encoded = app
        .tokenize(num_bytes, move |model| {
            prompts.into_iter().map(|prompt| encode(prompt, model)).collect::<Result<Vec<_>, _>>()
        })
        .await?;
    let tokenizer = app.model.text.tokenizer.clone();
    let defaults = &app.model.text.generation_defaults;
    let mut requests = Vec::new();
    let mut echoed = Vec::new();
    for (token_ids, mut prompt) in encoded {
        let arrived = (admitted.arrived, &admitted.caller);
        let num_sent = token_ids.len();
        let request = validator.validate(arrived, token_ids, raw.clone(), defaults, NAMES)?;
        if echo && request.prompt_token_ids.len() < num_sent {
            prompt = EchoedPrompt::of_tokens(&tokenizer, &request.prompt_token_ids);
        }
        requests.push(request);
        echoed.push(prompt);
    }

    let head = Head {
        id: format!("cmpl-{}", crate::random::id()),
        created: unix_s(),
        model: app.model.served_name.clone(),
        system_fingerprint: system_fingerprint(&admitted.shard),
    };
    let choices = app.generate(requests, num_choices.computed, admitted.permit).await?;
    let include_usage = body.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
    let shown = Shown { echo, logprobs, prompt_logprobs, usage: include_usage, stops };
    if is_stream {
        let render = CompletionStream::new(head, tokenizer, echoed, num_choices.computed, shown);
        return Ok(sse::stream(choices, render, app));
    }
    let keep = if logprobs.is_some() || num_choices.is_ranked() { KeepTokens::Yes } else { KeepTokens::No };
    let (mut folded, usage) = sse::fold(choices, keep).await?;
    let mut answered = Vec::new();
    for (prompt, outputs) in echoed.iter().zip(folded.chunks_mut(num_choices.computed)) {
        let scored = outputs[0].prompt.take();
        rank(outputs);
        for output in &outputs[..num_choices.shown] {
            let index = answered.len() as u32;
            answered.push(choice(index, (prompt, scored.clone()), output, &shown, &tokenizer));
        }
    }
    Ok(axum::Json(head.answer(answered, Some(Some(usage.into())))).into_response())
}

/// An output behind its prompt.
fn choice(
    index: u32,
    (prompt, scored): (&EchoedPrompt, Option<Arc<ScoredPrompt>>),
    output: &Folded,
    shown: &Shown,
    tokenizer: &Arc<Tokenizer>,
) -> Choice<'static> {
    let logprobs = shown.logprobs.map(|num_top| {
        let echoed = scored.as_ref().filter(|_| shown.echo);
        let (mut list, mut offset) =
            echoed.map(|scored| prompt.logprobs(tokenizer, scored, num_top)).unwrap_or_default();
        list.append(completion_logprobs(tokenizer, &output.tokens, &mut offset, shown.echo));
        list
    });
    let (finish_reason, stop_reason) = shown.end(output.reason);
    Choice {
        text: format!("{}{}", prompt.text, output.text).into(),
        index,
        logprobs,
        prompt_logprobs: scored
            .zip(shown.prompt_logprobs)
            .map(|(scored, num_top)| PromptLogprobs::new(scored, tokenizer.clone(), num_top)),
        finish_reason: Some(finish_reason),
        stop_reason: Some(stop_reason),
    }
}

/// Fields that do not go together.
fn check_together(body: &Body, num_choices: NumChoices) -> Result<(), ApiError> {
    if body.stream == Some(true) && num_choices.is_ranked() {
        let problem =
            "is greater than `n`, but which outputs are best shows only at the end; hint: do not stream";
        return Err(ApiError::value("best_of", problem));
    }
    if body.stream == Some(true) && body.prompt_logprobs.is_some_and(|count| count.0.is_some()) {
        let problem = "cannot be streamed; hint: do not stream, or use `echo` with `logprobs`";
        return Err(ApiError::value("prompt_logprobs", problem));
    }
    Ok(())
}

fn raw_params(body: &mut Body) -> Result<RawParams, ApiError> {
    let mut raw = body.shared_params()?;
    raw.max_new_tokens = body.max_tokens;
    raw.default_max_new_tokens = Some(DEFAULT_MAX_TOKENS);
    raw.logprobs = body.logprobs;
    raw.tokens.prompt_logprobs = prompt_logprobs(body);
    raw.shows_prompt = body.echo == Some(true);
    raw.grammar = body.structured().grammar()?;
    Ok(raw)
}

/// What both fields ask for is computed once, with as many of the likeliest tokens as either wants.
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
