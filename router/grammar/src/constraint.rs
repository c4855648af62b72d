//! One sequence under a grammar.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::place::Place;
use crate::reasoning::{Before, ReasoningTokens, Step};
use crate::seen::Seen;
use crate::{GrammarError, Reasoning, TokenMask};

/// Tokens forced at once, at most: the rest come with the next call.
pub const MAX_FORCED_TOKENS: usize = 256;

/// Tokens of the walk that warms a grammar up, at most, and about how long it may take.
const MAX_WALK_TOKENS: u32 = 32;
const MAX_WALK_TIME: Duration = Duration::from_millis(20);

/// Whether tokens may be appended without sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forcing {
    /// Where exactly one token is allowed it is appended: sampling could choose no other.
    Allow,
    /// Every token is sampled, as its logprob is wanted.
    Never,
}

/// What may follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// Tokens that follow in any case, accepted already. No end token.
    pub forced: Vec<u32>,
    /// What follows them.
    pub next: Next,
}

/// What follows the forced tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// One of these.
    Mask(TokenMask),
    /// Nothing: the text is complete, and cannot be continued.
    End,
}

/// One sequence under its grammar.
pub struct Constraint {
    place: Place,
    end_token_ids: Arc<[u32]>,
    has_ended: bool,
    reasoning_tokens: Arc<ReasoningTokens>,
    /// Until the grammar begins.
    before: Option<Before>,
}

impl Constraint {
    pub(crate) fn new(
        place: Place,
        end_token_ids: Arc<[u32]>,
        reasoning_tokens: Arc<ReasoningTokens>,
    ) -> Self {
        Self { place, end_token_ids, has_ended: false, reasoning_tokens, before: None }
    }

    /// At its beginning: the grammar begins after the reasoning, if there is any.
    pub fn begin_after(&mut self, reasoning: Reasoning) {
        self.before = Before::new(&self.reasoning_tokens, reasoning);
    }

    /// The same state, for another sequence; both may be used at the same time.
    pub fn fork(&self) -> Self {
        Self {
            place: self.place.fork(),
            end_token_ids: self.end_token_ids.clone(),
            has_ended: self.has_ended,
            reasoning_tokens: self.reasoning_tokens.clone(),
            before: self.before.clone(),
        }
    }

    /// The same beginning after a walk into the grammar and back: the lexer's states that any output needs are made
    /// once, not for each sequence while a step waits (some 4 ms of a core). What fails on this way would fail while
    /// generating.
    pub(crate) fn warmed(self) -> Result<Self, GrammarError> {
        let mut walk = self.fork();
        walk.walk()?;
        // Not every grammar can go back.
        Ok(if walk.place.reset() { Self { has_ended: false, ..walk } } else { self })
    }

    fn walk(&mut self) -> Result<(), GrammarError> {
        let begin = Instant::now();
        for number in 1..=MAX_WALK_TOKENS {
            let Next::Mask(mask) = self.allowed(Forcing::Never)?.next else { return Ok(()) };
            let ids: Vec<u32> = mask.iter().filter(|id| !self.end_token_ids.contains(id)).collect();
            // Some way, the same each time: multiples of the golden ratio spread evenly.
            let index = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize % ids.len().max(1);
            let Some(&id) = ids.get(index) else { return Ok(()) };
            self.accept(id)?;
            if begin.elapsed() > MAX_WALK_TIME {
                return Ok(());
            }
        }
        Ok(())
    }

    /// What may follow the tokens accepted so far. About 50 us, tens of milliseconds at the limits.
    pub fn allowed(&mut self, forcing: Forcing) -> Result<Allowed, GrammarError> {
        if let Some(before) = &self.before {
            let mask = before.mask(&self.reasoning_tokens, &mut self.place)?;
            return Ok(Allowed { forced: Vec::new(), next: Next::Mask(mask) });
        }
        let mut forced = Vec::new();
        loop {
            if self.has_ended || self.place.is_complete() {
                return Ok(Allowed { forced, next: Next::End });
            }
            let Seen { mask, first, is_single, may_end } = &*self.place.see()?;
            match *first {
                None if *may_end => return Ok(Allowed { forced, next: Next::End }),
                None => {
                    return Err(GrammarError::Failed {
                        detail: "no token of the vocabulary can follow".into(),
                    });
                }
                Some(id)
                    if *is_single
                        && !may_end
                        && forcing == Forcing::Allow
                        && forced.len() < MAX_FORCED_TOKENS =>
                {
                    self.accept(id)?;
                    forced.push(id);
                }
                Some(_) => return Ok(Allowed { forced, next: Next::Mask(mask.clone()) }),
            }
        }
    }

    /// Takes a token that was sampled under the last mask.
    pub fn accept(&mut self, token_id: u32) -> Result<(), GrammarError> {
        match self.before.take().map(|before| before.accept(&self.reasoning_tokens, token_id)) {
            Some(Step::Before(before)) => {
                self.before = Some(before);
                return Ok(());
            }
            Some(Step::Behind) => return Ok(()),
            Some(Step::With) | None => {}
        }
        self.place.accept(token_id)?;
        self.has_ended |= self.end_token_ids.contains(&token_id);
        Ok(())
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("has_ended", &self.has_ended).finish_non_exhaustive()
    }
}
