//! A regular expression over a vocabulary, as a table of masks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use llguidance::toktrie::{Recognizer, SimpleVob, TokEnv};

use crate::mask::TokenMask;
use crate::mask_cache::{CachedMask, MaskCache};
use crate::regex::automaton::Automaton;

/// The tokens that may follow in each state of an expression.
///
/// All sequences of the expression share the masks that were computed, so a mask is mostly a table look-up. A parser's
/// state, in contrast, belongs to one sequence.
pub(crate) struct RegexTable {
    automaton: Automaton,
    env: TokEnv,
    permitted: Arc<SimpleVob>,
    end_token_ids: Arc<[u32]>,
    /// The class of each state. States of a class have the same mask.
    class_of: Vec<u32>,
    masks: MaskCache,
    /// The masks that `masks` still holds, by class.
    mask_of_class: Mutex<HashMap<u32, Weak<CachedMask>>>,
}

impl RegexTable {
    pub(crate) fn new(
        automaton: Automaton,
        env: TokEnv,
        permitted: Arc<SimpleVob>,
        end_token_ids: Arc<[u32]>,
    ) -> Self {
        let class_of = automaton.equivalence_classes(env.tok_trie().max_token_len());
        let (masks, mask_of_class) = Default::default();
        Self { automaton, env, permitted, end_token_ids, class_of, masks, mask_of_class }
    }

    /// Returns the tokens that may follow in a state.
    ///
    /// This takes well under a microsecond for a mask that was computed before, and else about 0.3 ms.
    pub(crate) fn mask(&self, state: u32) -> Arc<CachedMask> {
        let class = self.class_of[state as usize];
        let mask_of_class = || self.mask_of_class.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mask) = mask_of_class().get(&class).and_then(Weak::upgrade) {
            return mask;
        }
        // The lock is not held here. Two threads may compute the same mask.
        let mask = self.masks.intern(self.compute_mask(state), &self.end_token_ids);
        mask_of_class().insert(class, Arc::downgrade(&mask));
        mask
    }

    fn compute_mask(&self, state: u32) -> TokenMask {
        let trie = self.env.tok_trie();
        let mut allowed = trie.alloc_token_set();
        trie.add_bias(&mut Walk { automaton: &self.automaton, states: vec![state] }, &mut allowed, &[]);
        if self.automaton.accepts(state) {
            self.end_token_ids.iter().for_each(|&id| allowed.allow_token(id));
        }
        TokenMask::new(&allowed, &self.permitted)
    }

    /// Returns the state after a token, or `None` if the token is not in the state's mask. An end token does not change
    /// the state.
    pub(crate) fn next(&self, state: u32, token_id: u32) -> Option<u32> {
        if self.end_token_ids.contains(&token_id) {
            return self.automaton.accepts(state).then_some(state);
        }
        let bytes = self.env.tok_trie().token(token_id);
        // A token without text is in no mask.
        let text = Some(bytes).filter(|bytes| !bytes.is_empty())?;
        text.iter().try_fold(state, |state, &byte| self.automaton.next(state, byte))
    }
}

/// A walk over the vocabulary's trie.
struct Walk<'a> {
    automaton: &'a Automaton,
    /// The state at the beginning of the walk, and after each byte of the current path.
    states: Vec<u32>,
}

impl Recognizer for Walk<'_> {
    fn pop_bytes(&mut self, num: usize) {
        self.states.truncate(self.states.len() - num);
    }

    fn collapse(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }

    fn trie_finished(&mut self) {
        self.states.truncate(1);
    }

    fn try_push_byte(&mut self, byte: u8) -> bool {
        let last = self.states.last();
        let next = last.and_then(|&state| self.automaton.next(state, byte));
        self.states.extend(next);
        next.is_some()
    }
}
