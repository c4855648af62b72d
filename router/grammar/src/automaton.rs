//! A regular expression as a table of states.

use std::collections::HashMap;
use std::hash::Hash;

use regex_automata::dfa::{Automaton as _, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;
use regex_automata::{Anchored, MatchKind};
use regex_syntax::hir::Hir;

/// Bytes that each step from an expression to its table may take: beyond it lies what grows with the power of the
/// expression's length. It bounds time loosely: mostly some 0.1 s of a core, more for empty alternatives by the
/// thousand.
const MAX_BYTES: usize = 1 << 20;
/// The same for the first step, whose states each of a table's may go through.
const MAX_NFA_BYTES: usize = 1 << 19;
/// Transitions of states that are compared to find states that are alike, at most: some 0.1 s of a core.
const MAX_COMPARED: usize = 1 << 23;
/// What a state costs beside its transitions, in transitions.
const COST_OF_STATE: usize = 8;
/// In place of a state: no text that goes on like this matches.
const DEAD: u32 = u32::MAX;

/// A deterministic automaton over bytes whose every state can still come to a match. It begins in state 0.
#[derive(Debug)]
pub(crate) struct Automaton {
    /// Bytes of a class lead to the same states.
    class_of: [u8; 256],
    num_classes: usize,
    /// The next state by state and class.
    next: Vec<u32>,
    /// By state: whether the text before it matches as a whole.
    accepts: Vec<bool>,
}

impl Automaton {
    /// The state that each text begins in.
    pub(crate) const START: u32 = 0;

    /// Of an expression in the syntax of the crate `regex`; a text matches as a whole. None if it is wrong, has
    /// look-around or anchors, matches nothing, or needs too many states.
    pub(crate) fn of_expression(expression: &str) -> Option<Self> {
        let hir = regex_syntax::parse(expression).ok()?;
        if hir.properties().look_set().is_empty() { Self::new(&hir) } else { None }
    }

    /// Of texts, each of which matches; none if they need too many states.
    pub(crate) fn of_texts(texts: &[String]) -> Option<Self> {
        Self::new(&Hir::alternation(texts.iter().map(|text| Hir::literal(text.as_bytes())).collect()))
    }

    fn new(hir: &Hir) -> Option<Self> {
        let config = thompson::Config::new()
            .nfa_size_limit(Some(MAX_NFA_BYTES))
            .which_captures(thompson::WhichCaptures::None);
        let nfa = thompson::Compiler::new().configure(config).build_from_hir(hir).ok()?;
        let config = dense::Config::new()
            .start_kind(StartKind::Anchored)
            // Not the first match: all of them.
            .match_kind(MatchKind::All)
            .accelerate(false)
            .dfa_size_limit(Some(MAX_BYTES))
            .determinize_size_limit(Some(MAX_BYTES));
        let dfa = dense::Builder::new().configure(config).build_from_nfa(&nfa).ok()?;
        Self::of(&dfa, dfa.start_state(&start::Config::new().anchored(Anchored::Yes)).ok()?)
    }

    fn of(dfa: &dense::DFA<Vec<u32>>, first: StateID) -> Option<Self> {
        let classes = dfa.byte_classes();
        let mut class_of = [0; 256];
        (0..=u8::MAX).for_each(|byte| class_of[usize::from(byte)] = classes.get(byte));
        let bytes: Vec<u8> = classes.representatives(0..=u8::MAX).filter_map(|unit| unit.as_u8()).collect();
        let (mut ids, mut numbers) = (vec![first], HashMap::from([(first, Self::START)]));
        let mut next = Vec::new();
        let mut before: Vec<Vec<u32>> = vec![Vec::new()];
        let mut state = Self::START;
        while let Some(&id) = ids.get(state as usize) {
            for &byte in &bytes {
                let after = dfa.next_state(id, byte);
                if dfa.is_dead_state(after) {
                    next.push(DEAD);
                    continue;
                }
                let number = *numbers.entry(after).or_insert_with(|| {
                    ids.push(after);
                    before.push(Vec::new());
                    ids.len() as u32 - 1
                });
                before[number as usize].push(state);
                next.push(number);
            }
            state += 1;
        }
        // It tells a match one byte late: what follows a match that nothing continues is a state too, and leads
        // nowhere.
        let accepts: Vec<bool> = ids.iter().map(|&id| dfa.is_match_state(dfa.next_eoi_state(id))).collect();
        let mut is_live = accepts.clone();
        let mut waiting: Vec<u32> = (0..state).filter(|&state| accepts[state as usize]).collect();
        while let Some(state) = waiting.pop() {
            for &earlier in &before[state as usize] {
                if !std::mem::replace(&mut is_live[earlier as usize], true) {
                    waiting.push(earlier);
                }
            }
        }
        for after in &mut next {
            if *after != DEAD && !is_live[*after as usize] {
                *after = DEAD;
            }
        }
        is_live[0].then_some(Self { class_of, num_classes: bytes.len(), next, accepts })
    }

    /// The state after a byte; none if no text that goes on like this matches.
    #[inline]
    pub(crate) fn after(&self, state: u32, byte: u8) -> Option<u32> {
        let class = usize::from(self.class_of[usize::from(byte)]);
        let after = self.next[state as usize * self.num_classes + class];
        (after != DEAD).then_some(after)
    }

    /// Whether what led to a state matches.
    pub(crate) fn accepts(&self, state: u32) -> bool {
        self.accepts[state as usize]
    }

    /// A number for each state: those with the same one are gone on with by the same texts of up to `num_bytes`, and
    /// match or do not match alike. Far from its ends the states of a repetition that counts are all the same.
    ///
    /// As Moore (1956) minimizes an automaton, for so many rounds. Each state has its own number if that takes long.
    pub(crate) fn alike(&self, num_bytes: usize) -> Vec<u32> {
        let num_states = self.accepts.len();
        let (mut kinds, mut num_kinds) = (vec![0; num_states], 1);
        for round in 0..num_bytes {
            if round * (self.next.len() + COST_OF_STATE * num_states) > MAX_COMPARED {
                return (0..num_states as u32).collect();
            }
            let kind_of = |&next: &u32| kinds.get(next as usize).map_or(DEAD, |&kind| kind);
            let next_kinds: Vec<u32> = self.next.iter().map(kind_of).collect();
            let refined = numbered(next_kinds.chunks(self.num_classes));
            kinds = refined.0;
            // Then no round after this one parts any.
            if std::mem::replace(&mut num_kinds, refined.1) == refined.1 {
                break;
            }
        }
        numbered(kinds.iter().zip(&self.accepts)).0
    }
}

/// Numbers for keys, the same for equal ones; and how many.
fn numbered<K: Eq + Hash>(keys: impl Iterator<Item = K>) -> (Vec<u32>, usize) {
    let mut numbers = HashMap::new();
    let number_of = |key| {
        let next = numbers.len() as u32;
        *numbers.entry(key).or_insert(next)
    };
    let all = keys.map(number_of).collect();
    (all, numbers.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a text can be gone on with, and whether it matches.
    fn run(automaton: &Automaton, text: &[u8]) -> (bool, bool) {
        let last = text.iter().try_fold(Automaton::START, |state, &byte| automaton.after(state, byte));
        (last.is_some(), last.is_some_and(|state| automaton.accepts(state)))
    }

    #[test]
    fn all_matches_count_and_nothing_goes_on_after_the_last() {
        let automaton = Automaton::of_expression("a|ab|abcd*?|é").unwrap();
        for (text, expected) in [
            ("", (true, false)),
            ("a", (true, true)),
            ("ab", (true, true)),
            ("abc", (true, true)),
            ("abcdd", (true, true)),
            ("abcda", (false, false)),
            ("b", (false, false)),
            ("aa", (false, false)),
            ("é", (true, true)),
            ("éé", (false, false)),
        ] {
            assert_eq!(run(&automaton, text.as_bytes()), expected, "{text}");
        }
        assert_eq!(run(&automaton, &"é".as_bytes()[..1]), (true, false), "half a character");
        let texts = Automaton::of_texts(&["a|b".to_owned(), "a".to_owned()]).unwrap();
        assert_eq!((run(&texts, b"a"), run(&texts, b"a|b")), ((true, true), (true, true)));
        assert_eq!(run(&texts, b"b"), (false, false));
        assert_eq!(run(&Automaton::of_expression("").unwrap(), b""), (true, true));
        assert_eq!(run(&Automaton::of_expression("").unwrap(), b"a"), (false, false));
    }

    #[test]
    fn states_that_count_are_alike_far_from_the_ends() {
        let counted = Automaton::of_expression("[ab]{50,200}").unwrap();
        let kinds = counted.alike(8);
        let after = |num: usize| {
            let state = (0..num).fold(Automaton::START, |state, _| counted.after(state, b'a').unwrap());
            kinds[state as usize]
        };
        assert_eq!(after(0), after(49), "only what goes on counts, not what ends 50 bytes later");
        assert_ne!(after(49), after(50), "here it may end");
        assert_eq!(after(50), after(192), "eight bytes are left");
        assert_ne!(after(192), after(193));
        assert_ne!(after(199), after(200));
        let pairs = Automaton::of_expression("(ab|cd)*e").unwrap();
        let kinds = pairs.alike(1000);
        let after = |text: &[u8]| {
            let state = text.iter().fold(Automaton::START, |state, &byte| pairs.after(state, byte).unwrap());
            kinds[state as usize]
        };
        assert!(after(b"") == after(b"ab") && after(b"ab") == after(b"abcd"));
        let parted: std::collections::BTreeSet<_> = [&b""[..], b"a", b"c", b"e"].map(after).into();
        assert_eq!(parted.len(), 4);
    }

    #[test]
    fn what_has_no_table_is_left_to_the_parser() {
        for expression in [
            "(",
            r"a\b",
            "^a",
            "a$",
            r"[^\s\S]",
            // 2^30 states, and states by the million.
            "[ab]*a[ab]{30}",
            "((a{1,1000}){1,1000}){1,1000}",
            r"\w{3000}",
        ] {
            assert!(Automaton::of_expression(expression).is_none(), "{expression}");
        }
        for expression in [
            r"\w+( \w+)*",
            "[a-z]{2000,4000}",
            r"\d{4}-\d{2}-\d{2}",
            r"(?s).{0,400}",
            r"(\+1 )?\(?[0-9]{3}\)?[- .][0-9]{3}[- .][0-9]{4}",
            r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}",
            r"https?://[^\s/$.?#][^\s]*",
            r"(?i)true|false|nu(ll)?",
            r"\p{L}+( \p{L}+)*",
        ] {
            assert!(Automaton::of_expression(expression).is_some(), "{expression}");
        }
    }
}
