//! Outputs without a grammar whose reasoning has a budget. They are free, except that the closing mark follows the last
//! token of the budget.

use std::sync::Arc;

use crate::mask::TokenMask;
use crate::mask_cache::CachedMask;
use crate::reasoning::{Reasoning, ReasoningTokens};

/// The position of an output whose reasoning has a budget.
#[derive(Clone)]
pub(crate) struct Budgeted {
    tokens: Arc<ReasoningTokens>,
    place: Place,
    /// The most tokens that reasoning may still have.
    left: u32,
}

#[derive(Clone)]
enum Place {
    /// Reasoning may begin here. Holds the last bytes of the text.
    Outside(Vec<u8>),
    /// In reasoning, with the last bytes of it.
    Reasoning(Vec<u8>),
    /// In the mark that closes reasoning without budget left, with the number of its tokens.
    Closing(usize),
    /// No reasoning can follow.
    Over,
}

impl Budgeted {
    pub(crate) fn new(tokens: Arc<ReasoningTokens>, reasoning: Reasoning, budget: u32) -> Self {
        let mut output = Self { tokens, place: Place::Outside(Vec::new()), left: budget };
        if reasoning == Reasoning::Begun {
            output.place = output.inside(Vec::new());
        }
        output
    }

    pub(crate) fn mask(&self) -> Arc<CachedMask> {
        let tokens = &self.tokens;
        match (&self.place, &tokens.channel) {
            (Place::Closing(num_written), _) => {
                let mark = TokenMask::of([tokens.close[*num_written]], tokens.vocab_size());
                Arc::new(CachedMask::unforced(mark))
            }
            (Place::Outside(tail), Some((mark, others)))
                if self.left == 0 && tail.ends_with(tokens.bytes(*mark)) =>
            {
                others.clone()
            }
            _ => tokens.any.clone(),
        }
    }

    pub(crate) fn accept(&mut self, id: u32) {
        let with = |mut text: Vec<u8>| {
            text.extend(self.tokens.bytes(id));
            text
        };
        self.place = match std::mem::replace(&mut self.place, Place::Over) {
            Place::Over => Place::Over,
            Place::Outside(text) => self.outside(with(text)),
            Place::Reasoning(text) => {
                let text = with(text);
                self.left = self.left.saturating_sub(1);
                self.inside(text)
            }
            Place::Closing(num_written) if num_written + 1 < self.tokens.close.len() => {
                Place::Closing(num_written + 1)
            }
            Place::Closing(_) => self.after(Vec::new()),
        };
    }

    /// Returns the position after the last bytes `text` outside of reasoning.
    fn outside(&self, text: Vec<u8>) -> Place {
        let open = self.tokens.marks.open().as_bytes();
        if self.has_messages() {
            return match rest_after(&text, open) {
                Some(rest) => self.inside(rest.to_vec()),
                None => Place::Outside(last(&text, open)),
            };
        }
        // Otherwise only white space precedes reasoning.
        match text.trim_ascii_start() {
            text if text.starts_with(open) => self.inside(text[open.len()..].to_vec()),
            text if open.starts_with(text) => Place::Outside(text.to_vec()),
            _ => Place::Over,
        }
    }

    /// Returns the position after the last bytes `text` of reasoning.
    fn inside(&self, text: Vec<u8>) -> Place {
        let close = self.tokens.marks.close().as_bytes();
        match rest_after(&text, close) {
            Some(rest) => self.after(rest.to_vec()),
            None if self.left == 0 && !self.tokens.close.is_empty() => Place::Closing(0),
            None => Place::Reasoning(last(&text, close)),
        }
    }

    /// Returns the position after reasoning and the bytes `text`.
    fn after(&self, text: Vec<u8>) -> Place {
        if self.has_messages() { self.outside(text) } else { Place::Over }
    }

    /// Returns true if reasoning may begin again after it has ended.
    fn has_messages(&self) -> bool {
        !self.tokens.marks.message().is_empty()
    }
}

/// Returns the bytes after a mark, if the text has it.
fn rest_after<'a>(text: &'a [u8], mark: &[u8]) -> Option<&'a [u8]> {
    let at = text.windows(mark.len()).position(|window| window == mark)?;
    Some(&text[at + mark.len()..])
}

/// Returns the last bytes, which may begin the mark.
fn last(text: &[u8], mark: &[u8]) -> Vec<u8> {
    text[text.len().saturating_sub(mark.len() - 1)..].to_vec()
}
