//! Where in a reply's text reasoning stands, and where its content begins.

use crate::{ReasoningMarks, ReasoningStart};

/// What a part of the text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// A mark around reasoning, with the white space before the opening and behind the closing one.
    Mark,
    /// Between the marks.
    Reasoning,
    /// All behind it, or all of a text without reasoning.
    Content,
}

/// Parts the text of a reply, however it is cut. Nothing is lost: the parts together are the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sections {
    marks: ReasoningMarks,
    stage: Stage,
    /// The end of the text so far, as long as it may be of either of two sections.
    held: String,
}

/// Where in the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Before the first character that is no white space.
    Start,
    /// There, in reasoning that the prompt opened: some models open it again.
    Reopened,
    Reasoning,
    /// Behind it: white space is not content.
    AfterReasoning,
    Content,
}

impl Sections {
    /// Of a model that may reason between these marks; without a start there is content alone.
    pub fn new(start: Option<ReasoningStart>, marks: ReasoningMarks) -> Self {
        let stage = match start {
            None => Stage::Content,
            Some(ReasoningStart::InReply) => Stage::Start,
            Some(ReasoningStart::InPrompt) => Stage::Reopened,
        };
        Self { marks, stage, held: String::new() }
    }

    /// More text: gives its parts in order, those of them that are certain. None is empty.
    pub fn push(&mut self, text: &str, mut give: impl FnMut(Section, &str)) {
        let mut give = |section, part: &str| {
            if !part.is_empty() {
                give(section, part);
            }
        };
        if self.stage == Stage::Content {
            return give(Section::Content, text);
        }
        let mut held = std::mem::take(&mut self.held);
        held.push_str(text);
        let num_left = self.advance(&held, &mut give).len();
        held.drain(..held.len() - num_left);
        self.held = held;
    }

    /// There is no more: gives what was held back.
    pub fn finish(&mut self, mut give: impl FnMut(Section, &str)) {
        let held = std::mem::take(&mut self.held);
        let section = match self.stage {
            Stage::Reopened | Stage::Reasoning => Section::Reasoning,
            // White space alone, or the beginning of a mark. Behind reasoning nothing is held.
            Stage::Start | Stage::AfterReasoning | Stage::Content => Section::Content,
        };
        if !held.is_empty() {
            give(section, &held);
        }
    }

    /// Gives what is certain of the text, and returns the rest of it.
    fn advance<'a>(&mut self, text: &'a str, give: &mut impl FnMut(Section, &str)) -> &'a str {
        let (open, close) = (self.marks.open(), self.marks.close());
        let mut rest = text;
        loop {
            match self.stage {
                Stage::Start | Stage::Reopened => {
                    let begun = rest.trim_start();
                    if let Some(behind) = begun.strip_prefix(open) {
                        give(Section::Mark, &rest[..rest.len() - behind.len()]);
                        rest = behind;
                        self.stage = Stage::Reasoning;
                    } else if open.starts_with(begun) {
                        return rest;
                    } else if self.stage == Stage::Start {
                        self.stage = Stage::Content;
                    } else {
                        self.stage = Stage::Reasoning;
                    }
                }
                Stage::Reasoning => {
                    let Some(at) = rest.find(close) else {
                        let (certain, rest) = rest.split_at(rest.len() - overlap(rest, close));
                        give(Section::Reasoning, certain);
                        return rest;
                    };
                    give(Section::Reasoning, &rest[..at]);
                    give(Section::Mark, close);
                    rest = &rest[at + close.len()..];
                    self.stage = Stage::AfterReasoning;
                }
                Stage::AfterReasoning => {
                    let content = rest.trim_start();
                    give(Section::Mark, &rest[..rest.len() - content.len()]);
                    if content.is_empty() {
                        return content;
                    }
                    rest = content;
                    self.stage = Stage::Content;
                }
                Stage::Content => {
                    give(Section::Content, rest);
                    return "";
                }
            }
        }
    }
}

/// Bytes of the longest end of `text` that begins `mark` without being all of it.
pub(crate) fn overlap(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len() - 1);
    (1..=longest).rev().find(|&len| text.as_bytes().ends_with(&mark.as_bytes()[..len])).unwrap_or(0)
}
