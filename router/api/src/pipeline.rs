//! The pipeline that every generating route shares: admit, parse, check, compile, tokenize, generate, answer.
//!
//! A dialect implements its body ([`Call`]), its prompts ([`Prompts`]) and its answer ([`Answer`]). This module
//! implements the stages between them once for all dialects.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use trunkline_text::ModelText;

use super::app::App;
use super::loading;
use super::respond::ErrorForm;
use super::stream::{Render, stream};
use trunkline_base::error::ApiError;
use trunkline_base::limits::INLINE_ANSWER_BYTES;
use trunkline_engine::shard::ShardInfo;
use trunkline_generation::adapters::{LoraScale, Named};
use trunkline_generation::admission::{Admitted, Received};
use trunkline_generation::answer_memory::least_bytes;
use trunkline_generation::fold::{Folded, KeepTokens, fold};
use trunkline_generation::generate::Usage;
use trunkline_generation::grammars::{AskedGrammar, CompiledGrammar, KeyedGrammar};
use trunkline_generation::models::KeepAlive;
use trunkline_generation::place::Place;
use trunkline_generation::request::arrival::Arrival;
use trunkline_generation::request::avoid::CheckedAvoid;
use trunkline_generation::request::checked::{CheckedParams, NumChoices, Validator};
use trunkline_generation::request::raw::RawParams;
use trunkline_generation::request::ready::GenerationRequest;
use trunkline_http::{IgnoredFields, RelaxedKeywords, StreamForm};

/// The context of one request, for every stage of the pipeline.
pub(crate) struct Scope {
    pub app: Arc<App>,
    pub arrival: Arrival,
    pub shard: Arc<ShardInfo>,
    pub validator: Validator,
    /// The keywords that were left out of schemas.
    relaxed: Mutex<RelaxedKeywords>,
}

impl Scope {
    pub fn new(app: &Arc<App>, arrival: Arrival, shard: Arc<ShardInfo>) -> Self {
        let validator = app.served.validator(&shard);
        Self { app: app.clone(), arrival, shard, validator, relaxed: Mutex::default() }
    }

    /// Names the keywords that were left out of schemas in the answer.
    pub fn report_relaxed(self, path: &str, response: &mut Response) {
        self.relaxed.into_inner().unwrap_or_else(PoisonError::into_inner).report(path, response);
    }
}

/// The parsed body of a request.
pub(crate) trait Call: Send + 'static {
    type Prompts: Prompts;

    /// Returns the fields that name the model and its adapter.
    fn named(&self) -> Named<'_>;

    /// Returns the time for which the model stays in memory after this request, if the request says so.
    fn keep_alive(&self) -> Option<KeepAlive> {
        None
    }

    /// Converts the body to the form that all dialects share. Nothing is tokenized yet.
    fn asked(self, scope: &Scope) -> Result<Asked<Self::Prompts>, ApiError>;

    /// Returns the answer of a call that asks for no output. It is sent if the call passes all checks that need no
    /// tokens.
    fn without_output(&self, _scope: &Scope) -> Option<Response> {
        None
    }
}

/// The content of a call in the form that all dialects share.
pub(crate) struct Asked<P> {
    /// The generation parameters, not yet checked.
    pub params: RawParams,
    pub grammar: Option<AskedGrammar>,
    pub num_choices: NumChoices,
    /// True if the answer is a stream of events.
    pub is_stream: bool,
    /// The prompts, not yet tokenized.
    pub prompts: P,
}

/// The prompts of a call.
pub(crate) trait Prompts: Send + 'static {
    type Answer: Answer;

    /// Tokenizes the prompts and completes a request with each one.
    fn complete(
        self,
        scope: &Scope,
        params: &CheckedParams,
        grammar: Option<CompiledGrammar>,
        num_choices: NumChoices,
    ) -> impl Future<Output = Result<Completed<Self::Answer>, ApiError>> + Send;
}

/// Requests that can be computed, and the writer of their answer.
pub(crate) struct Completed<A> {
    /// One request for each prompt.
    pub requests: Vec<GenerationRequest>,
    pub answer: A,
}

/// Writes the answer of a call, as events or in one piece.
pub(crate) trait Answer: Send + 'static {
    type Render: Render;

    /// Returns [`KeepTokens::Yes`] if [`Self::whole`] needs tokens in addition to their text.
    fn keeps_tokens(&self) -> KeepTokens {
        KeepTokens::No
    }

    /// Returns the memory for what an answer in one piece repeats of the prompts of `requests`, in addition to each
    /// prompt's logprobs once.
    fn prompt_bytes(&self, _requests: &[GenerationRequest]) -> usize {
        0
    }

    /// Returns the headers of a stream, in addition to those that every stream has.
    fn stream_headers(&self) -> HeaderMap {
        HeaderMap::new()
    }

    fn render(self) -> Self::Render;

    /// Writes the answer in one piece. `outputs` is not empty and is in the order of the choices.
    fn whole(self, outputs: Vec<Folded>, usage: Usage) -> Response;
}

/// Answers a request to a generating route. `parse` notes the fields of the body that it does not know. An error of a
/// stream that has waited for its model is an event in the form `E`.
pub(crate) async fn answer<C: Call, E: ErrorForm>(
    app: &Arc<App>,
    request: Request,
    parse: impl FnOnce(&[u8], &mut IgnoredFields) -> Result<C, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let path = request.uri().path().to_owned();
    let received = app.admission.receive(&app.models, &app.served, request).await?;
    let form = <<C::Prompts as Prompts>::Answer as Answer>::Render::FORM;
    // Streams of lines are those of Ollama's API, where a request that does not say otherwise wants one.
    let is_stream = received.is_stream.unwrap_or(form == StreamForm::Lines);
    let target = received.target.clone();
    let answered = answer_received(app.clone(), received, path, parse);
    if is_stream && !app.models.may_begin(&target) {
        return Ok(loading::stream::<E>(app, target, form, answered));
    }
    answered.await
}

async fn answer_received<C: Call>(
    app: Arc<App>,
    received: Received,
    path: String,
    parse: impl FnOnce(&[u8], &mut IgnoredFields) -> Result<C, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let (app, Admitted { permit, model, shard, arrival }, body) = app.enter(received).await?;
    if !shard.generates {
        return Err(ApiError::NoGeneration);
    }
    let read = move |scope: &Scope, body: &[u8]| {
        let mut ignored = IgnoredFields::default();
        let call = parse(body, &mut ignored)?;
        let (answer, keep_alive) = (call.without_output(scope), call.keep_alive());
        let checked = check(scope, call)?;
        scope.app.keep(model, keep_alive);
        Ok((checked, answer, ignored))
    };
    let (scope, (checked, answer, ignored)) = read_body(Scope::new(&app, arrival, shard), body, read).await?;
    let mut response = match answer {
        Some(answer) => answer,
        None => generate(&scope, checked, permit).await?,
    };
    ignored.report(&path, &mut response);
    scope.report_relaxed(&path, &mut response);
    Ok(response)
}

/// Runs `read` on a body, on the blocking pool if the body is large. The body is dropped before the request waits.
pub(crate) async fn read_body<T: Send + 'static>(
    scope: Scope,
    body: Bytes,
    read: impl FnOnce(&Scope, &[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<(Scope, T), ApiError> {
    let (app, caller) = (scope.app.clone(), scope.arrival.caller.clone());
    app.served.parse(&caller, body, move |body| read(&scope, body).map(|read| (scope, read))).await
}

async fn generate<P: Prompts>(
    scope: &Scope,
    checked: Checked<P>,
    permit: Place,
) -> Result<Response, ApiError> {
    let app = &scope.app;
    let (num_choices, is_stream) = (checked.num_choices.computed, checked.is_stream);
    let Completed { requests, answer } = complete(scope, checked).await?;
    let mut memory = app.admission.answer_memory(&scope.arrival.caller);
    let keep = answer.keeps_tokens();
    if !is_stream {
        memory.repeat_prompts(answer.prompt_bytes(&requests))?;
        memory.grow_to(least_bytes(&requests, num_choices, keep == KeepTokens::Yes))?;
    }
    let choices = app.admission.generate(&app.served, requests, num_choices, permit).await?;
    if is_stream {
        let headers = answer.stream_headers();
        return Ok((
            headers,
            stream(choices, answer.render(), app.limits.timeouts.keep_alive, app.metrics.clone()),
        )
            .into_response());
    }
    let (outputs, usage) = fold(choices, keep, &mut memory).await?;
    if memory.num_bytes() <= INLINE_ANSWER_BYTES {
        return memory.hold(answer.whole(outputs, usage)).await;
    }
    // The thread goes on without its client, so it has the memory.
    let write = move || (answer.whole(outputs, usage), memory);
    let (response, memory) = app.served.blocking(&scope.arrival.caller, write).await;
    memory.hold(response).await
}

/// Converts a checked call to requests that are ready to compute. Runs every stage before generation.
pub(crate) async fn complete<P: Prompts>(
    scope: &Scope,
    checked: Checked<P>,
) -> Result<Completed<P::Answer>, ApiError> {
    let Checked { mut params, grammar, num_choices, prompts, .. } = checked.choose_scaled(scope).await?;
    params.open_adapter(&scope.app.served.adapters).await?;
    // Compiling a grammar may take long, so it comes after all cheap checks.
    let grammar = match grammar {
        Some(asked) => {
            let begin = Instant::now();
            let compiled = scope.app.served.grammars.get(&scope.arrival.caller, asked).await?;
            if let Some(trace) = scope.arrival.id.trace() {
                trace.update(|record| record.grammar = Some((SystemTime::now(), begin.elapsed())));
            }
            let mut relaxed = scope.relaxed.lock().unwrap_or_else(PoisonError::into_inner);
            compiled.relaxed().iter().for_each(|keyword| relaxed.note(keyword));
            drop(relaxed);
            Some(compiled)
        }
        None => None,
    };
    let mut completed = prompts.complete(scope, &params, grammar, num_choices).await?;
    if let Some(avoid) = params.avoid() {
        avoid_in(scope, avoid, &mut completed.requests).await?;
    }
    Ok(completed)
}

/// Adds what outputs avoid to their grammars.
async fn avoid_in(
    scope: &Scope,
    avoid: &CheckedAvoid,
    requests: &mut [GenerationRequest],
) -> Result<(), ApiError> {
    let served = &scope.app.served;
    let asked = avoid.clone();
    let encode = move |model: &ModelText| asked.encode(model);
    let avoided = Arc::new(served.tokenize(&scope.arrival.caller, avoid.num_bytes(), encode).await?);
    let free = served.grammars.free(avoid.field).await?;
    for request in requests {
        let grammar = request.grammar.take().unwrap_or_else(|| free.clone());
        request.grammar = Some(grammar.avoiding(avoided.clone()));
    }
    Ok(())
}

/// Converts a checked call to requests without compiling its grammar, for routes that only show the prompt.
pub(crate) async fn tokenize<P: Prompts>(
    scope: &Scope,
    checked: Checked<P>,
) -> Result<Vec<GenerationRequest>, ApiError> {
    let Checked { params, num_choices, prompts, .. } = checked;
    Ok(prompts.complete(scope, &params, None, num_choices).await?.requests)
}

/// A call that passed all checks that need neither tokens nor a compiled grammar.
pub(crate) struct Checked<P> {
    pub params: CheckedParams,
    /// llama.cpp's choice of an adapter, for [`Checked::choose_scaled`].
    lora: Vec<LoraScale>,
    grammar: Option<KeyedGrammar>,
    num_choices: NumChoices,
    is_stream: bool,
    prompts: P,
}

impl<P> Checked<P> {
    /// Takes the scales of adapters into account, by their places in a list that may be read from a disk.
    pub(crate) async fn choose_scaled(mut self, scope: &Scope) -> Result<Self, ApiError> {
        let (lora, by_name) = (std::mem::take(&mut self.lora), self.params.adapter().cloned());
        let adapters = &scope.app.served.adapters;
        let adapter = adapters.choose_scaled(&scope.arrival.caller, lora, by_name).await?;
        Ok(Self { params: self.params.with_adapter(adapter), ..self })
    }
}

/// Checks everything about a call that needs neither tokens nor a compiled grammar.
pub(crate) fn check<C: Call>(scope: &Scope, call: C) -> Result<Checked<C::Prompts>, ApiError> {
    let named = call.named();
    let (adapter, lora) = (scope.app.served.choose(&scope.arrival.caller, named)?, named.lora.to_vec());
    let Asked { params, grammar, num_choices, is_stream, prompts } = call.asked(scope)?;
    let grammar_field = grammar.as_ref().map(|grammar| grammar.field);
    let params = scope.validator.check(&scope.arrival, params, grammar_field)?.with_adapter(adapter);
    let grammar = grammar.map(|grammar| grammar.keyed(&scope.arrival.caller));
    Ok(Checked { params, lora, grammar, num_choices, is_stream, prompts })
}
