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

#[cfg(test)]
mod tests {
    use trunkline_reply::{ReasoningMarks, ReasoningStart};

    use super::*;

    fn output(start: Option<ReasoningStart>, text: &str, cut_at: usize) -> (String, Option<usize>) {
        let sections = Sections::new(start, ReasoningMarks::Think);
        let mut stops = Stops::new(&["so".into(), "<th".into()], StopText::Omit, Some(&sections));
        let mut output = String::new();
        for part in [&text[..cut_at], &text[cut_at..]] {
            let step = stops.push(part);
            output += &step.text;
            if step.matched.is_some() {
                return (output, step.matched);
            }
        }
        let step = stops.finish();
        (output + &step.text, step.matched)
    }

    #[test]
    fn a_stop_string_counts_in_the_content_alone() {
        let in_reply = Some(ReasoningStart::InReply);
        for (start, text, wanted, matched) in [
            (in_reply, "<think>so</think>\n\nsee. so", "<think>so</think>\n\nsee. ", Some(0)),
            (in_reply, "<think>so", "<think>so", None),
            // What the mark begins with is content if no mark comes of it.
            (in_reply, " <th", " ", Some(1)),
            (in_reply, " is", " is", None),
            (Some(ReasoningStart::InPrompt), "so</think>s", "so</think>s", None),
            (None, "<think>so", "", Some(1)),
        ] {
            for cut_at in 0..=text.len() {
                assert_eq!(output(start, text, cut_at), (wanted.to_owned(), matched), "{text:?} at {cut_at}");
            }
        }
    }
}
