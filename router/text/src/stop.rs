//! Stop strings over a stream of text.

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
#[derive(Debug, Clone)]
pub struct StopMatcher {}

impl StopMatcher {
    /// Empty strings are ignored. Memory: O(bytes of all stops).
    pub fn new<S: AsRef<str>>(_stops: &[S], _include: StopText) -> Self {
        Self {}
    }

    /// Takes the next piece of text. After a match it takes nothing more. O(length of `text`).
    pub fn push(&mut self, _text: &str) -> StopStep {
        unimplemented!()
    }

    /// The text held back, when the output ends otherwise. Empty after a match.
    pub fn finish(&mut self) -> String {
        unimplemented!()
    }
}
