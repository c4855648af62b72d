//! Reasoning and content are parted, however the text is cut.

use proptest::prelude::*;

use trunkline_reply::Section::{Content, Mark, Reasoning};
use trunkline_reply::{ReasoningMarks, ReasoningStart, Section, Sections};

/// Neighbours of one section are joined: how they were cut does not count.
fn parted(start: Option<ReasoningStart>, cuts: &[&str]) -> Vec<(Section, String)> {
    let mut parts: Vec<(Section, String)> = Vec::new();
    let mut give = |section, part: &str| match parts.last_mut() {
        Some((last, text)) if *last == section => text.push_str(part),
        _ => parts.push((section, part.to_owned())),
    };
    let mut sections = Sections::new(start, ReasoningMarks::Think);
    for cut in cuts {
        sections.push(cut, &mut give);
    }
    sections.finish(&mut give);
    parts
}

#[test]
fn content_begins_behind_reasoning_if_there_is_any() {
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
        assert_eq!(parted(start, &[&text]), parts, "{text:?}");
    }
}

fn cut(text: &str, mut places: Vec<usize>) -> Vec<&str> {
    places.iter_mut().for_each(|place| {
        *place %= text.len() + 1;
        while !text.is_char_boundary(*place) {
            *place -= 1;
        }
    });
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect()
}

proptest! {
    #![proptest_config(crate::support::drawn(256))]

    #[test]
    fn cuts_change_nothing_and_nothing_is_lost(
        start in prop_oneof![
            Just(None), Just(Some(ReasoningStart::InReply)), Just(Some(ReasoningStart::InPrompt)),
        ],
        text in "(<think>|</think>|</|<|think>|\n| |é|a){0,12}",
        places in prop::collection::vec(0usize..100, 0..8),
    ) {
        let parts = parted(start, &[&text]);
        prop_assert_eq!(&parted(start, &cut(&text, places)), &parts);
        let joined: String = parts.iter().map(|(_, part)| part.as_str()).collect();
        prop_assert_eq!(joined, text);
    }
}
