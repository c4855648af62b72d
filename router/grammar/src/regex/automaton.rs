//! Deterministic automata of regular expressions, as tables of states.

use std::collections::HashMap;
use std::hash::Hash;

use regex_automata::dfa::{Automaton as _, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;
use regex_automata::{Anchored, MatchKind};
use regex_syntax::hir::Hir;

/// Most bytes that each step from an expression to its table may use.
///
/// The size of a table can grow exponentially with the expression. The limit also bounds the time loosely: mostly to
/// some 0.1 s of a core, and to more for thousands of empty alternatives.
const MAX_BYTES: usize = 1 << 20;
/// Most bytes of the nondeterministic automaton. Each state of the table may visit all of its states.
const MAX_NFA_BYTES: usize = 1 << 19;
/// Most transitions compared while looking for equivalent states, which takes some 0.1 s of a core.
const MAX_COMPARED_TRANSITIONS: usize = 1 << 23;
/// Cost of comparing a state itself, in transitions.
const STATE_COST: usize = 8;
/// Marks a transition after which no text matches.
const DEAD: u32 = u32::MAX;

/// A deterministic automaton over bytes. A match can be reached from each of its states.
#[derive(Debug)]
pub(crate) struct Automaton {
    /// The class of each byte. Bytes of a class have the same transitions.
    class_of: [u8; 256],
    num_classes: usize,
    /// The next state, by state and class.
    transitions: Vec<u32>,
    /// For each state, whether the text that leads to it is a match.
    accepts: Vec<bool>,
}

impl Automaton {
    pub(crate) const START: u32 = 0;

    /// Builds the automaton of an expression in the syntax of the crate `regex`, which must match a text as a whole.
    ///
    /// Returns `None` if the expression is invalid, has look-around or anchors, matches nothing, or needs too many
    /// states.
    pub(crate) fn from_expression(expression: &str) -> Option<Self> {
        let hir = regex_syntax::parse(expression).ok()?;
        if hir.properties().look_set().is_empty() { Self::from_hir(&hir) } else { None }
    }

    /// Builds an automaton that matches each of several texts. Returns `None` if it needs too many states.
    pub(crate) fn from_texts(texts: &[String]) -> Option<Self> {
        Self::from_hir(&Hir::alternation(texts.iter().map(|text| Hir::literal(text.as_bytes())).collect()))
    }

    fn from_hir(hir: &Hir) -> Option<Self> {
        let config = thompson::Config::new()
            .nfa_size_limit(Some(MAX_NFA_BYTES))
            .which_captures(thompson::WhichCaptures::None);
        let nfa = thompson::Compiler::new().configure(config).build_from_hir(hir).ok()?;
        let config = dense::Config::new()
            .start_kind(StartKind::Anchored)
            // All matches count, not only the first.
            .match_kind(MatchKind::All)
            .accelerate(false)
            .dfa_size_limit(Some(MAX_BYTES))
            .determinize_size_limit(Some(MAX_BYTES));
        let dfa = dense::Builder::new().configure(config).build_from_nfa(&nfa).ok()?;
        Self::from_dfa(&dfa, dfa.start_state(&start::Config::new().anchored(Anchored::Yes)).ok()?)
    }

    fn from_dfa(dfa: &dense::DFA<Vec<u32>>, first: StateID) -> Option<Self> {
        let classes = dfa.byte_classes();
        let mut class_of = [0; 256];
        (0..=u8::MAX).for_each(|byte| class_of[usize::from(byte)] = classes.get(byte));
        let bytes: Vec<u8> = classes.representatives(0..=u8::MAX).filter_map(|unit| unit.as_u8()).collect();
        let (mut ids, mut numbers) = (vec![first], HashMap::from([(first, Self::START)]));
        let mut transitions = Vec::new();
        let mut predecessors: Vec<Vec<u32>> = vec![Vec::new()];
        let mut state = Self::START;
        while let Some(&id) = ids.get(state as usize) {
            for &byte in &bytes {
                let after = dfa.next_state(id, byte);
                if dfa.is_dead_state(after) {
                    transitions.push(DEAD);
                    continue;
                }
                let number = *numbers.entry(after).or_insert_with(|| {
                    ids.push(after);
                    predecessors.push(Vec::new());
                    ids.len() as u32 - 1
                });
                predecessors[number as usize].push(state);
                transitions.push(number);
            }
            state += 1;
        }
        // The DFA reports a match one byte late, so it has a state after a match that no byte continues. Such states
        // cannot reach a match and are removed.
        let accepts: Vec<bool> = ids.iter().map(|&id| dfa.is_match_state(dfa.next_eoi_state(id))).collect();
        let mut is_live = accepts.clone();
        let mut waiting: Vec<u32> = (0..state).filter(|&state| accepts[state as usize]).collect();
        while let Some(state) = waiting.pop() {
            for &earlier in &predecessors[state as usize] {
                if !std::mem::replace(&mut is_live[earlier as usize], true) {
                    waiting.push(earlier);
                }
            }
        }
        for after in &mut transitions {
            if *after != DEAD && !is_live[*after as usize] {
                *after = DEAD;
            }
        }
        is_live[0].then_some(Self { class_of, num_classes: bytes.len(), transitions, accepts })
    }

    /// Returns the state after a byte, or `None` if no match is reachable.
    #[inline]
    pub(crate) fn next(&self, state: u32, byte: u8) -> Option<u32> {
        let class = usize::from(self.class_of[usize::from(byte)]);
        let next = self.transitions[state as usize * self.num_classes + class];
        (next != DEAD).then_some(next)
    }

    pub(crate) fn accepts(&self, state: u32) -> bool {
        self.accepts[state as usize]
    }

    /// Numbers the equivalence classes of the states.
    ///
    /// Equivalent states can be continued by the same texts of up to `num_bytes`, and agree on whether they match. In a
    /// counted repetition all states far from its ends are equivalent. The method is Moore's minimization (1956), cut
    /// off after `num_bytes` rounds. If it takes too long, each state is a class of its own.
    pub(crate) fn equivalence_classes(&self, num_bytes: usize) -> Vec<u32> {
        let num_states = self.accepts.len();
        let (mut classes, mut num_classes) = (vec![0; num_states], 1);
        for round in 0..num_bytes {
            if round * (self.transitions.len() + STATE_COST * num_states) > MAX_COMPARED_TRANSITIONS {
                return (0..num_states as u32).collect();
            }
            let class_of = |&state: &u32| classes.get(state as usize).map_or(DEAD, |&class| class);
            let next_classes: Vec<u32> = self.transitions.iter().map(class_of).collect();
            let refined = numbered(next_classes.chunks(self.num_classes));
            classes = refined.0;
            // If no class was split, no later round splits one.
            if std::mem::replace(&mut num_classes, refined.1) == refined.1 {
                break;
            }
        }
        numbered(classes.iter().zip(&self.accepts)).0
    }
}

/// Numbers keys so that equal keys have the same number, and returns the count of distinct keys.
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

    /// Returns whether a text may be continued, and whether it matches.
    fn run(automaton: &Automaton, text: &[u8]) -> (bool, bool) {
        let last = text.iter().try_fold(Automaton::START, |state, &byte| automaton.next(state, byte));
        (last.is_some(), last.is_some_and(|state| automaton.accepts(state)))
    }

    #[test]
    fn all_matches_count_and_nothing_follows_the_longest() {
        let automaton = Automaton::from_expression("a|ab|abcd*?|é").unwrap();
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
        let texts = Automaton::from_texts(&["a|b".to_owned(), "a".to_owned()]).unwrap();
        assert_eq!((run(&texts, b"a"), run(&texts, b"a|b")), ((true, true), (true, true)));
        assert_eq!(run(&texts, b"b"), (false, false));
        assert_eq!(run(&Automaton::from_expression("").unwrap(), b""), (true, true));
        assert_eq!(run(&Automaton::from_expression("").unwrap(), b"a"), (false, false));
    }

    #[test]
    fn counting_states_are_equivalent_far_from_the_ends() {
        let counted = Automaton::from_expression("[ab]{50,200}").unwrap();
        let classes = counted.equivalence_classes(8);
        let after = |num: usize| {
            let state = (0..num).fold(Automaton::START, |state, _| counted.next(state, b'a').unwrap());
            classes[state as usize]
        };
        assert_eq!(after(0), after(49), "an end 50 bytes later does not matter");
        assert_ne!(after(49), after(50), "here it may end");
        assert_eq!(after(50), after(192), "eight bytes are left");
        assert_ne!(after(192), after(193));
        assert_ne!(after(199), after(200));
        let pairs = Automaton::from_expression("(ab|cd)*e").unwrap();
        let classes = pairs.equivalence_classes(1000);
        let after = |text: &[u8]| {
            let state = text.iter().fold(Automaton::START, |state, &byte| pairs.next(state, byte).unwrap());
            classes[state as usize]
        };
        assert!(after(b"") == after(b"ab") && after(b"ab") == after(b"abcd"));
        let distinct: std::collections::BTreeSet<_> = [&b""[..], b"a", b"c", b"e"].map(after).into();
        assert_eq!(distinct.len(), 4);
    }

    #[test]
    fn expressions_that_need_the_parser_have_no_automaton() {
        for expression in [
            "(",
            r"a\b",
            "^a",
            "a$",
            r"[^\s\S]",
            // These need 2^30 states, and millions of states.
            "[ab]*a[ab]{30}",
            "((a{1,1000}){1,1000}){1,1000}",
            r"\w{3000}",
        ] {
            assert!(Automaton::from_expression(expression).is_none(), "{expression}");
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
            assert!(Automaton::from_expression(expression).is_some(), "{expression}");
        }
    }
}
