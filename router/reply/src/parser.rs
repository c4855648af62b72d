//! A whole reply: reasoning first, then text and calls.

use crate::tools::ToolReader;
use crate::{Piece, Section, Sections, ToolFormat};

/// How a whole reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyEnd {
    /// By itself: what is not complete is broken.
    Stopped,
    /// By a limit, or it is not known.
    Cut,
}

/// Takes a reply's text as it comes and gives its pieces.
#[derive(Debug, Clone)]
pub struct ReplyParser {
    sections: Sections,
    tools: Option<ToolReader>,
}

impl ReplyParser {
    /// `sections`: how reasoning is parted from the content. `tools`: the form of calls and the names that may be
    /// called, if there are any.
    pub fn new(sections: Sections, tools: Option<(ToolFormat, Vec<String>)>) -> Self {
        Self { sections, tools: tools.map(|(format, names)| ToolReader::new(format, names)) }
    }

    /// The pieces of a reply that is there as a whole. They are those of its parts, but for a call whose arguments are
    /// no JSON: none of it was given, so that all of it is text. So it is if the reply stopped in arguments; where it
    /// was cut the call has what there is of them.
    #[must_use]
    pub fn whole(mut self, text: &str, end: ReplyEnd) -> Vec<Piece> {
        if let Some(tools) = &mut self.tools {
            tools.expect_whole(end);
        }
        let mut out = Vec::new();
        self.push(text, &mut out);
        self.finish(&mut out);
        out
    }

    /// More text.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        let tools = &mut self.tools;
        self.sections.push(text, |section, part| read(section, part, tools.as_mut(), out));
    }

    /// There is no more: gives what was held back.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        let tools = &mut self.tools;
        self.sections.finish(|section, part| read(section, part, tools.as_mut(), out));
        if let Some(tools) = &mut self.tools {
            tools.finish(out);
        }
    }
}

fn read(section: Section, part: &str, tools: Option<&mut ToolReader>, out: &mut Vec<Piece>) {
    match (section, tools) {
        (Section::Mark, _) => {}
        (Section::Reasoning, _) => give(part, Piece::Reasoning, out),
        (Section::Content, Some(tools)) => tools.push(part, out),
        (Section::Content, None) => give(part, Piece::Text, out),
    }
}

/// A piece, unless it is empty.
pub(crate) fn give(text: &str, piece: fn(String) -> Piece, out: &mut Vec<Piece>) {
    if !text.is_empty() {
        out.push(piece(text.to_owned()));
    }
}
