//! Reasoning and content are separated, wherever the text is cut.

use proptest::prelude::*;

use trunkline_reply::Section::{Content, Mark, Reasoning};
use trunkline_reply::{ReasoningMarks, ReasoningStart, Section, Sections};

/// Splits a text that arrives in these pieces, and joins adjacent parts of one section.
fn split(start: Option<ReasoningStart>, marks: ReasoningMarks, cuts: &[&str]) -> Vec<(Section, String)> {
    let mut parts: Vec<(Section, String)> = Vec::new();
    let mut emit = |section, part: &str| match parts.last_mut() {
        Some((last, text)) if *last == section => text.push_str(part),
        _ => parts.push((section, part.to_owned())),
    };
    let mut sections = Sections::new(start, marks);
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
        assert_eq!(split(start, ReasoningMarks::Think, &[&text]), parts, "{text:?}");
    }
}

#[test]
fn channels_tell_what_a_message_is() {
    let (in_reply, in_prompt) = (Some(ReasoningStart::InReply), Some(ReasoningStart::InPrompt));
    let long = format!("<|channel|>{}<|message|>a", "x".repeat(600));
    let next = "<|end|><|start|>assistant<|channel|>final<|message|>";
    let call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}";
    for (start, parts) in [
        (
            in_reply,
            vec![
                (Mark, "<|channel|>analysis<|message|>"),
                (Reasoning, "so"),
                (Mark, next),
                (Content, "Hello"),
            ],
        ),
        (in_prompt, vec![(Reasoning, "so"), (Mark, next), (Content, "Hello")]),
        (in_reply, vec![(Content, call), (Mark, "<|call|>"), (Content, "x")]),
        (in_reply, vec![(Content, " to=functions.f<|channel|>commentary json<|message|>{}")]),
        (in_reply, vec![(Mark, "<|channel|>commentary<|message|>"), (Content, "I look."), (Mark, next)]),
        // The end of a message is missing.
        (
            in_reply,
            vec![
                (Mark, "<|channel|>analysis<|message|>"),
                (Reasoning, "so"),
                (Content, &call[..call.len() - 2]),
            ],
        ),
        (in_reply, vec![(Content, "Hello <|message|> <|en")]),
        (in_reply, vec![(Content, "<|channel|>final")]),
        (in_reply, vec![(Content, &long)]),
        (None, vec![(Content, "<|channel|>analysis<|message|>so")]),
    ] {
        let text: String = parts.iter().map(|(_, part)| *part).collect();
        let parts: Vec<_> = parts.into_iter().map(|(section, part)| (section, part.to_owned())).collect();
        assert_eq!(split(start, ReasoningMarks::Harmony, &[&text]), parts, "{text:?}");
    }
}

#[test]
fn the_content_of_a_constrained_message_spells_marks_as_text() {
    use Section::{Content, Mark, Reasoning};
    let thought = [(Mark, "<|channel|>analysis<|message|>"), (Reasoning, "so")];
    let next = (Mark, "<|end|><|start|>assistant<|channel|>final<|message|>");
    let content = (Content, r#"{"a": "<|end|><|channel|>analysis<|message|> <|"}"#);
    for (start, parts) in [
        (ReasoningStart::InReply, [&thought[..], &[next, content]].concat()),
        (
            ReasoningStart::InReply,
            [
                &thought[..],
                &[
                    (Mark, "<|end|><|start|>assistant<|channel|>analysis<|message|>"),
                    (Reasoning, "b"),
                    next,
                    content,
                ],
            ]
            .concat(),
        ),
        (ReasoningStart::InReply, vec![(Mark, "<|channel|>final<|message|>"), content]),
        (ReasoningStart::InPrompt, vec![(Reasoning, "so"), next, content]),
        (ReasoningStart::InReply, vec![content]),
    ] {
        let text: String = parts.iter().map(|(_, part)| *part).collect();
        // The text is cut everywhere, as in a stream of letters.
        for size in [1, 2, text.len()] {
            let mut sections = Sections::constrained(Some(start), ReasoningMarks::Harmony);
            let mut split: Vec<(Section, String)> = Vec::new();
            let mut add = |section: Section, part: &str| match split.last_mut() {
                Some((last, text)) if *last == section => text.push_str(part),
                _ => split.push((section, part.to_owned())),
            };
            for chunk in text.as_bytes().chunks(size) {
                sections.push(std::str::from_utf8(chunk).unwrap(), &mut add);
            }
            sections.finish(&mut add);
            let wanted: Vec<_> = parts.iter().map(|(section, part)| (*section, (*part).to_owned())).collect();
            assert_eq!(split, wanted, "{text}");
        }
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
        let parts = split(start, ReasoningMarks::Think, &[&text]);
        prop_assert_eq!(&split(start, ReasoningMarks::Think, &cut(&text, positions)), &parts);
        let joined: String = parts.iter().map(|(_, part)| part.as_str()).collect();
        prop_assert_eq!(joined, text);
    }

    #[test]
    fn cuts_of_messages_change_nothing_and_nothing_is_lost(
        is_in_prompt: bool,
        text in "(<\\|start\\|>|assistant|<\\|channel\\|>|analysis|final|commentary| to=functions\\.|f|<\\|message\\|>\
            |<\\|end\\|>|<\\|call\\|>|<\\|| |é|\\{\\}){0,16}",
        positions in prop::collection::vec(0usize..200, 0..8),
    ) {
        let start = Some(if is_in_prompt { ReasoningStart::InPrompt } else { ReasoningStart::InReply });
        let parts = split(start, ReasoningMarks::Harmony, &[&text]);
        prop_assert_eq!(&split(start, ReasoningMarks::Harmony, &cut(&text, positions)), &parts);
        let joined: String = parts.iter().map(|(_, part)| part.as_str()).collect();
        prop_assert_eq!(joined, text);
    }
}
