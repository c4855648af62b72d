//! Reasoning and content are separated, wherever the text is cut.

use proptest::prelude::*;

use trunkline_reply::Section::{Content, Mark, Reasoning};
use trunkline_reply::{ReasoningMarks, ReasoningStart, Section, Sections};

/// Splits a text that arrives in these pieces, and joins adjacent parts of one section.
fn split(start: Option<ReasoningStart>, cuts: &[&str]) -> Vec<(Section, String)> {
    let mut parts: Vec<(Section, String)> = Vec::new();
    let mut emit = |section, part: &str| match parts.last_mut() {
        Some((last, text)) if *last == section => text.push_str(part),
        _ => parts.push((section, part.to_owned())),
    };
    let mut sections = Sections::new(start, ReasoningMarks::Think);
    for cut in cuts {
        sections.push(cut, &mut emit);
    }
    sections.finish(&mut emit);
    parts
}

#[test]
fn content_begins_after_reasoning() {
    let (in_reply, in_prompt) = (Some(ReasoningStart::InReply), Some(ReasoningStart::InPrompt));
    let close = "</think>";
    for (start, parts) in [
        (in_reply, vec![(Mark, "<think>"), (Reasoning, "\nso"), (Mark, "</think>\n\n"), (Content, "Hello")]),
        (in_reply, vec![(Mark, " \n<think></think>"), (Content, "Hello")]),
        (in_reply, vec![(Content, " Hello </think> x")]),
        (in_reply, vec![(Content, " <thi")]),
        (in_reply, vec![(Mark, "<think>"), (Reasoning, "never ends </thin")]),
        (in_prompt, vec![(Reasoning, "so"), (Mark, "</think> \n "), (Content, "Hello")]),
        (in_prompt, vec![(Mark, "\n<think>"), (Reasoning, "again"), (Mark, close), (Content, "Hello")]),
        (in_prompt, vec![(Reasoning, "Hello")]),
        (in_prompt, vec![(Reasoning, " <thi")]),
        (in_prompt, vec![(Reasoning, "so"), (Mark, "</think>\n")]),
        (None, vec![(Content, "<think>Hello</think>")]),
    ] {
        let text: String = parts.iter().map(|(_, part)| *part).collect();
        let parts: Vec<_> = parts.into_iter().map(|(section, part)| (section, part.to_owned())).collect();
        assert_eq!(split(start, &[&text]), parts, "{text:?}");
    }
}

fn cut(text: &str, mut positions: Vec<usize>) -> Vec<&str> {
    positions.iter_mut().for_each(|position| {
        *position %= text.len() + 1;
        while !text.is_char_boundary(*position) {
            *position -= 1;
        }
    });
    positions.extend([0, text.len()]);
    positions.sort_unstable();
    positions.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect()
}

proptest! {
    #![proptest_config(crate::support::drawn(256))]

    #[test]
    fn cuts_change_nothing_and_nothing_is_lost(
        start in prop_oneof![
            Just(None), Just(Some(ReasoningStart::InReply)), Just(Some(ReasoningStart::InPrompt)),
        ],
        text in "(<think>|</think>|</|<|think>|\n| |é|a){0,12}",
        positions in prop::collection::vec(0usize..100, 0..8),
    ) {
        let parts = split(start, &[&text]);
        prop_assert_eq!(&split(start, &cut(&text, positions)), &parts);
        let joined: String = parts.iter().map(|(_, part)| part.as_str()).collect();
        prop_assert_eq!(joined, text);
    }
}
