//! Separates replies of the served model into text, reasoning and calls.

use trunkline_reply::{
    Piece, ReasoningMarks, ReasoningStart, ReplyEnd, ReplyParser, Sections, Signature, ToolFormat,
};
use trunkline_text::Tokenizer;

use super::call_ids;
use super::tools::Tools;
use trunkline_generation::generate::FinishReason;
use trunkline_generation::model::{CallIds, ReplyStyle};

/// The settings for reading the replies to one request.
#[derive(Debug, Clone, Default)]
pub struct ReplyPlan {
    reasoning: Option<ReasoningStart>,
    marks: ReasoningMarks,
    tools: Option<(ToolFormat, Vec<Signature>)>,
    hides_reasoning: bool,
    /// If true, calls after the first are left out of the answer.
    has_one_call: bool,
    /// If true, a grammar constrains the text after the reasoning.
    is_constrained: bool,
    call_ids: CallIds,
    /// The beginning of call ids in the request's dialect.
    id_prefix: &'static str,
}

impl ReplyPlan {
    /// Creates the plan for an unconstrained reply. `reasoning` is the place where reasoning begins, if there may be
    /// any.
    pub fn new(
        style: ReplyStyle,
        tools: &Tools,
        reasoning: Option<ReasoningStart>,
        hides_reasoning: bool,
    ) -> Self {
        let reads_calls = tools.must_call() || !style.ignores_calls;
        let callable = if reads_calls { tools.signatures() } else { Vec::new() };
        let format = if tools.must_call() {
            style.required_calls()
        } else {
            style.tools.unwrap_or(ToolFormat::HERMES)
        };
        let has_one_call = !tools.is_parallel();
        Self {
            reasoning,
            marks: style.marks,
            tools: (!callable.is_empty()).then_some((format, callable)),
            hides_reasoning,
            has_one_call,
            is_constrained: false,
            call_ids: style.call_ids,
            id_prefix: tools.id_prefix(),
        }
    }

    /// Creates the plan for a reply whose text after the reasoning is constrained by a grammar. Such a reply has calls
    /// if they are required, or marked.
    pub fn constrained(
        style: ReplyStyle,
        tools: &Tools,
        reasoning: Option<ReasoningStart>,
        hides_reasoning: bool,
    ) -> Self {
        let required = tools.must_call().then(|| style.required_calls());
        let format = required.or_else(|| tools.calls_beside_format(style));
        let calls = format.map(|format| (format, tools.signatures()));
        let plan = Self::new(style, tools, reasoning, hides_reasoning);
        Self { tools: calls, is_constrained: true, ..plan }
    }

    /// Returns the control tokens whose text the parser needs.
    pub fn shown_token_ids(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let ids = self.shown_marks().into_iter().filter_map(|mark| tokenizer.token_id(mark));
        ids.filter(|id| tokenizer.is_special(*id)).collect()
    }

    /// Returns the marks that the parser looks for.
    pub fn shown_marks(&self) -> Vec<&'static str> {
        let mut marks = Vec::new();
        if self.reasoning.is_some() {
            marks.extend(self.marks.shown());
        }
        if let Some((format, _)) = &self.tools {
            marks.extend(format.opening_marks().iter().chain(format.inner_marks()));
        }
        marks
    }

    /// Returns the tracker that separates reasoning from content.
    pub fn sections(&self) -> Sections {
        let new = if self.is_constrained { Sections::constrained } else { Sections::new };
        new(self.reasoning, self.marks)
    }

    pub fn reader(&self) -> ReplyReader {
        let is_plain =
            self.reasoning.is_none() && self.tools.is_none() && self.marks.around_content().is_empty();
        ReplyReader {
            parser: (!is_plain).then(|| ReplyParser::new(self.sections(), self.tools.clone())),
            hides_reasoning: self.hides_reasoning,
            has_one_call: self.has_one_call,
            num_calls: 0,
            call_ids: self.call_ids,
            id_prefix: self.id_prefix,
        }
    }
}

/// Reads one reply incrementally.
#[derive(Debug, Clone)]
pub struct ReplyReader {
    /// `None` if the whole reply is plain text.
    parser: Option<ReplyParser>,
    hides_reasoning: bool,
    has_one_call: bool,
    num_calls: usize,
    call_ids: CallIds,
    id_prefix: &'static str,
}

impl ReplyReader {
    /// Returns an id for a new call.
    pub fn call_id(&self) -> String {
        call_ids::new_id(self.id_prefix, self.call_ids)
    }

    /// Returns true if the whole reply is plain text, which needs no reading.
    pub fn is_plain(&self) -> bool {
        self.parser.is_none()
    }

    /// Returns the pieces of more text. If `is_last` is true, they include text that was held back.
    pub fn read(&mut self, text: &str, is_last: bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        match &mut self.parser {
            None if text.is_empty() => {}
            None => pieces.push(Piece::Text(text.to_owned())),
            Some(parser) => {
                parser.push(text, &mut pieces);
                if is_last {
                    parser.finish(&mut pieces);
                }
            }
        }
        self.shown(pieces)
    }

    /// Returns the pieces of a complete reply.
    fn whole(mut self, text: &str, end: ReplyEnd) -> Vec<Piece> {
        let pieces = self.parser.take().map(|parser| parser.parse_complete(text, end)).unwrap_or_default();
        self.shown(pieces)
    }

    /// Removes the pieces that are left out of the answer.
    fn shown(&mut self, mut pieces: Vec<Piece>) -> Vec<Piece> {
        if self.hides_reasoning {
            pieces.retain(|piece| !matches!(piece, Piece::Reasoning(_)));
        }
        if self.has_one_call {
            pieces.retain(|piece| {
                self.num_calls += usize::from(matches!(piece, Piece::CallBegin { .. }));
                self.num_calls <= 1 || matches!(piece, Piece::Text(_) | Piece::Reasoning(_))
            });
        }
        pieces
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub id: String,
    pub name: String,
    /// The arguments as JSON text.
    pub arguments: String,
}

/// A complete reply, separated into its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    pub text: String,
    pub reasoning: String,
    pub calls: Vec<Call>,
}

impl Reply {
    /// Reads the complete text of a reply that ended for `reason`.
    pub fn of(plan: &ReplyPlan, text: String, reason: FinishReason) -> Self {
        let end = match reason {
            FinishReason::EndToken | FinishReason::StopToken { .. } => ReplyEnd::Stopped,
            FinishReason::StopString { .. } | FinishReason::Length => ReplyEnd::Cut,
        };
        let reader = plan.reader();
        if reader.is_plain() {
            return Self { text, ..Self::default() };
        }
        let mut reply = Self::default();
        let call_id = || call_ids::new_id(plan.id_prefix, plan.call_ids);
        for piece in reader.whole(&text, end) {
            match piece {
                Piece::Text(text) => reply.text.push_str(&text),
                Piece::Reasoning(text) => reply.reasoning.push_str(&text),
                Piece::CallBegin { name } => {
                    reply.calls.push(Call { id: call_id(), name, arguments: String::new() });
                }
                Piece::Arguments(text) => {
                    if let Some(call) = reply.calls.last_mut() {
                        call.arguments.push_str(&text);
                    }
                }
                Piece::CallEnd => {}
            }
        }
        reply
    }
}
