//! The state of a sequence in its grammar.

use std::sync::Arc;

use llguidance::toktrie::SimpleVob;

use crate::budget::Budgeted;
use crate::error::GrammarError;
use crate::mask::TokenMask;
use crate::mask_cache::{CachedMask, MaskCache};
use crate::parser::Parser;
use crate::regex::automaton::Automaton;
use crate::regex::table::RegexTable;

/// The state of a sequence, by the kind of its grammar.
pub(crate) enum GrammarState {
    /// A parser that belongs to the sequence.
    Parser(Box<ParserState>),
    /// A state of a table that the grammar's sequences share.
    Table(Arc<RegexTable>, u32),
    /// No grammar, but a budget for reasoning.
    Budgeted(Budgeted),
    /// No grammar. The mask has all tokens.
    Free(Arc<CachedMask>),
}

/// A parser and the masks that it made.
pub(crate) struct ParserState {
    parser: Parser,
    /// Text tokens and end tokens.
    permitted: Arc<SimpleVob>,
    end_token_ids: Arc<[u32]>,
    /// Shared with all states forked from the same one.
    masks: Arc<MaskCache>,
    /// The last mask. Inside a string the next one is mostly equal to it.
    last: Option<Arc<CachedMask>>,
}

impl GrammarState {
    pub(crate) fn from_parser(parser: Parser, permitted: Arc<SimpleVob>, end_token_ids: Arc<[u32]>) -> Self {
        let masks = Arc::default();
        Self::Parser(Box::new(ParserState { parser, permitted, end_token_ids, masks, last: None }))
    }

    pub(crate) fn from_table(table: RegexTable) -> Self {
        Self::Table(Arc::new(table), Automaton::START)
    }

    pub(crate) fn fork(&self) -> Self {
        match self {
            Self::Parser(state) => Self::Parser(Box::new(ParserState {
                parser: state.parser.fork(),
                permitted: state.permitted.clone(),
                end_token_ids: state.end_token_ids.clone(),
                masks: state.masks.clone(),
                last: state.last.clone(),
            })),
            Self::Table(table, state) => Self::Table(table.clone(), *state),
            Self::Budgeted(output) => Self::Budgeted(output.clone()),
            Self::Free(any) => Self::Free(any.clone()),
        }
    }

    /// Returns to the beginning of the grammar, or returns false if the grammar does not allow that.
    pub(crate) fn reset(&mut self) -> bool {
        match self {
            Self::Parser(state) => state.parser.reset().is_ok(),
            Self::Table(_, state) => {
                *state = Automaton::START;
                true
            }
            Self::Budgeted(_) => false,
            Self::Free(_) => true,
        }
    }

    /// Returns true if no token may follow, not even an end token.
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Self::Parser(state) => state.parser.is_complete(),
            Self::Table(..) | Self::Budgeted(_) | Self::Free(_) => false,
        }
    }

    pub(crate) fn mask(&mut self) -> Result<Arc<CachedMask>, GrammarError> {
        match self {
            Self::Parser(state) => state.mask(),
            Self::Table(table, state) => Ok(table.mask(*state)),
            Self::Budgeted(output) => Ok(output.mask()),
            Self::Free(any) => Ok(any.clone()),
        }
    }

    /// Advances by a token of the last mask.
    pub(crate) fn accept(&mut self, token_id: u32) -> Result<(), GrammarError> {
        match self {
            Self::Parser(state) => state.parser.accept(token_id).map_err(|error| failed(&error)),
            Self::Table(table, state) => {
                let next = table.next(*state, token_id);
                let detail = || format!("token {token_id} may not follow");
                *state = next.ok_or_else(|| GrammarError::Failed { detail: detail() })?;
                Ok(())
            }
            Self::Budgeted(output) => {
                output.accept(token_id);
                Ok(())
            }
            Self::Free(_) => Ok(()),
        }
    }
}

impl ParserState {
    fn mask(&mut self) -> Result<Arc<CachedMask>, GrammarError> {
        let allowed = self.parser.mask().map_err(|error| failed(&error))?;
        let mask = match self.last.take() {
            Some(last) if last.mask.equals(&allowed, &self.permitted) => last,
            _ => self.masks.intern(TokenMask::new(&allowed, &self.permitted), &self.end_token_ids),
        };
        Ok(self.last.insert(mask).clone())
    }
}

fn failed(text: &str) -> GrammarError {
    if text.contains("NoExtensionBias") {
        return GrammarError::Failed {
            detail: "no token can follow, because rules that apply together exclude each other".into(),
        };
    }
    GrammarError::Failed { detail: text.lines().next().unwrap_or_default().to_owned() }
}
