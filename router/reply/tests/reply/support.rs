//! The expected form of a reply, and generators of replies.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use trunkline_reply::{Piece, ReasoningMarks, ReasoningStart, ReplyParser, Sections, ToolFormat};

use crate::draw;

/// The joined parts of a reply, which must not depend on where its text was cut.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    pub text: String,
    pub reasoning: String,
    /// For each call its name, its arguments, and whether it ended.
    pub calls: Vec<(String, String, bool)>,
}

impl Reply {
    /// Returns a reply that is only text.
    pub fn of(text: &str) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// Adds a complete call.
    pub fn calling(mut self, name: &str, arguments: &str) -> Self {
        self.calls.push((name.into(), arguments.into(), true));
        self
    }

    /// Appends a piece, and checks that it may follow the pieces before it.
    pub fn take(&mut self, piece: Piece) {
        match piece {
            Piece::Text(text) => {
                assert!(!text.is_empty());
                self.text.push_str(&text);
            }
            Piece::Reasoning(text) => self.reasoning.push_str(&text),
            Piece::CallBegin { name } => {
                assert!(self.calls.last().is_none_or(|last| last.2), "a call begins in a call");
                self.calls.push((name, String::new(), false));
            }
            Piece::Arguments(text) => {
                let last = self.calls.last_mut().expect("arguments of a call");
                assert!(!last.2, "arguments after the end");
                last.1.push_str(&text);
            }
            Piece::CallEnd => self.calls.last_mut().expect("a call ends").2 = true,
        }
    }
}

/// Runs `few` cases in the first tier of tests, and 30 times as many in the second.
pub fn drawn(few: u64) -> ProptestConfig {
    ProptestConfig {
        cases: draw::count("TRUNKLINE_CASES", few, 30 * few) as u32,
        rng_seed: RngSeed::Fixed(draw::first_seed()),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

pub const NAMES: [&str; 3] = ["get_weather", "get_time", "f"];

/// Returns the sections of a family that writes calls in this format.
pub fn sections(format: Option<ToolFormat>, reasoning: Option<ReasoningStart>) -> Sections {
    let is_harmony = format == Some(ToolFormat::HARMONY);
    Sections::new(reasoning, if is_harmony { ReasoningMarks::Harmony } else { ReasoningMarks::Think })
}

/// Parses a reply that arrives in these pieces.
pub fn parse(
    format: Option<ToolFormat>,
    reasoning: Option<ReasoningStart>,
    pieces: impl IntoIterator<Item = impl AsRef<str>>,
) -> Reply {
    let names = NAMES.map(String::from).to_vec();
    let sections = sections(format, reasoning);
    parse_with(ReplyParser::new(sections, format.map(|format| (format, names))), pieces)
}

/// Parses a reply that arrives in these pieces with a given parser.
pub fn parse_with(mut parser: ReplyParser, pieces: impl IntoIterator<Item = impl AsRef<str>>) -> Reply {
    let (mut out, mut reply) = (Vec::new(), Reply::default());
    for piece in pieces {
        parser.push(piece.as_ref(), &mut out);
        out.drain(..).for_each(|piece| reply.take(piece));
    }
    parser.finish(&mut out);
    out.into_iter().for_each(|piece| reply.take(piece));
    assert!(reply.calls.iter().all(|call| call.2), "a call did not end: {reply:?}");
    reply
}

/// Generates replies of fragments that have a meaning in some format.
pub fn fragments() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        Just("<tool_call>".to_owned()),
        Just("</tool_call>".to_owned()),
        Just("[TOOL_CALLS]".to_owned()),
        Just("[ARGS]".to_owned()),
        Just("[CALL_ID]".to_owned()),
        Just("<|python_tag|>".to_owned()),
        Just("<|start|>assistant".to_owned()),
        Just("<|channel|>analysis".to_owned()),
        Just("<|channel|>commentary".to_owned()),
        Just(" to=functions.f ".to_owned()),
        Just("<|message|>".to_owned()),
        Just("<|end|>".to_owned()),
        Just("<|call|>".to_owned()),
        Just("<think>".to_owned()),
        Just("</think>".to_owned()),
        Just("{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}}".to_owned()),
        Just("{\"name\": \"f\", ".to_owned()),
        Just("{\"name\": \"f\", \"arguments\": {\"a\": ".to_owned()),
        Just("}}".to_owned()),
        Just("True".to_owned()),
        Just("[f(a=1)]".to_owned()),
        Just("[f(a=".to_owned()),
        Just("\"\"\"".to_owned()),
        Just("\\".to_owned()),
        Just("f".to_owned()),
        "[\\[\\]{}(),:; \n\"a-c<é🙂]{0,6}",
    ];
    proptest::collection::vec(fragment, 0..8).prop_map(|fragments| fragments.concat())
}

/// Generates a format, or none.
pub fn formats() -> impl Strategy<Value = Option<ToolFormat>> {
    (0..=ToolFormat::ALL.len()).prop_map(|idx| ToolFormat::ALL.get(idx).copied())
}

/// Generates a place where reasoning may begin, or none.
pub fn reasoning() -> impl Strategy<Value = Option<ReasoningStart>> {
    prop_oneof![Just(None), Just(Some(ReasoningStart::InReply)), Just(Some(ReasoningStart::InPrompt))]
}
