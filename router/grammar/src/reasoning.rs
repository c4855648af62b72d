//! Reasoning before a grammar begins, which is free text up to the closing mark.

use llguidance::toktrie::{SimpleVob, TokEnv};
use trunkline_reply::ReasoningMarks;
use trunkline_text::Tokenizer;

use crate::error::GrammarError;
use crate::grammar_state::GrammarState;
use crate::mask::TokenMask;

/// The reasoning that may precede an output's grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reasoning {
    /// The output reasons if its first token is the opening mark. Without such a token it cannot reason.
    Possible,
    /// The prompt opened reasoning.
    Begun,
}

/// The tokens of a vocabulary that matter to reasoning.
pub(crate) struct ReasoningTokens {
    env: TokEnv,
    marks: ReasoningMarks,
    /// The tokens allowed in reasoning: text without end tokens and without tokens that continue with more than white
    /// space after the closing mark.
    free: SimpleVob,
    open: Option<u32>,
    /// The closing mark as a control token, whose bytes the trie lacks.
    close: Option<u32>,
}

/// The effect of a token inside reasoning.
enum InReasoning {
    /// Reasoning continues. Holds the last bytes, which may begin the closing mark.
    Continues(Vec<u8>),
    /// The token completes the closing mark, with nothing but white space after it.
    Closes,
    /// The token has other text after the closing mark, so it is not allowed.
    ClosesWithText,
}

impl ReasoningTokens {
    /// Creates the tables. `text` holds all tokens that an output may contain.
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
        let disallowed: Vec<u32> = tokens.closing_with_text(&[]).collect();
        disallowed.into_iter().for_each(|id| tokens.free.disallow_token(id));
        tokens
    }

    /// Returns the tokens that may follow in reasoning after the bytes `tail`.
    fn mask(&self, tail: &[u8]) -> TokenMask {
        let close = self.marks.close().as_bytes();
        let begins_mark = (1..=tail.len()).any(|len| close.starts_with(&tail[tail.len() - len..]));
        let mut free = self.free.clone();
        if begins_mark {
            self.closing_with_text(tail).for_each(|id| free.disallow_token(id));
        }
        TokenMask::new(&free, &free)
    }

    fn closing_with_text(&self, tail: &[u8]) -> impl Iterator<Item = u32> {
        self.ids().filter(|&id| matches!(self.effect(tail, id), InReasoning::ClosesWithText))
    }

    /// Returns the effect of a token in reasoning after the bytes `tail`.
    fn effect(&self, tail: &[u8], id: u32) -> InReasoning {
        let (text, close) = ([tail, self.bytes(id)].concat(), self.marks.close().as_bytes());
        let at = text.windows(close.len()).position(|window| window == close);
        match at.map(|at| &text[at + close.len()..]) {
            None => InReasoning::Continues(text[text.len() - text.len().min(close.len() - 1)..].to_vec()),
            Some(rest) if rest.iter().all(u8::is_ascii_whitespace) => InReasoning::Closes,
            Some(_) => InReasoning::ClosesWithText,
        }
    }

    fn ids(&self) -> impl Iterator<Item = u32> {
        (0..self.free.len() as u32).filter(|&id| self.free.is_allowed(id))
    }

    fn bytes(&self, id: u32) -> &[u8] {
        if self.close == Some(id) { self.marks.close().as_bytes() } else { self.env.tok_trie().token(id) }
    }
}

/// The position of an output whose grammar has not begun.
#[derive(Debug, Clone)]
pub(crate) enum BeforeGrammar {
    /// At the start of the output, which may open reasoning or begin with the grammar.
    Start,
    /// In reasoning, with the last bytes of it.
    Reasoning(Vec<u8>),
}

/// The effect of a token before the grammar.
pub(crate) enum TokenEffect {
    /// The grammar still has not begun.
    StaysBefore(BeforeGrammar),
    /// The grammar begins after the token.
    GrammarFollows,
    /// The token is the first of the grammar.
    BeginsGrammar,
}

impl BeforeGrammar {
    /// Returns `None` if the output begins with its grammar.
    pub(crate) fn new(tokens: &ReasoningTokens, reasoning: Reasoning) -> Option<Self> {
        match reasoning {
            Reasoning::Possible => tokens.open.map(|_| Self::Start),
            Reasoning::Begun => Some(Self::Reasoning(Vec::new())),
        }
    }

    /// Returns the tokens that may follow. `state` is the beginning of the grammar.
    pub(crate) fn mask(
        &self,
        tokens: &ReasoningTokens,
        state: &mut GrammarState,
    ) -> Result<TokenMask, GrammarError> {
        match self {
            Self::Start => Ok(state.mask()?.mask.clone().with(tokens.open)),
            Self::Reasoning(tail) => Ok(tokens.mask(tail)),
        }
    }

    /// Advances by a token of the last mask.
    pub(crate) fn accept(self, tokens: &ReasoningTokens, id: u32) -> TokenEffect {
        match self {
            Self::Start if tokens.open == Some(id) => TokenEffect::StaysBefore(Self::Reasoning(Vec::new())),
            Self::Start => TokenEffect::BeginsGrammar,
            Self::Reasoning(tail) => match tokens.effect(&tail, id) {
                InReasoning::Continues(tail) => TokenEffect::StaysBefore(Self::Reasoning(tail)),
                InReasoning::Closes | InReasoning::ClosesWithText => TokenEffect::GrammarFollows,
            },
        }
    }
}
