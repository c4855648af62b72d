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
        let mut step = StopStep::default();
        sections.push(text, |section, part| add(&mut self.matcher, section, part, &mut step));
        step
    }

    /// Ends the output. Returns the text that was held back, up to a stop string.
    pub fn finish(&mut self) -> StopStep {
        let mut step = StopStep::default();
        if let Some(sections) = &mut self.sections {
            sections.finish(|section, part| add(&mut self.matcher, section, part, &mut step));
        }
        step.text.push_str(&self.matcher.finish());
        step
    }
}

/// Adds a part of the output to `step`, up to a stop string. None spans a mark.
fn add(matcher: &mut StopMatcher, section: Section, part: &str, step: &mut StopStep) {
    if step.matched.is_some() {
        return;
    }
    match section {
        Section::Mark | Section::Reasoning => {
            step.text.push_str(&matcher.finish());
            step.text.push_str(part);
        }
        Section::Content => {
            let found = matcher.push(part);
            step.text.push_str(&found.text);
            step.matched = found.matched;
        }
    }
}
