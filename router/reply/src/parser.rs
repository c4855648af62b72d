//! The parser of a whole reply: reasoning, text and calls.

use crate::formats::ToolFormat;
use crate::marks::Section;
use crate::piece::{Piece, push_nonempty};
use crate::sections::Sections;
use crate::signature::Signature;
use crate::tool_calls::{ReplyEnd, ToolCallParser};

/// Splits a reply into pieces while its text arrives.
#[derive(Debug, Clone)]
pub struct ReplyParser {
    sections: Sections,
    calls: Calls,
}

/// The parsers of calls, where a reply may have any.
#[derive(Debug, Clone, Default)]
struct Calls {
    in_content: Option<ToolCallParser>,
    in_reasoning: Option<ToolCallParser>,
}

impl ReplyParser {
    /// Creates a parser that finds reasoning with `sections` and calls in the format and of the tools in `tools`.
    ///
    /// A call in reasoning is a call if the format has a mark for it. In a reply whose content follows a grammar it is
    /// reasoning, because the content after it is the reply that the grammar promises, and its calls are those.
    pub fn new(sections: Sections, tools: Option<(ToolFormat, Vec<Signature>)>) -> Self {
        let calls = tools.map(|(format, tools)| Calls {
            in_reasoning: ToolCallParser::in_reasoning(format, tools.clone())
                .filter(|_| !sections.are_constrained()),
            in_content: Some(ToolCallParser::new(format, tools)),
        });
        Self { sections, calls: calls.unwrap_or_default() }
    }

    /// Parses a complete reply.
    ///
    /// The pieces are those of the same text streamed, except where a call's arguments are not valid JSON: the whole
    /// call is then text, because none of it has been sent yet. If the reply stopped inside a call's arguments, that
    /// call is text too; if it was cut there, the call has the arguments received so far.
    #[must_use]
    pub fn parse_complete(mut self, text: &str, end: ReplyEnd) -> Vec<Piece> {
        let Calls { in_content, in_reasoning } = &mut self.calls;
        in_content.iter_mut().chain(in_reasoning).for_each(|calls| calls.expect_complete_reply(end));
        let mut out = Vec::new();
        self.push(text, &mut out);
        self.finish(&mut out);
        out
    }

    /// Parses the next chunk of text and appends the pieces that are certain.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        let calls = &mut self.calls;
        self.sections.push(text, |section, part| calls.parse_section(section, part, out));
    }

    /// Ends the reply and appends the pieces of the text that was held back.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        let calls = &mut self.calls;
        self.sections.finish(|section, part| calls.parse_section(section, part, out));
        self.calls.finish(out);
    }
}

impl Calls {
    fn parse_section(&mut self, section: Section, part: &str, out: &mut Vec<Piece>) {
        match section {
            // What precedes a mark does not continue behind it.
            Section::Mark => self.finish(out),
            Section::Reasoning => match &mut self.in_reasoning {
                Some(calls) => as_reasoning(out, |out| calls.push(part, out)),
                None => push_nonempty(part, Piece::Reasoning, out),
            },
            Section::Content => match &mut self.in_content {
                Some(calls) => calls.push(part, out),
                None => push_nonempty(part, Piece::Text, out),
            },
        }
    }

    fn finish(&mut self, out: &mut Vec<Piece>) {
        if let Some(calls) = &mut self.in_reasoning {
            as_reasoning(out, |out| calls.finish(out));
        }
        if let Some(calls) = &mut self.in_content {
            calls.finish(out);
        }
    }
}

/// Runs `parse` on reasoning, so that the text among its pieces is reasoning.
fn as_reasoning(out: &mut Vec<Piece>, parse: impl FnOnce(&mut Vec<Piece>)) {
    let begin = out.len();
    parse(out);
    for piece in &mut out[begin..] {
        if let Piece::Text(text) = piece {
            *piece = Piece::Reasoning(std::mem::take(text));
        }
    }
}
