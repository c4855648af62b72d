//! A whole reply: reasoning first, then text and calls.

use crate::tools::ToolReader;
use crate::{Piece, ReasoningMarks, ReasoningStart, ToolFormat};

/// Where in the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Before the first character that is no white space.
    Start,
    /// There, in reasoning that the prompt opened: some models open it again.
    Reopened,
    /// In reasoning.
    Reasoning,
    /// After it: white space is left out.
    AfterReasoning,
    /// Text and calls.
    Content,
}

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
    stage: Stage,
    marks: ReasoningMarks,
    /// Text that is not given yet, before `Content`.
    held: String,
    tools: Option<ToolReader>,
}

impl ReplyParser {
    /// `reasoning`: where it begins, if the model is known to reason. `tools`: the form of calls and the names that may
    /// be called, if there are any.
    pub fn new(reasoning: Option<ReasoningStart>, tools: Option<(ToolFormat, Vec<String>)>) -> Self {
        let stage = match reasoning {
            None => Stage::Content,
            Some(ReasoningStart::InReply) => Stage::Start,
            Some(ReasoningStart::InPrompt) => Stage::Reopened,
        };
        let tools = tools.map(|(format, names)| ToolReader::new(format, names));
        Self { stage, marks: ReasoningMarks::default(), held: String::new(), tools }
    }

    /// Before the first text: reasoning has these marks, and not `<think>` and `</think>`.
    #[must_use]
    pub fn with_marks(self, marks: ReasoningMarks) -> Self {
        Self { marks, ..self }
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
        if self.stage == Stage::Content {
            self.content(text, out);
            return;
        }
        self.held.push_str(text);
        self.advance(out);
    }

    /// There is no more: gives what was held back.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held);
        match self.stage {
            Stage::Reopened | Stage::Reasoning => give(&held, Piece::Reasoning, out),
            // White space alone, or the beginning of a mark.
            Stage::Start | Stage::Content => self.content(&held, out),
            Stage::AfterReasoning => {}
        }
        if let Some(tools) = &mut self.tools {
            tools.finish(out);
        }
    }

    fn content(&mut self, text: &str, out: &mut Vec<Piece>) {
        match &mut self.tools {
            Some(tools) => tools.push(text, out),
            None => give(text, Piece::Text, out),
        }
    }

    fn advance(&mut self, out: &mut Vec<Piece>) {
        let (open, close) = (self.marks.open(), self.marks.close());
        loop {
            match self.stage {
                Stage::Start | Stage::Reopened => {
                    let begun = self.held.trim_start();
                    if let Some(rest) = begun.strip_prefix(open) {
                        self.held = rest.to_owned();
                        self.stage = Stage::Reasoning;
                    } else if open.starts_with(begun) {
                        return;
                    } else if self.stage == Stage::Start {
                        self.stage = Stage::Content;
                    } else {
                        self.stage = Stage::Reasoning;
                    }
                }
                Stage::Reasoning => match self.held.find(close) {
                    Some(at) => {
                        give(&self.held[..at], Piece::Reasoning, out);
                        self.held.drain(..at + close.len());
                        self.stage = Stage::AfterReasoning;
                    }
                    None => {
                        let certain = self.held.len() - overlap(&self.held, close);
                        give(&self.held[..certain], Piece::Reasoning, out);
                        self.held.drain(..certain);
                        return;
                    }
                },
                Stage::AfterReasoning => {
                    let rest = self.held.trim_start();
                    if rest.is_empty() {
                        self.held.clear();
                        return;
                    }
                    self.held = rest.to_owned();
                    self.stage = Stage::Content;
                }
                Stage::Content => {
                    let held = std::mem::take(&mut self.held);
                    self.content(&held, out);
                    return;
                }
            }
        }
    }
}

/// A piece, unless it is empty.
pub(crate) fn give(text: &str, piece: fn(String) -> Piece, out: &mut Vec<Piece>) {
    if !text.is_empty() {
        out.push(piece(text.to_owned()));
    }
}

/// Bytes of the longest end of `text` that begins `mark` without being all of it.
pub(crate) fn overlap(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len() - 1);
    (1..=longest).rev().find(|&len| text.as_bytes().ends_with(&mark.as_bytes()[..len])).unwrap_or(0)
}
