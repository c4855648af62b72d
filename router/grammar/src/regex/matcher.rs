//! Finds out whether a pattern matches a text that a schema lists.

use regex_automata::nfa::thompson;
use regex_automata::nfa::thompson::pikevm::PikeVM;

/// Most bytes of the automaton of a pattern.
const MAX_NFA_BYTES: usize = 1 << 18;

#[derive(Debug)]
pub(crate) struct Matcher(PikeVM);

impl Matcher {
    /// Returns `None` if the pattern is invalid or too large.
    pub(crate) fn new(pattern: &str) -> Option<Self> {
        let limit = thompson::Config::new().nfa_size_limit(Some(MAX_NFA_BYTES));
        PikeVM::builder().thompson(limit).build(pattern).ok().map(Self)
    }

    /// Returns true if the pattern matches anywhere in a text.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.0.is_match(&mut self.0.create_cache(), text)
    }
}
