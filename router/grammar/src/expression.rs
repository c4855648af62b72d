//! A regular expression over a vocabulary.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use llguidance::toktrie::{Recognizer, SimpleVob, TokEnv};

use crate::TokenMask;
use crate::automaton::Automaton;
use crate::seen::{Seen, SeenMasks};

/// Which tokens may follow in each state of an expression. All its sequences share what was worked out: a mask is a
/// look into a table, where the parser's states are each sequence's own.
pub(crate) struct Expression {
    automaton: Automaton,
    env: TokEnv,
    permitted: Arc<SimpleVob>,
    end_token_ids: Arc<[u32]>,
    /// By state: those of a kind have the same mask.
    kinds: Vec<u32>,
    masks: SeenMasks,
    /// Those of the masks that are still kept.
    by_kind: Mutex<HashMap<u32, Weak<Seen>>>,
}

impl Expression {
    pub(crate) fn new(
        automaton: Automaton,
        env: TokEnv,
        permitted: Arc<SimpleVob>,
        end_token_ids: Arc<[u32]>,
    ) -> Self {
        let kinds = automaton.alike(env.tok_trie().max_token_len());
        let (masks, by_kind) = Default::default();
        Self { automaton, env, permitted, end_token_ids, kinds, masks, by_kind }
    }

    /// What may follow in a state: from well under a microsecond, if it was asked for before, to about 0.3 ms.
    pub(crate) fn see(&self, state: u32) -> Arc<Seen> {
        let kind = self.kinds[state as usize];
        let by_kind = || self.by_kind.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = by_kind().get(&kind).and_then(Weak::upgrade) {
            return seen;
        }
        // Meanwhile others go on; who asks for the same state works out the same.
        let seen = self.masks.find(self.mask(state), &self.end_token_ids);
        by_kind().insert(kind, Arc::downgrade(&seen));
        seen
    }

    fn mask(&self, state: u32) -> TokenMask {
        let trie = self.env.tok_trie();
        let mut allowed = trie.alloc_token_set();
        trie.add_bias(&mut Walk { automaton: &self.automaton, states: vec![state] }, &mut allowed, &[]);
        if self.automaton.accepts(state) {
            self.end_token_ids.iter().for_each(|&id| allowed.allow_token(id));
        }
        TokenMask::new(&allowed, &self.permitted)
    }

    /// The state after a token, the same after an end token; none if the state's mask does not have it.
    pub(crate) fn after(&self, state: u32, token_id: u32) -> Option<u32> {
        if self.end_token_ids.contains(&token_id) {
            return self.automaton.accepts(state).then_some(state);
        }
        let bytes = self.env.tok_trie().token(token_id);
        // What has no text is in no mask.
        let text = Some(bytes).filter(|bytes| !bytes.is_empty())?;
        text.iter().try_fold(state, |state, &byte| self.automaton.after(state, byte))
    }
}

/// The states of the bytes from where a walk over the vocabulary began to where it is.
struct Walk<'a> {
    automaton: &'a Automaton,
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
        let after = last.and_then(|&state| self.automaton.after(state, byte));
        self.states.extend(after);
        after.is_some()
    }
}
