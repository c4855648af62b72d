//! Finds stop strings in the content of a reply, but not in its reasoning.

use trunkline_reply::{Section, Sections};
use trunkline_text::{StopMatcher, StopStep, StopText};

pub struct Stops {
    matcher: StopMatcher,
    /// Separates reasoning from content; `None` if all of the output is content.
    sections: Option<Sections>,
}

impl Stops {
    /// Creates a matcher. `sections` is set if the reply may contain reasoning.
    pub fn new(stops: &[String], text: StopText, sections: Option<&Sections>) -> Self {
        // Without stop strings the sections need not be separated.
        let sections = sections.filter(|_| !stops.is_empty()).cloned();
        Self { matcher: StopMatcher::new(stops, text), sections }
    }

    /// Appends output text. Returns the text that is certain, and the stop string that was found, if any.
    pub fn push(&mut self, text: &str) -> StopStep {
        let Some(sections) = &mut self.sections else { return self.matcher.push(text) };
        let mut parts = Parts::default();
        sections.push(text, |section, part| parts.add(section, part));
        parts.until_stop(&mut self.matcher)
    }

    /// Ends the output. Returns the text that was held back, up to a stop string.
    pub fn finish(&mut self) -> StopStep {
        let mut parts = Parts::default();
        if let Some(sections) = &mut self.sections {
            sections.finish(|section, part| parts.add(section, part));
        }
        let mut step = parts.until_stop(&mut self.matcher);
        step.text.push_str(&self.matcher.finish());
        step
    }
}

/// A piece of output divided into content and what precedes it.
#[derive(Default)]
struct Parts {
    before: String,
    content: String,
}

impl Parts {
    fn add(&mut self, section: Section, part: &str) {
        match section {
            Section::Mark | Section::Reasoning => self.before.push_str(part),
            Section::Content => self.content.push_str(part),
        }
    }

    fn until_stop(self, matcher: &mut StopMatcher) -> StopStep {
        let step = matcher.push(&self.content);
        StopStep { text: self.before + &step.text, matched: step.matched }
    }
}
