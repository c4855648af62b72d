//! Reasoning before a grammar begins: free text up to the closing mark.

use llguidance::toktrie::{SimpleVob, TokEnv};
use trunkline_reply::ReasoningMarks;
use trunkline_text::Tokenizer;

use crate::place::Place;
use crate::{GrammarError, TokenMask};

/// Whether an output reasons before its grammar begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reasoning {
    /// It may: if its first token opens reasoning. Without a token for that it does not.
    Possible,
    /// The prompt opened it.
    Begun,
}

/// What a vocabulary has for reasoning.
pub(crate) struct ReasoningTokens {
    env: TokEnv,
    marks: ReasoningMarks,
    /// All text: no end token, and none that goes on with more than blanks behind the closing mark.
    free: SimpleVob,
    open: Option<u32>,
    /// The closing mark as a control token, whose bytes the trie does not have.
    close: Option<u32>,
}

/// What a token leads to.
enum Read {
    /// Reasoning goes on, after these last bytes: as many as may begin the closing mark.
    Open(Vec<u8>),
    Closed,
    /// The closing mark, and more.
    Unfit,
}

impl ReasoningTokens {
    /// `text`: all tokens that an output may hold.
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        env: TokEnv,
        marks: ReasoningMarks,
        text: &SimpleVob,
        end_token_ids: &[u32],
    ) -> Self {
        let mut free = text.clone();
        end_token_ids.iter().for_each(|&id| free.disallow_token(id));
        let close = tokenizer.token_id(marks.close()).filter(|&id| id < tokenizer.vocab_size());
        if let Some(id) = close {
            free.allow_token(id);
        }
        let mut tokens = Self { env, marks, free, open: tokenizer.token_id(marks.open()), close };
        let unfit: Vec<u32> =
            tokens.ids().filter(|&id| matches!(tokens.read(&[], id), Read::Unfit)).collect();
        unfit.into_iter().for_each(|id| tokens.free.disallow_token(id));
        tokens
    }

    /// What may follow in reasoning after these last bytes.
    fn mask(&self, tail: &[u8]) -> TokenMask {
        let close = self.marks.close().as_bytes();
        let begins_mark = (1..=tail.len()).any(|len| close.starts_with(&tail[tail.len() - len..]));
        let mut free = self.free.clone();
        if begins_mark {
            let unfit = self.ids().filter(|&id| matches!(self.read(tail, id), Read::Unfit));
            unfit.for_each(|id| free.disallow_token(id));
        }
        TokenMask::new(&free, &free)
    }

    /// Where a token leads in reasoning after these last bytes.
    fn read(&self, tail: &[u8], id: u32) -> Read {
        let (text, close) = ([tail, self.bytes(id)].concat(), self.marks.close().as_bytes());
        let at = text.windows(close.len()).position(|window| window == close);
        match at.map(|at| &text[at + close.len()..]) {
            None => Read::Open(text[text.len() - text.len().min(close.len() - 1)..].to_vec()),
            Some(rest) if rest.iter().all(u8::is_ascii_whitespace) => Read::Closed,
            Some(_) => Read::Unfit,
        }
    }

    fn ids(&self) -> impl Iterator<Item = u32> {
        (0..self.free.len() as u32).filter(|&id| self.free.is_allowed(id))
    }

    fn bytes(&self, id: u32) -> &[u8] {
        if self.close == Some(id) { self.marks.close().as_bytes() } else { self.env.tok_trie().token(id) }
    }
}

/// Where an output is before its grammar begins.
#[derive(Debug, Clone)]
pub(crate) enum Before {
    /// It may open reasoning, or begin with the grammar.
    Start,
    /// In reasoning, after these bytes.
    Reasoning(Vec<u8>),
}

/// What a token leads to.
pub(crate) enum Step {
    /// The grammar has not begun.
    Before(Before),
    /// It begins behind this token.
    Behind,
    /// It has begun with this token.
    With,
}

impl Before {
    /// None if nothing comes before the grammar.
    pub(crate) fn new(tokens: &ReasoningTokens, reasoning: Reasoning) -> Option<Self> {
        match reasoning {
            Reasoning::Possible => tokens.open.map(|_| Self::Start),
            Reasoning::Begun => Some(Self::Reasoning(Vec::new())),
        }
    }

    /// What may follow, for a grammar that stands at its beginning.
    pub(crate) fn mask(
        &self,
        tokens: &ReasoningTokens,
        place: &mut Place,
    ) -> Result<TokenMask, GrammarError> {
        match self {
            Self::Start => Ok(place.see()?.mask.clone().with(tokens.open)),
            Self::Reasoning(tail) => Ok(tokens.mask(tail)),
        }
    }

    /// Where a token of the mask leads.
    pub(crate) fn accept(self, tokens: &ReasoningTokens, id: u32) -> Step {
        match self {
            Self::Start if tokens.open == Some(id) => Step::Before(Self::Reasoning(Vec::new())),
            Self::Start => Step::With,
            Self::Reasoning(tail) => match tokens.read(&tail, id) {
                Read::Open(tail) => Step::Before(Self::Reasoning(tail)),
                Read::Closed | Read::Unfit => Step::Behind,
            },
        }
    }
}
