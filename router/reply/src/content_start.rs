//! Where a reply's content begins, in its text as it was written.

use crate::parser::overlap;
use crate::{ReasoningMarks, ReasoningStart};

/// Parts the text of a reply into what comes before its content (reasoning, its marks and the white space around them)
/// and the content, however the text is cut. Nothing is lost: both together are the text.
///
/// [`crate::ReplyParser`] says what the reply means; this says where it begins to be one, for what looks at the text
/// itself, as stop strings do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentStart {
    marks: ReasoningMarks,
    stage: Stage,
    /// Text that may yet be of either part; in reasoning the end of what was given, as long as it may begin the mark.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Before the first character that is no white space.
    Start,
    Reasoning,
    /// Behind it: white space is not content.
    AfterReasoning,
    Content,
}

/// What a piece of text is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parted {
    /// Comes before the content.
    pub before: String,
    /// The content.
    pub content: String,
}

impl ContentStart {
    /// Of a model that may reason between these marks.
    pub fn new(start: ReasoningStart, marks: ReasoningMarks) -> Self {
        let stage = match start {
            ReasoningStart::InReply => Stage::Start,
            ReasoningStart::InPrompt => Stage::Reasoning,
        };
        Self { marks, stage, held: String::new() }
    }

    /// More text.
    pub fn push(&mut self, text: &str) -> Parted {
        let mut parted = Parted::default();
        if self.stage == Stage::Content {
            parted.content.push_str(text);
            return parted;
        }
        let mut rest = text;
        while !rest.is_empty() {
            rest = match self.stage {
                Stage::Start => self.start(rest, &mut parted),
                Stage::Reasoning => self.reasoning(rest, &mut parted),
                Stage::AfterReasoning => {
                    let content = rest.trim_start();
                    parted.before.push_str(&rest[..rest.len() - content.len()]);
                    if !content.is_empty() {
                        self.stage = Stage::Content;
                    }
                    content
                }
                Stage::Content => {
                    parted.content.push_str(rest);
                    ""
                }
            };
        }
        parted
    }

    /// There is no more: what was held back.
    pub fn finish(&mut self) -> Parted {
        let held = std::mem::take(&mut self.held);
        match self.stage {
            Stage::Start => Parted { content: held, ..Parted::default() },
            // Given already.
            Stage::Reasoning | Stage::AfterReasoning | Stage::Content => Parted::default(),
        }
    }

    /// Takes all of `rest`, or gives back what is behind the opening mark.
    fn start<'a>(&mut self, rest: &'a str, parted: &mut Parted) -> &'a str {
        let num_held = self.held.len();
        self.held.push_str(rest);
        let begun = self.held.trim_start();
        let end = self.held.len() - begun.len() + self.marks.open().len();
        if begun.starts_with(self.marks.open()) {
            self.held.truncate(end);
            parted.before.push_str(&std::mem::take(&mut self.held));
            self.stage = Stage::Reasoning;
            // It was not whole before, so that it ends in `rest`.
            return &rest[end - num_held..];
        }
        if !self.marks.open().starts_with(begun) {
            parted.content.push_str(&std::mem::take(&mut self.held));
            self.stage = Stage::Content;
        }
        ""
    }

    /// Takes all of `rest`, or gives back what is behind the closing mark.
    fn reasoning<'a>(&mut self, rest: &'a str, parted: &mut Parted) -> &'a str {
        let num_held = self.held.len();
        self.held.push_str(rest);
        let Some(at) = self.held.find(self.marks.close()) else {
            self.held = self.held.split_off(self.held.len() - overlap(&self.held, self.marks.close()));
            parted.before.push_str(rest);
            return "";
        };
        // It was not whole before, so that it ends in `rest`.
        let (before, behind) = rest.split_at(at + self.marks.close().len() - num_held);
        parted.before.push_str(before);
        self.held.clear();
        self.stage = Stage::AfterReasoning;
        behind
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Piece, ReplyParser};

    fn parted(start: ReasoningStart, cuts: &[&str]) -> (String, String) {
        let mut content_start = ContentStart::new(start, ReasoningMarks::Think);
        let (mut before, mut content) = (String::new(), String::new());
        for cut in cuts {
            let parted = content_start.push(cut);
            before += &parted.before;
            assert!(parted.before.is_empty() || content.is_empty(), "in this order");
            content += &parted.content;
        }
        let rest = content_start.finish();
        (before + &rest.before, content + &rest.content)
    }

    #[test]
    fn content_begins_behind_reasoning_if_there_is_any() {
        for (start, text, content) in [
            (ReasoningStart::InReply, "<think>\nso</think>\n\nHello", "Hello"),
            (ReasoningStart::InReply, " \n<think></think>Hello", "Hello"),
            (ReasoningStart::InReply, " Hello </think> x", " Hello </think> x"),
            (ReasoningStart::InReply, " <thi", " <thi"),
            (ReasoningStart::InReply, "<think>never ends </thin", ""),
            (ReasoningStart::InPrompt, "so</think> \n Hello", "Hello"),
            (ReasoningStart::InPrompt, "Hello", ""),
            (ReasoningStart::InPrompt, "so</think>\n", ""),
        ] {
            let before = text.strip_suffix(content).expect("the content is its end");
            assert_eq!(parted(start, &[text]), (before.to_owned(), content.to_owned()), "{text:?}");
        }
    }

    fn cut(text: &str, mut places: Vec<usize>) -> Vec<&str> {
        places.iter_mut().for_each(|place| {
            *place %= text.len() + 1;
            while !text.is_char_boundary(*place) {
                *place -= 1;
            }
        });
        places.extend([0, text.len()]);
        places.sort_unstable();
        places.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect()
    }

    proptest! {
        #[test]
        fn cuts_change_nothing_and_the_parser_agrees(
            in_prompt: bool,
            text in "(<think>|</think>|</|<|think>|\n| |é|a){0,12}",
            places in prop::collection::vec(0usize..100, 0..8),
        ) {
            let start = if in_prompt { ReasoningStart::InPrompt } else { ReasoningStart::InReply };
            let (before, content) = parted(start, &cut(&text, places));
            prop_assert_eq!(format!("{before}{content}"), text.clone());
            let (mut parser, mut pieces) = (ReplyParser::new(Some(start), None), Vec::new());
            parser.push(&text, &mut pieces);
            parser.finish(&mut pieces);
            let read: String = pieces.into_iter().filter_map(|piece| match piece {
                Piece::Text(text) => Some(text),
                _ => None,
            }).collect();
            prop_assert_eq!(content, read);
        }
    }
}
