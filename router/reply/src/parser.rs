//! The parser of a whole reply: reasoning, text and calls.

use crate::formats::ToolFormat;
use crate::piece::{Piece, push_nonempty};
use crate::sections::{Section, Sections};
use crate::signature::Signature;
use crate::tool_calls::{ReplyEnd, ToolCallParser};

/// Splits a reply into pieces while its text arrives.
#[derive(Debug, Clone)]
pub struct ReplyParser {
    sections: Sections,
    tools: Option<ToolCallParser>,
}

impl ReplyParser {
    /// Creates a parser that finds reasoning with `sections` and calls in the format and of the tools in `tools`.
    pub fn new(sections: Sections, tools: Option<(ToolFormat, Vec<Signature>)>) -> Self {
        Self { sections, tools: tools.map(|(format, tools)| ToolCallParser::new(format, tools)) }
    }

    /// Parses a complete reply.
    ///
    /// The pieces are those of the same text streamed, except where a call's arguments are not valid JSON: the whole
    /// call is then text, because none of it has been sent yet. If the reply stopped inside a call's arguments, that
    /// call is text too; if it was cut there, the call has the arguments received so far.
    #[must_use]
    pub fn parse_complete(mut self, text: &str, end: ReplyEnd) -> Vec<Piece> {
        if let Some(tools) = &mut self.tools {
            tools.expect_complete_reply(end);
        }
        let mut out = Vec::new();
        self.push(text, &mut out);
        self.finish(&mut out);
        out
    }

    /// Parses the next chunk of text and appends the pieces that are certain.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        let tools = &mut self.tools;
        self.sections.push(text, |section, part| parse_section(section, part, tools.as_mut(), out));
    }

    /// Ends the reply and appends the pieces of the text that was held back.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        let tools = &mut self.tools;
        self.sections.finish(|section, part| parse_section(section, part, tools.as_mut(), out));
        if let Some(tools) = &mut self.tools {
            tools.finish(out);
        }
    }
}

fn parse_section(section: Section, part: &str, tools: Option<&mut ToolCallParser>, out: &mut Vec<Piece>) {
    match (section, tools) {
        // What precedes a mark does not continue behind it.
        (Section::Mark, Some(tools)) => tools.finish(out),
        (Section::Mark, None) => {}
        (Section::Reasoning, _) => push_nonempty(part, Piece::Reasoning, out),
        (Section::Content, Some(tools)) => tools.push(part, out),
        (Section::Content, None) => push_nonempty(part, Piece::Text, out),
    }
}
