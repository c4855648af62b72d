//! Writes a reply, whole or as a stream of lines.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use tokio::time::Instant;
use trunkline_reply::Piece;
use trunkline_text::Tokenizer;

use super::ErrorResponse;
use super::answer::{Answer, Common, Counts, Form, Part, ToolCall, done_reason};
use crate::chat::reply::{Call, Reply, ReplyPlan, ReplyReader};
use crate::openai::{ChatTokenLogprob, chat_logprobs};
use crate::pipeline::{self, Scope};
use crate::respond::ErrorForm;
use crate::stream::Render;
use trunkline_base::error::ApiError;
use trunkline_generation::fold::{Folded, KeepTokens};
use trunkline_generation::generate::{FinishReason, Output, OutputToken, Usage};
use trunkline_generation::request::checked::CheckedParams;
use trunkline_generation::request::ready::GenerationRequest;
use trunkline_http::{Events, StreamForm};

pub(crate) struct ReplyWriter {
    form: Form,
    model: String,
    reply: ReplyPlan,
    shows_logprobs: bool,
    tokenizer: Arc<Tokenizer>,
    arrived: Instant,
}

impl ReplyWriter {
    /// Creates the writer of the reply to `request`.
    pub(super) fn new(
        form: Form,
        scope: &Scope,
        params: &CheckedParams,
        request: &GenerationRequest,
        reply: ReplyPlan,
    ) -> Self {
        Self {
            form,
            model: params.model().to_owned(),
            reply,
            shows_logprobs: request.sequence.sampling.logprobs,
            tokenizer: scope.app.served.model.text.tokenizer.clone(),
            arrived: scope.arrival.at,
        }
    }

    fn answer(&self, part: Part) -> Answer<'_> {
        Answer::new(self.form, &self.model, part)
    }

    fn logprobs(&self, tokens: &[OutputToken]) -> Vec<ChatTokenLogprob> {
        if self.shows_logprobs { chat_logprobs(&self.tokenizer, tokens).content } else { Vec::new() }
    }

    fn end(
        &self,
        reason: FinishReason,
        usage: Usage,
        started: Option<Instant>,
        tokens: &[OutputToken],
    ) -> Common {
        Common {
            logprobs: self.logprobs(tokens),
            done: true,
            done_reason: Some(done_reason(reason)),
            counts: Counts::new(usage, self.arrived, started),
        }
    }
}

impl pipeline::Answer for ReplyWriter {
    type Render = ReplyStream;

    fn keeps_tokens(&self) -> KeepTokens {
        if self.shows_logprobs { KeepTokens::Yes } else { KeepTokens::No }
    }

    fn render(self) -> ReplyStream {
        let reader = self.reply.reader();
        let pending = Vec::new();
        ReplyStream { writer: self, reader, started: None, call: None, num_calls: 0, pending }
    }

    fn whole(self, mut outputs: Vec<Folded>, _usage: Usage) -> Response {
        let output = outputs.swap_remove(0);
        let common = self.end(output.reason, output.usage, output.started, &output.tokens);
        let Reply { text, reasoning, calls } = Reply::of(&self.reply, output.text, output.reason);
        let tool_calls =
            calls.into_iter().enumerate().map(|(index, call)| ToolCall::new(index, call)).collect();
        axum::Json(self.answer(Part { text, thinking: reasoning, tool_calls, common })).into_response()
    }
}

pub(crate) struct ReplyStream {
    writer: ReplyWriter,
    reader: ReplyReader,
    started: Option<Instant>,
    /// The call that is being read.
    call: Option<Call>,
    num_calls: usize,
    /// Tokens whose text is still held back; only with logprobs.
    pending: Vec<OutputToken>,
}

impl ReplyStream {
    /// Writes a line. Logprobs are sent with the first line after their tokens.
    fn line(&mut self, part: Part, events: &mut Events) {
        let logprobs = self.writer.logprobs(&std::mem::take(&mut self.pending));
        events.json(&self.writer.answer(Part { common: Common { logprobs, ..part.common }, ..part }));
    }

    fn piece(&mut self, piece: Piece, events: &mut Events) {
        match piece {
            Piece::Text(text) => self.line(Part { text, ..Part::default() }, events),
            Piece::Reasoning(thinking) => self.line(Part { thinking, ..Part::default() }, events),
            Piece::CallBegin { name } => {
                self.call = Some(Call { id: self.reader.call_id(), name, arguments: String::new() });
            }
            Piece::Arguments(text) => {
                if let Some(call) = &mut self.call {
                    call.arguments.push_str(&text);
                }
            }
            Piece::CallEnd => self.end_call(events),
        }
    }

    /// Writes the call that was read.
    fn end_call(&mut self, events: &mut Events) {
        let Some(call) = self.call.take() else { return };
        let tool_calls = vec![ToolCall::new(self.num_calls, call)];
        self.num_calls += 1;
        self.line(Part { tool_calls, ..Part::default() }, events);
    }
}

impl Render for ReplyStream {
    const FORM: StreamForm = StreamForm::Lines;

    fn started(&mut self, _index: usize, _usage: Usage, _events: &mut Events) {
        self.started = Some(Instant::now());
    }

    fn output(&mut self, _index: usize, output: Output, events: &mut Events) {
        if self.writer.shows_logprobs {
            self.pending.extend(output.token);
        }
        for piece in self.reader.read(&output.text, output.finish.is_some()) {
            self.piece(piece, events);
        }
        let Some((reason, usage)) = output.finish else { return };
        // The end of the output may have cut it off.
        self.end_call(events);
        let common = self.writer.end(reason, usage, self.started, &self.pending);
        events.json(&self.writer.answer(Part { common, ..Part::default() }));
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.json(&ErrorResponse::from_error(error));
    }
}
