//! Finds stop strings in streamed text.

use std::collections::BTreeMap;

/// The treatment of the stop string that ends an output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StopText {
    /// The output ends before the stop string, as OpenAI's API specifies.
    #[default]
    Omit,
    /// The output includes the stop string, as TGI's API specifies.
    Include,
}

/// The result of one piece of text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that no stop string can still remove.
    pub text: String,
    /// Index of the stop string that ends the output. No text follows it.
    pub matched: Option<usize>,
}

/// Finds the first of several stop strings, wherever the text is cut, and holds back text that may still become one.
///
/// The stop string that is complete first wins, so an output ends as soon as it contains one. If several are complete
/// at the same position, the longest wins. An output therefore does not depend on how its text was cut.
///
/// The matcher is an Aho-Corasick automaton (<https://doi.org/10.1145/360825.360855>) over bytes. Its state is the
/// longest suffix of the text that is a prefix of a stop string, which is exactly the text to hold back.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    nodes: Vec<Node>,
    include: StopText,
    state: usize,
    /// The text held back. Between two calls it is shorter than the longest stop string.
    held: String,
    matched: bool,
}

/// A prefix of one or more stop strings.
#[derive(Debug, Clone, Default)]
struct Node {
    children: BTreeMap<u8, usize>,
    /// The longest proper suffix of this prefix that is also a prefix.
    fallback: usize,
    /// Length of the prefix in bytes.
    depth: usize,
    /// Index and length in bytes of the longest stop string that the prefix ends with.
    complete: Option<(usize, usize)>,
}

const ROOT: usize = 0;

impl StopMatcher {
    /// Creates a matcher, in memory proportional to the bytes of all stop strings. Empty strings are ignored, and the
    /// first of equal strings counts.
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

    /// Matches the next piece of text, in time proportional to its length. After a match further text is discarded.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.matched {
            return StopStep::default();
        }
        if self.nodes.len() == 1 {
            // Without stop strings nothing is held back.
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
        // A prefix of a stop string begins with a character's first byte, so this is a character boundary.
        let certain = self.held.len() - self.nodes[self.state].depth;
        let rest = self.held.split_off(certain);
        StopStep { text: std::mem::replace(&mut self.held, rest), matched: None }
    }

    /// Returns the text held back, if the output ends without a match. Returns an empty string after a match.
    pub fn finish(&mut self) -> String {
        self.state = ROOT;
        std::mem::take(&mut self.held)
    }
}

/// Returns the state after a byte, in amortised O(1), because each fallback undoes an earlier step down.
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

/// Sets `fallback`, and `complete` as it follows from it, for shorter prefixes first.
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
