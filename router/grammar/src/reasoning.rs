//! Reasoning before a grammar begins: free text up to the closing mark.

use llguidance::toktrie::{SimpleVob, TokEnv};
use trunkline_text::Tokenizer;

use crate::TokenMask;

/// Opens reasoning.
const OPEN: &str = "<think>";
/// Ends it.
const CLOSE: &str = "</think>";

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
    /// All text: no end token, and none that goes on with more than blanks behind the closing mark.
    free: SimpleVob,
    open: Option<u32>,
    /// The closing mark as a control token, whose bytes the trie does not have.
    close: Option<u32>,
}

impl ReasoningTokens {
    pub(crate) fn new(tokenizer: &Tokenizer, env: TokEnv, text: &SimpleVob, end_token_ids: &[u32]) -> Self {
        let mut free = text.clone();
        end_token_ids.iter().for_each(|&id| free.disallow_token(id));
        let close = tokenizer.token_id(CLOSE).filter(|&id| id < tokenizer.vocab_size());
        if let Some(id) = close {
            free.allow_token(id);
        }
        let mut tokens = Self { env, free, open: tokenizer.token_id(OPEN), close };
        let unfit: Vec<u32> =
            tokens.ids().filter(|&id| matches!(tokens.read(&[], id), Read::Unfit)).collect();
        unfit.into_iter().for_each(|id| tokens.free.disallow_token(id));
        tokens
    }

    fn ids(&self) -> impl Iterator<Item = u32> {
        (0..self.free.len() as u32).filter(|&id| self.free.is_allowed(id))
    }

    fn bytes(&self, id: u32) -> &[u8] {
        if self.close == Some(id) { CLOSE.as_bytes() } else { self.env.tok_trie().token(id) }
    }

    fn read(&self, tail: &[u8], id: u32) -> Read {
        let text = [tail, self.bytes(id)].concat();
        let at = text.windows(CLOSE.len()).position(|window| window == CLOSE.as_bytes());
        match at.map(|at| &text[at + CLOSE.len()..]) {
            None => Read::Open(text[text.len() - text.len().min(CLOSE.len() - 1)..].to_vec()),
            Some(rest) if rest.iter().all(u8::is_ascii_whitespace) => Read::Closed,
            Some(_) => Read::Unfit,
        }
    }
}

/// What a token leads to.
enum Read {
    /// Reasoning goes on, after these last bytes.
    Open(Vec<u8>),
    Closed,
    /// The closing mark, and more.
    Unfit,
}

/// Where an output is before its grammar begins.
#[derive(Debug, Clone)]
pub(crate) enum Stage {
    /// It may open reasoning, or begin with the grammar.
    Start,
    /// In reasoning, after these bytes: as many as may begin the closing mark.
    Inside(Vec<u8>),
}

impl Stage {
    pub(crate) fn new(reasoning: Reasoning) -> Self {
        match reasoning {
            Reasoning::Possible => Self::Start,
            Reasoning::Begun => Self::Inside(Vec::new()),
        }
    }

    /// What may follow in reasoning.
    pub(crate) fn mask(tokens: &ReasoningTokens, tail: &[u8]) -> TokenMask {
        let begins_mark = (1..=tail.len()).any(|len| CLOSE.as_bytes().starts_with(&tail[tail.len() - len..]));
        let mut free = tokens.free.clone();
        if begins_mark {
            let unfit = tokens.ids().filter(|&id| matches!(tokens.read(tail, id), Read::Unfit));
            unfit.for_each(|id| free.disallow_token(id));
        }
        TokenMask::new(&free, &free)
    }

    /// The token that opens reasoning.
    pub(crate) fn open(tokens: &ReasoningTokens) -> Option<u32> {
        tokens.open
    }

    /// Where a token leads; none: the grammar has begun, with this token if it did not close reasoning.
    pub(crate) fn accept(&self, tokens: &ReasoningTokens, id: u32) -> Option<Self> {
        match self {
            Self::Start => (tokens.open == Some(id)).then(|| Self::Inside(Vec::new())),
            Self::Inside(tail) => match tokens.read(tail, id) {
                Read::Open(tail) => Some(Self::Inside(tail)),
                Read::Closed | Read::Unfit => None,
            },
        }
    }
}
