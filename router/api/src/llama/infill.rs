//! The handler of `/infill`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use trunkline_text::{Infill, InfillFile};

use super::types::{Answer, Body, ExtraFile};
use crate::app::App;
use crate::openai::{ErrorResponse, foreign};
use crate::pipeline::{self, Asked, Call, Completed, Prompts, Scope};
use crate::respond::{self, ErrorForm};
use crate::stream::Render;
use trunkline_base::error::ApiError;
use trunkline_generation::adapters::Named;
use trunkline_generation::fold::{Folded, KeepTokens};
use trunkline_generation::generate::{FinishReason, Output, Usage};
use trunkline_generation::grammars::CompiledGrammar;
use trunkline_generation::request::checked::{CheckedParams, NumChoices};
use trunkline_generation::request::raw::FieldNames;
use trunkline_generation::request::ready;
use trunkline_http::{Events, IgnoredFields, OtherFields, Refused, parse_noting};

const NAMES: FieldNames = FieldNames {
    max_new_tokens: "n_predict",
    min_tokens: "min_tokens",
    top_logprobs: "n_probs",
    prompt: "input_prefix",
    stop: "stop",
};

/// The name of a file that has none, as in llama.cpp.
const UNNAMED: &str = "tmp";

/// Fields that are refused, because ignoring them would change the answer.
const REFUSED: &[Refused] = &[
    Refused { field: "n_probs", neutral: &["0"], hint: "use `suffix` of /v1/completions" },
    Refused { field: "n", neutral: &["1"], hint: "use `suffix` of /v1/completions" },
    Refused { field: "n_cmpl", neutral: &["1"], hint: "use `suffix` of /v1/completions" },
    Refused { field: "max_tokens", neutral: &[], hint: "use `n_predict`" },
    Refused { field: "echo", neutral: &["false"], hint: "leave it out" },
    Refused { field: "continue_final_message", neutral: &["false"], hint: "use /v1/chat/completions" },
    Refused { field: "reasoning_budget_tokens", neutral: &["-1"], hint: "use /v1/chat/completions" },
];
/// Fields that llama.vim always sends, so that refusing them would refuse the editor. They are treated as unknown: the
/// answer names them as ignored.
const NOTED: [&str; 3] = ["samplers", "n_indent", "t_max_predict_ms"];
const HARMLESS: [&str; 2] = ["response_fields", "stream_options"];

/// Generates the text between a prefix and a suffix, by the model's fill-in-the-middle tokens, whole or as events. Part
/// of llama.cpp's API.
#[utoipa::path(
    post, path = "/infill", request_body = Body,
    responses(
        (status = 200, description = "The output; a stream of such objects if `stream` is true", body = Answer),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn infill(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(pipeline::answer::<_, ErrorResponse>(&app, request, parse_body).await)
}

fn parse_body(body: &[u8], ignored: &mut IgnoredFields) -> Result<Body, ApiError> {
    let is_own = |field: &str| NOTED.contains(&field) || HARMLESS.contains(&field);
    let foreign = foreign::REFUSED.iter().filter(|refused| refused.field != "return_tokens");
    let refused: Vec<Refused> =
        REFUSED.iter().chain(foreign.filter(|refused| !is_own(refused.field))).copied().collect();
    let harmless = [&HARMLESS[..], foreign::HARMLESS].concat();
    parse_noting(body, OtherFields { refused: &refused, harmless: &harmless }, "", ignored)
}

impl Call for Body {
    type Prompts = Gap;

    fn named(&self) -> Named<'_> {
        self.names()
    }

    fn asked(mut self, _: &Scope) -> Result<Asked<Gap>, ApiError> {
        let mut params = self.generation_params()?;
        params.names = NAMES;
        params.max_new_tokens = self.n_predict.filter(|asked| *asked != -1);
        let grammar = self.structured().grammar()?;
        let file = |ExtraFile { filename, text }| InfillFile {
            name: filename.unwrap_or_else(|| UNNAMED.to_owned()),
            text,
        };
        let files = self.input_extra.unwrap_or_default().into_iter().map(file).collect();
        let is_stream = self.stream == Some(true);
        let shown = Shown {
            tokens: is_stream || self.return_tokens == Some(true),
            timings: self.timings_per_token == Some(true),
            stops: params.stops.clone(),
        };
        let infill = Infill {
            prefix: self.input_prefix,
            suffix: self.input_suffix,
            middle: self.prompt.unwrap_or_default(),
            files,
        };
        Ok(Asked { params, grammar, num_choices: NumChoices::ONE, is_stream, prompts: Gap { infill, shown } })
    }
}

/// A text to fill in.
pub(crate) struct Gap {
    infill: Infill,
    shown: Shown,
}

/// The optional parts of an answer.
struct Shown {
    tokens: bool,
    /// True if pieces before the last one have `timings`.
    timings: bool,
    stops: Vec<String>,
}

impl Prompts for Gap {
    type Answer = InfillAnswer;

    async fn complete(
        self,
        scope: &Scope,
        params: &CheckedParams,
        grammar: Option<CompiledGrammar>,
        _: NumChoices,
    ) -> Result<Completed<InfillAnswer>, ApiError> {
        let Self { infill, shown } = self;
        let num_bytes = infill.num_bytes();
        let encode = move |model: &_| ready::Prompt::infill(model, &infill, "input_suffix");
        let served = &scope.app.served;
        let prompt = served.tokenize(&scope.arrival.caller, num_bytes, encode).await?;
        let request = params.with_prompt(ready::Prompt { grammar, ..prompt })?;
        let answer = InfillAnswer { shown, model: params.model().to_owned() };
        Ok(Completed { requests: vec![request], answer })
    }
}

pub(crate) struct InfillAnswer {
    shown: Shown,
    model: String,
}

impl InfillAnswer {
    /// Returns a piece that is not the last.
    fn piece<'a>(content: &'a str, tokens: Vec<u32>, usage: &Usage) -> Answer<'a> {
        Answer {
            content,
            tokens,
            tokens_predicted: usage.output_tokens,
            tokens_evaluated: usage.prompt_tokens,
            ..Answer::default()
        }
    }

    /// Adds what only the last piece has.
    fn last<'a>(
        &'a self,
        piece: Answer<'a>,
        reason: FinishReason,
        has_new_line: bool,
        usage: Usage,
    ) -> Answer<'a> {
        let (stop_type, stopping_word) = match reason {
            FinishReason::EndToken | FinishReason::StopToken { .. } => ("eos", ""),
            FinishReason::Length => ("limit", ""),
            FinishReason::StopString { index } => {
                ("word", self.shown.stops.get(index).map_or("", String::as_str))
            }
        };
        Answer {
            stop: true,
            model: Some(&self.model),
            tokens_cached: Some(usage.cached_tokens),
            truncated: Some(false),
            has_new_line: Some(has_new_line),
            stop_type: Some(stop_type),
            stopping_word: Some(stopping_word),
            timings: Some(usage.into()),
            ..piece
        }
    }
}

impl pipeline::Answer for InfillAnswer {
    type Render = InfillStream;

    fn keeps_tokens(&self) -> KeepTokens {
        if self.shown.tokens { KeepTokens::Yes } else { KeepTokens::No }
    }

    fn render(self) -> InfillStream {
        InfillStream { answer: self, pending: Vec::new(), has_new_line: false }
    }

    fn whole(self, outputs: Vec<Folded>, usage: Usage) -> Response {
        let output = &outputs[0];
        let tokens = output.tokens.iter().map(|token| token.id).collect();
        let piece = Self::piece(&output.text, tokens, &usage);
        axum::Json(self.last(piece, output.reason, output.text.contains('\n'), usage)).into_response()
    }
}

pub(crate) struct InfillStream {
    answer: InfillAnswer,
    /// Tokens whose text is still held back.
    pending: Vec<u32>,
    /// True once a piece had a line break.
    has_new_line: bool,
}

impl Render for InfillStream {
    fn output(&mut self, _: usize, output: Output, events: &mut Events) {
        self.pending.extend(output.token.map(|token| token.id));
        if output.text.is_empty() && output.finish.is_none() {
            return;
        }
        self.has_new_line |= output.text.contains('\n');
        let tokens = std::mem::take(&mut self.pending);
        let piece = InfillAnswer::piece(&output.text, tokens, &output.so_far);
        events.json(&match output.finish {
            Some((reason, _)) => self.answer.last(piece, reason, self.has_new_line, output.so_far),
            None => Answer { timings: self.answer.shown.timings.then(|| output.so_far.into()), ..piece },
        });
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.json(&ErrorResponse::from_error(error));
    }
}
