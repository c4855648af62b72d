//! The part of an output before its grammar: reasoning, and the headers of messages.

use std::sync::Arc;

use crate::error::GrammarError;
use crate::grammar_state::GrammarState;
use crate::mask::TokenMask;
use crate::reasoning::{Header, InReasoning, Reasoning, ReasoningTokens};

/// The position of an output whose grammar has not begun.
#[derive(Debug, Clone)]
pub(crate) struct BeforeGrammar {
    headers: Arc<[Header]>,
    place: Place,
    /// The most tokens that reasoning may still have.
    left: Option<u32>,
    has_reasoned: bool,
}

#[derive(Debug, Clone)]
enum Place {
    /// In a header, with the tokens of it. Without a header of the content, the grammar may begin instead.
    Header(Vec<u32>),
    /// In reasoning, with the last bytes of it.
    Reasoning(Vec<u8>),
    /// In the mark that closes reasoning without budget left, with the number of its tokens.
    Closing(usize),
}

/// The tokens that may follow before the grammar.
pub(crate) enum TokensBefore {
    /// The only token that may follow.
    One(u32),
    Some(TokenMask),
}

/// The effect of a token before the grammar.
pub(crate) enum TokenEffect {
    /// The grammar still has not begun.
    StaysBefore(BeforeGrammar),
    /// The grammar begins after the token. Its first tokens, which a header stands for, are these.
    GrammarFollows(Vec<u32>),
    /// The token is the first of the grammar.
    BeginsGrammar,
}

impl BeforeGrammar {
    /// Returns `None` if the output begins with its grammar. `headers` are those that the output may have, and `budget`
    /// is the most tokens of reasoning.
    pub(crate) fn new(
        tokens: &ReasoningTokens,
        headers: Arc<[Header]>,
        reasoning: Reasoning,
        budget: Option<u32>,
    ) -> Option<Self> {
        let left = budget.filter(|_| !tokens.close.is_empty());
        let place = match reasoning {
            Reasoning::Possible => Place::Header(headers.first()?.token_ids[..tokens.num_prompted].to_vec()),
            Reasoning::Begun => Place::reasoning(Vec::new(), left),
        };
        Some(Self { headers, place, left, has_reasoned: false })
    }

    /// Returns the tokens that may follow. `state` is the beginning of the grammar.
    pub(crate) fn next(
        &self,
        tokens: &ReasoningTokens,
        state: &mut GrammarState,
    ) -> Result<TokensBefore, GrammarError> {
        let read = match &self.place {
            Place::Header(read) => read,
            Place::Reasoning(tail) => return Ok(TokensBefore::Some(tokens.mask(tail))),
            Place::Closing(num_written) => return Ok(TokensBefore::One(tokens.close[*num_written])),
        };
        let headers = headers_after(&self.headers, read);
        // Only where each message has a header may several hold reasoning.
        let may_reason = self.left != Some(0) && (tokens.has_content_header || !self.has_reasoned);
        let headers = headers.filter(|header| !header.opens_reasoning || may_reason);
        let next: Vec<u32> = headers.filter_map(|header| header.token_ids.get(read.len()).copied()).collect();
        Ok(match (tokens.has_content_header, &next[..]) {
            (true, &[first, ref others @ ..]) if others.iter().all(|&id| id == first) => {
                TokensBefore::One(first)
            }
            (true, _) => TokensBefore::Some(TokenMask::of(next, tokens.vocab_size())),
            // A control token has begun a header.
            (false, &[next]) if !read.is_empty() => TokensBefore::One(next),
            (false, _) if !read.is_empty() => TokensBefore::Some(TokenMask::of(next, tokens.vocab_size())),
            (false, _) => TokensBefore::Some(state.mask()?.mask.clone().with(next)),
        })
    }

    /// Advances by one of the last tokens that might follow.
    pub(crate) fn accept(mut self, tokens: &ReasoningTokens, id: u32) -> TokenEffect {
        self.place = match self.place {
            Place::Header(mut read) => {
                read.push(id);
                let Some(header) = headers_after(&self.headers, &read).next() else {
                    return TokenEffect::BeginsGrammar;
                };
                match (header.token_ids.len() == read.len(), header.opens_reasoning) {
                    (true, false) => return TokenEffect::GrammarFollows(header.stands_for.clone()),
                    (true, true) => Place::reasoning(Vec::new(), self.left),
                    (false, _) => Place::Header(read),
                }
            }
            Place::Reasoning(tail) => {
                self.left = self.left.map(|left| left.saturating_sub(1));
                match tokens.effect(&tail, id) {
                    InReasoning::Continues(tail) => Place::reasoning(tail, self.left),
                    InReasoning::Closes | InReasoning::ClosesWithText => {
                        return Self::after_reasoning(self.headers, self.left);
                    }
                }
            }
            Place::Closing(num_written) if num_written + 1 < tokens.close.len() => {
                Place::Closing(num_written + 1)
            }
            Place::Closing(_) => return Self::after_reasoning(self.headers, self.left),
        };
        TokenEffect::StaysBefore(self)
    }

    /// A header may follow reasoning if any does not open it.
    fn after_reasoning(headers: Arc<[Header]>, left: Option<u32>) -> TokenEffect {
        if headers.iter().all(|header| header.opens_reasoning) {
            return TokenEffect::GrammarFollows(Vec::new());
        }
        TokenEffect::StaysBefore(Self { headers, place: Place::Header(Vec::new()), left, has_reasoned: true })
    }
}

impl Place {
    /// Returns the position in reasoning whose last bytes are `tail`.
    fn reasoning(tail: Vec<u8>, left: Option<u32>) -> Self {
        if left == Some(0) { Self::Closing(0) } else { Self::Reasoning(tail) }
    }
}

/// Returns the headers that begin with the tokens `read`.
fn headers_after<'a>(headers: &'a [Header], read: &[u32]) -> impl Iterator<Item = &'a Header> {
    headers.iter().filter(move |header| header.token_ids.starts_with(read))
}
