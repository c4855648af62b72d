//! Where a sequence stands in its grammar.

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use crate::automaton::Automaton;
use crate::expression::Expression;
use crate::seen::{Seen, SeenMasks};
use crate::{GrammarError, TokenMask};

/// By the kind of its grammar.
pub(crate) enum Place {
    /// In a parser of its own.
    Parser(Box<Parser>),
    /// In a state of an expression's table.
    Expression(Arc<Expression>, u32),
}

/// A parser's state, and the masks that it made.
pub(crate) struct Parser {
    matcher: Matcher,
    /// Text and end tokens.
    permitted: Arc<SimpleVob>,
    end_token_ids: Arc<[u32]>,
    /// Shared with all that were forked from the same.
    seen: Arc<SeenMasks>,
    /// The last mask: inside a text one follows another that is the same.
    last: Option<Arc<Seen>>,
}

impl Place {
    pub(crate) fn of_parser(matcher: Matcher, permitted: Arc<SimpleVob>, end_token_ids: Arc<[u32]>) -> Self {
        Self::Parser(Box::new(Parser { matcher, permitted, end_token_ids, seen: Arc::default(), last: None }))
    }

    pub(crate) fn of_expression(expression: Expression) -> Self {
        Self::Expression(Arc::new(expression), Automaton::START)
    }

    /// The same place, for another sequence.
    pub(crate) fn fork(&self) -> Self {
        match self {
            Self::Parser(parser) => Self::Parser(Box::new(Parser {
                matcher: parser.matcher.deep_clone(),
                permitted: parser.permitted.clone(),
                end_token_ids: parser.end_token_ids.clone(),
                seen: parser.seen.clone(),
                last: parser.last.clone(),
            })),
            Self::Expression(expression, state) => Self::Expression(expression.clone(), *state),
        }
    }

    /// Goes back to the beginning; false if it cannot.
    pub(crate) fn reset(&mut self) -> bool {
        match self {
            Self::Parser(parser) => parser.matcher.reset().is_ok(),
            Self::Expression(_, state) => {
                *state = Automaton::START;
                true
            }
        }
    }

    /// Whether nothing may follow, not even an end token.
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Self::Parser(parser) => parser.matcher.is_stopped() && !parser.matcher.is_error(),
            Self::Expression(..) => false,
        }
    }

    /// What may follow.
    pub(crate) fn see(&mut self) -> Result<Arc<Seen>, GrammarError> {
        match self {
            Self::Parser(parser) => parser.see(),
            Self::Expression(expression, state) => Ok(expression.see(*state)),
        }
    }

    /// Takes a token of the last mask.
    pub(crate) fn accept(&mut self, token_id: u32) -> Result<(), GrammarError> {
        match self {
            Self::Parser(parser) => parser.matcher.consume_token(token_id).map_err(|error| failed(&error)),
            Self::Expression(expression, state) => {
                let after = expression.after(*state, token_id);
                let detail = || format!("token {token_id} may not follow");
                *state = after.ok_or_else(|| GrammarError::Failed { detail: detail() })?;
                Ok(())
            }
        }
    }
}

impl Parser {
    fn see(&mut self) -> Result<Arc<Seen>, GrammarError> {
        let allowed = self.matcher.compute_mask().map_err(|error| failed(&error))?;
        let seen = match self.last.take() {
            Some(last) if last.mask.is(&allowed, &self.permitted) => last,
            _ => self.seen.find(TokenMask::new(&allowed, &self.permitted), &self.end_token_ids),
        };
        Ok(self.last.insert(seen).clone())
    }
}

fn failed(error: &impl std::fmt::Display) -> GrammarError {
    let text = error.to_string();
    if text.contains("NoExtensionBias") {
        return GrammarError::Failed {
            detail: "no token can follow, as parts that hold at once leave none".into(),
        };
    }
    GrammarError::Failed { detail: text.lines().next().unwrap_or_default().to_owned() }
}
