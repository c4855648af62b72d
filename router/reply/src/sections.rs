//! Separates the reasoning of a reply from its content.

use crate::channels::Channels;
use crate::marks::{Section, first_mark, held_len, mark_prefix_len};
use crate::reasoning::{ReasoningMarks, ReasoningStart};

/// Splits the text of a reply into sections, wherever it is cut. The parts concatenated are the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sections {
    marks: ReasoningMarks,
    stage: Stage,
    /// True if no message follows the first one that is content, whatever marks its text spells.
    content_is_last: bool,
    /// The end of the text so far, while it may belong to either of two sections.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Before the first character that is not white space.
    Start,
    /// The same, in reasoning that the prompt opened. Some models write the opening mark again.
    StartInReasoning,
    Reasoning,
    /// After the closing mark, where white space belongs to the mark.
    AfterReasoning,
    Content,
    Channels(Channels),
}

impl Sections {
    /// Creates a splitter. If `start` is `None`, the whole reply is content.
    pub fn new(start: Option<ReasoningStart>, marks: ReasoningMarks) -> Self {
        let stage = match (start, marks) {
            (None, _) => Stage::Content,
            (Some(ReasoningStart::InReply), ReasoningMarks::Harmony) => Stage::Channels(Channels::Header),
            (Some(ReasoningStart::InPrompt), ReasoningMarks::Harmony) => {
                Stage::Channels(Channels::Body(Section::Reasoning))
            }
            (Some(ReasoningStart::InReply), _) => Stage::Start,
            (Some(ReasoningStart::InPrompt), _) => Stage::StartInReasoning,
        };
        Self { marks, stage, content_is_last: false, held: String::new() }
    }

    /// Creates a splitter for a reply whose content follows a grammar, so no marks end it.
    pub fn constrained(start: Option<ReasoningStart>, marks: ReasoningMarks) -> Self {
        Self { content_is_last: true, ..Self::new(start, marks) }
    }

    /// Returns true if the content follows a grammar.
    pub(crate) fn are_constrained(&self) -> bool {
        self.content_is_last
    }

    /// Splits the next chunk of text, and calls `emit` for each part whose section is certain. No part is empty.
    pub fn push(&mut self, text: &str, mut emit: impl FnMut(Section, &str)) {
        let mut emit = |section, part: &str| {
            if !part.is_empty() {
                emit(section, part);
            }
        };
        if self.stage == Stage::Content && self.content_marks().is_empty() {
            return emit(Section::Content, text);
        }
        let mut held = std::mem::take(&mut self.held);
        held.push_str(text);
        let num_left = self.advance(&held, &mut emit).len();
        held.drain(..held.len() - num_left);
        self.held = held;
    }

    /// Ends the reply, and calls `emit` for the text that was held back.
    pub fn finish(&mut self, mut emit: impl FnMut(Section, &str)) {
        let held = std::mem::take(&mut self.held);
        let section = match self.stage {
            Stage::StartInReasoning | Stage::Reasoning => Section::Reasoning,
            // The held text is white space or the beginning of a mark. Nothing is held after reasoning.
            Stage::Start | Stage::AfterReasoning | Stage::Content => Section::Content,
            Stage::Channels(channels) => channels.held_section(),
        };
        if !held.is_empty() {
            emit(section, &held);
        }
    }

    /// Returns the marks that the content may have around it.
    fn content_marks(&self) -> &'static [&'static str] {
        if self.content_is_last { &[] } else { self.marks.around_content() }
    }

    /// Emits the parts of `text` that are certain, and returns the rest.
    fn advance<'a>(&mut self, text: &'a str, emit: &mut impl FnMut(Section, &str)) -> &'a str {
        let (open, close) = (self.marks.open(), self.marks.close());
        let mut rest = text;
        loop {
            match &mut self.stage {
                Stage::Channels(channels) => {
                    rest = channels.advance(rest, self.content_is_last, emit);
                    if !self.content_is_last || *channels != Channels::Body(Section::Content) {
                        return rest;
                    }
                    self.stage = Stage::Content;
                }
                Stage::Start | Stage::StartInReasoning => {
                    let trimmed = rest.trim_start();
                    if let Some(after) = trimmed.strip_prefix(open) {
                        emit(Section::Mark, &rest[..rest.len() - after.len()]);
                        rest = after;
                        self.stage = Stage::Reasoning;
                    } else if open.starts_with(trimmed) {
                        return rest;
                    } else if self.stage == Stage::Start {
                        self.stage = Stage::Content;
                    } else {
                        self.stage = Stage::Reasoning;
                    }
                }
                Stage::Reasoning => {
                    let Some(at) = rest.find(close) else {
                        let (certain, rest) = rest.split_at(rest.len() - mark_prefix_len(rest, close));
                        emit(Section::Reasoning, certain);
                        return rest;
                    };
                    emit(Section::Reasoning, &rest[..at]);
                    emit(Section::Mark, close);
                    rest = &rest[at + close.len()..];
                    self.stage = Stage::AfterReasoning;
                }
                Stage::AfterReasoning => {
                    let content = rest.trim_start();
                    emit(Section::Mark, &rest[..rest.len() - content.len()]);
                    if content.is_empty() {
                        return content;
                    }
                    rest = content;
                    self.stage = Stage::Content;
                }
                Stage::Content => {
                    let marks = self.content_marks();
                    let Some((at, mark)) = first_mark(rest, marks) else {
                        let (certain, held) = rest.split_at(rest.len() - held_len(rest, marks));
                        emit(Section::Content, certain);
                        return held;
                    };
                    emit(Section::Content, &rest[..at]);
                    emit(Section::Mark, mark);
                    rest = &rest[at + mark.len()..];
                }
            }
        }
    }
}
