//! Stop strings of a request, which count in the content of a reply and not in its reasoning.

use trunkline_reply::{Section, Sections};
use trunkline_text::{StopMatcher, StopStep, StopText};

/// Looks for a request's stop strings in its output.
pub struct Stops {
    matcher: StopMatcher,
    /// None: all of the output is content.
    sections: Option<Sections>,
}

impl Stops {
    /// `sections`: of a reply that may hold reasoning.
    pub fn new(stops: &[String], text: StopText, sections: Option<&Sections>) -> Self {
        // Without stop strings nothing needs to be parted.
        let sections = sections.filter(|_| !stops.is_empty()).cloned();
        Self { matcher: StopMatcher::new(stops, text), sections }
    }

    /// Text that is certain, and the stop string that ends it.
    pub fn push(&mut self, text: &str) -> StopStep {
        let Some(sections) = &mut self.sections else { return self.matcher.push(text) };
        let mut parts = Parts::default();
        sections.push(text, |section, part| parts.add(section, part));
        parts.until_stop(&mut self.matcher)
    }

    /// There is no more: what was held back, up to a stop string.
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

/// Parts of the output in their order: content comes last.
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
