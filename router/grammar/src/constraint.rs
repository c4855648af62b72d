//! One sequence whose output a grammar constrains.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::avoided::{Avoided, Avoiding};
use crate::before_grammar::{BeforeGrammar, TokenEffect, TokensBefore};
use crate::error::GrammarError;
use crate::grammar_state::GrammarState;
use crate::mask::TokenMask;
use crate::mask_cache::CachedMask;
use crate::reasoning::{Header, Reasoning, ReasoningTokens};
use crate::schema::strictness::RelaxedKeywords;

/// Most tokens that one call forces. More follow in the next call.
const MAX_FORCED_TOKENS: usize = 256;

/// Most tokens of the walk that warms up a grammar.
const MAX_WALK_TOKENS: u32 = 32;
/// The walk ends after the first token that exceeds this time.
const MAX_WALK_TIME: Duration = Duration::from_millis(20);

/// The permission to append tokens without sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forcing {
    /// Appends a token that is the only one allowed, because sampling could choose no other.
    Allow,
    /// Leaves every token to sampling, for requests that need its logprob.
    Never,
}

/// The tokens that may follow.
#[derive(Debug, Clone, PartialEq)]
pub struct Allowed {
    /// Tokens that must follow. They are accepted already, and none is an end token.
    pub forced: Vec<u32>,
    pub next: Next,
    /// Token ids, and numbers to add to their logits before the next token is chosen.
    pub penalties: Vec<(u32, f32)>,
}

/// The choice after the forced tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// One token of this mask must follow.
    Mask(TokenMask),
    /// The text is complete and cannot be continued.
    End,
}

/// The state of one sequence under its grammar.
pub struct Constraint {
    state: GrammarState,
    end_token_ids: Arc<[u32]>,
    has_ended: bool,
    reasoning_tokens: Arc<ReasoningTokens>,
    /// The headers that may precede the grammar.
    headers: Arc<[Header]>,
    /// The position before the grammar. `None` once the grammar has begun.
    before: Option<BeforeGrammar>,
    /// The texts that the output avoids besides what the grammar forbids.
    avoiding: Option<Avoiding>,
    relaxed: Arc<RelaxedKeywords>,
}

impl Constraint {
    pub(crate) fn new(
        state: GrammarState,
        end_token_ids: Arc<[u32]>,
        reasoning_tokens: Arc<ReasoningTokens>,
    ) -> Self {
        let headers = reasoning_tokens.headers.clone();
        Self {
            state,
            end_token_ids,
            has_ended: false,
            reasoning_tokens,
            headers,
            before: None,
            avoiding: None,
            relaxed: Arc::default(),
        }
    }

    pub(crate) fn set_relaxed(&mut self, keywords: RelaxedKeywords) {
        self.relaxed = Arc::new(keywords);
    }

    /// Returns the keywords that were left out of schemas because no grammar can hold them.
    pub fn relaxed(&self) -> impl Iterator<Item = &str> {
        self.relaxed.iter().map(String::as_str)
    }

    /// Sets the headers one of which must precede the grammar.
    pub(crate) fn begin_with(&mut self, headers: Arc<[Header]>) {
        self.headers = headers;
        self.begin_after(Reasoning::Possible, Some(0));
    }

    /// Lets reasoning of at most `budget` tokens precede the grammar. Call it before the first token.
    pub fn begin_after(&mut self, reasoning: Reasoning, budget: Option<u32>) {
        self.before = BeforeGrammar::new(&self.reasoning_tokens, self.headers.clone(), reasoning, budget);
    }

    /// Lets the output avoid words and repetitions. Call it before the first token.
    pub fn avoid(&mut self, avoided: Arc<Avoided>, prompt_token_ids: &[u32]) {
        self.avoiding = Some(Avoiding::new(avoided, prompt_token_ids));
    }

    /// Returns true if [`Allowed::penalties`] may hold any.
    pub fn has_penalties(&self) -> bool {
        self.avoiding.as_ref().is_some_and(Avoiding::has_penalties)
    }

    /// Returns a copy for another sequence. Both can be used at the same time.
    pub fn fork(&self) -> Self {
        Self {
            state: self.state.fork(),
            end_token_ids: self.end_token_ids.clone(),
            has_ended: self.has_ended,
            reasoning_tokens: self.reasoning_tokens.clone(),
            headers: self.headers.clone(),
            before: self.before.clone(),
            avoiding: self.avoiding.clone(),
            relaxed: self.relaxed.clone(),
        }
    }

    /// Walks some tokens into the grammar and returns to its beginning.
    ///
    /// The walk creates lexer states that every output needs. Without it, each sequence would create them while a step
    /// waits, which takes some 4 ms of a core. An error on the walk would also occur while generating.
    pub(crate) fn warmed(self) -> Result<Self, GrammarError> {
        let mut walk = self.fork();
        walk.walk()?;
        // Some grammars cannot return to their beginning.
        Ok(if walk.state.reset() { Self { has_ended: false, ..walk } } else { self })
    }

    fn walk(&mut self) -> Result<(), GrammarError> {
        let begin = Instant::now();
        for number in 1..=MAX_WALK_TOKENS {
            let Next::Mask(mask) = self.allowed(Forcing::Never)?.next else { return Ok(()) };
            let ids: Vec<u32> = mask.iter().filter(|id| !self.end_token_ids.contains(id)).collect();
            // Multiples of the golden ratio choose varied tokens, and the same ones each time.
            let index = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize % ids.len().max(1);
            let Some(&id) = ids.get(index) else { return Ok(()) };
            self.accept(id)?;
            if begin.elapsed() > MAX_WALK_TIME {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the tokens that may follow those accepted so far.
    ///
    /// A call takes about 50 us, and tens of milliseconds for grammars near their limits.
    pub fn allowed(&mut self, forcing: Forcing) -> Result<Allowed, GrammarError> {
        if self.avoiding.is_none() {
            return self.allowed_by_grammar(forcing);
        }
        // A token that the grammar forces may be one that the output avoids.
        let mut allowed = self.allowed_by_grammar(Forcing::Never)?;
        if let (Some(avoiding), Next::Mask(mask)) = (&mut self.avoiding, &allowed.next) {
            let mask = avoiding.remove_from(mask.clone());
            if mask.count() == 0 {
                let detail = "all tokens that the grammar allows next would complete words of `bad_words`";
                return Err(GrammarError::Failed { detail: detail.into() });
            }
            allowed.next = Next::Mask(mask);
            allowed.penalties = avoiding.penalties(&self.reasoning_tokens);
        }
        Ok(allowed)
    }

    fn allowed_by_grammar(&mut self, forcing: Forcing) -> Result<Allowed, GrammarError> {
        let mut forced = Vec::new();
        while let Some(before) = &self.before {
            let mask = match before.next(&self.reasoning_tokens, &mut self.state)? {
                TokensBefore::One(id) if forcing == Forcing::Allow => {
                    self.accept(id)?;
                    forced.push(id);
                    continue;
                }
                TokensBefore::One(id) => TokenMask::of([id], self.reasoning_tokens.vocab_size()),
                TokensBefore::Some(mask) => mask,
            };
            return Ok(Allowed { forced, next: Next::Mask(mask), penalties: Vec::new() });
        }
        loop {
            if self.has_ended || self.state.is_complete() {
                return Ok(Allowed { forced, next: Next::End, penalties: Vec::new() });
            }
            let CachedMask { mask, first_text_token, has_one_text_token, may_end } = &*self.state.mask()?;
            match *first_text_token {
                None if *may_end => return Ok(Allowed { forced, next: Next::End, penalties: Vec::new() }),
                None => {
                    return Err(GrammarError::Failed {
                        detail: "no token of the vocabulary can follow".into(),
                    });
                }
                Some(id)
                    if *has_one_text_token
                        && !may_end
                        && forcing == Forcing::Allow
                        && forced.len() < MAX_FORCED_TOKENS =>
                {
                    self.accept(id)?;
                    forced.push(id);
                }
                Some(_) => {
                    let next = Next::Mask(mask.clone());
                    return Ok(Allowed { forced, next, penalties: Vec::new() });
                }
            }
        }
    }

    /// Advances by a token that was sampled under the last mask.
    pub fn accept(&mut self, token_id: u32) -> Result<(), GrammarError> {
        if let Some(avoiding) = &mut self.avoiding {
            avoiding.accept(token_id);
        }
        match self.before.take().map(|before| before.accept(&self.reasoning_tokens, token_id)) {
            Some(TokenEffect::StaysBefore(before)) => {
                self.before = Some(before);
                return Ok(());
            }
            Some(TokenEffect::GrammarFollows(first)) => {
                return first.into_iter().try_for_each(|id| self.state.accept(id));
            }
            Some(TokenEffect::BeginsGrammar) | None => {}
        }
        self.state.accept(token_id)?;
        self.has_ended |= self.end_token_ids.contains(&token_id);
        Ok(())
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("has_ended", &self.has_ended).finish_non_exhaustive()
    }
}
