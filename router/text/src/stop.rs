//! Stop strings over a stream of text.

use std::collections::BTreeMap;

/// Whether the output keeps the stop string that ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopText {
    /// It ends before it (OpenAI).
    Omit,
    /// It ends with it (TGI).
    Include,
}

/// What one piece of text brings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that no stop string can take back.
    pub text: String,
    /// Number of the stop string (in the order given) that ends the output here; nothing comes after it.
    pub matched: Option<usize>,
}

/// Finds the first of several stop strings, however the text is cut, and holds back what may still become one.
///
/// First is the one that is complete first, so that an output ends as soon as it contains a stop string; of several
/// complete at the same place, the longest. An output therefore does not depend on how its text was cut.
///
/// Aho and Corasick's automaton (<https://doi.org/10.1145/360825.360855>) over bytes: its state is the longest end of
/// the text that begins a stop string, which is exactly what has to be held back.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    nodes: Vec<Node>,
    include: StopText,
    state: usize,
    /// The end of the text not yet emitted; never longer than the longest stop string, between two calls.
    held: String,
    matched: bool,
}

/// A prefix of one or more stop strings.
#[derive(Debug, Clone, Default)]
struct Node {
    children: BTreeMap<u8, usize>,
    /// The longest proper suffix of this prefix that is a prefix too.
    fallback: usize,
    /// Its length in bytes.
    depth: usize,
    /// The longest stop string that this prefix ends with: number and length in bytes.
    complete: Option<(usize, usize)>,
}

const ROOT: usize = 0;

impl StopMatcher {
    /// Empty strings are ignored; of equal ones the first counts. Memory: O(bytes of all stops).
    pub fn new<S: AsRef<str>>(stops: &[S], include: StopText) -> Self {
        let mut nodes = vec![Node::default()];
        for (idx, stop) in stops.iter().enumerate() {
            let stop = stop.as_ref().as_bytes();
            let mut at = ROOT;
            for (position, &byte) in stop.iter().enumerate() {
                at = match nodes[at].children.get(&byte) {
                    Some(&child) => child,
                    None => {
                        nodes.push(Node { depth: position + 1, ..Node::default() });
                        let child = nodes.len() - 1;
                        nodes[at].children.insert(byte, child);
                        child
                    }
                };
            }
            if at != ROOT {
                nodes[at].complete.get_or_insert((idx, stop.len()));
            }
        }
        link(&mut nodes);
        Self { nodes, include, state: ROOT, held: String::new(), matched: false }
    }

    /// Takes the next piece of text. After a match it takes nothing more. O(length of `text`).
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.matched {
            return StopStep::default();
        }
        if self.nodes.len() == 1 {
            // No stop strings: nothing is ever held back.
            return StopStep { text: text.to_owned(), matched: None };
        }
        let num_held = self.held.len();
        self.held.push_str(text);
        for (position, &byte) in text.as_bytes().iter().enumerate() {
            self.state = step(&self.nodes, self.state, byte);
            if let Some((idx, num_bytes)) = self.nodes[self.state].complete {
                let end = num_held + position + 1;
                let mut out = std::mem::take(&mut self.held);
                out.truncate(if self.include == StopText::Include { end } else { end - num_bytes });
                self.matched = true;
                return StopStep { text: out, matched: Some(idx) };
            }
        }
        // A prefix of a stop string begins with a character's first byte, so this is a border of characters.
        let certain = self.held.len() - self.nodes[self.state].depth;
        let rest = self.held.split_off(certain);
        StopStep { text: std::mem::replace(&mut self.held, rest), matched: None }
    }

    /// The text held back, when the output ends otherwise. Empty after a match.
    pub fn finish(&mut self) -> String {
        self.state = ROOT;
        std::mem::take(&mut self.held)
    }
}

/// Where the automaton goes from `state` on `byte`. Amortised O(1): each fallback undoes an earlier step down.
fn step(nodes: &[Node], mut state: usize, byte: u8) -> usize {
    loop {
        if let Some(&child) = nodes[state].children.get(&byte) {
            return child;
        }
        if state == ROOT {
            return ROOT;
        }
        state = nodes[state].fallback;
    }
}

/// Fills in `fallback` and what it implies for `complete`, shorter prefixes first.
fn link(nodes: &mut [Node]) {
    let mut queue: Vec<usize> = nodes[ROOT].children.values().copied().collect();
    let mut next = 0;
    while let Some(&at) = queue.get(next) {
        next += 1;
        for (byte, child) in nodes[at].children.clone() {
            let fallback = step(nodes, nodes[at].fallback, byte);
            nodes[child].fallback = fallback;
            nodes[child].complete = nodes[child].complete.or(nodes[fallback].complete);
            queue.push(child);
        }
    }
}
