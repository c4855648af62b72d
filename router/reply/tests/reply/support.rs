//! The expected form of a reply, and generators of replies.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::json;
use trunkline_reply::{Piece, ReasoningMarks, ReasoningStart, ReplyParser, Sections, Signature, ToolFormat};

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

/// Returns the tools that replies may call. The parameters of `f` may have any type, except `code`.
pub fn tools() -> Vec<Signature> {
    let weather = json!({"properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]},
    }, "$defs": {"Unit": {"enum": ["C", "F"]}}});
    let code = json!({"properties": {"code": {"type": "string"}}});
    [("get_weather", weather), ("get_time", json!({})), ("f", code)]
        .map(|(name, schema)| Signature::new(name, &schema))
        .to_vec()
}

/// Returns the sections of a family that writes calls in this format.
pub fn sections(format: Option<ToolFormat>, reasoning: Option<ReasoningStart>) -> Sections {
    let marks = match format.map(ToolFormat::name) {
        Some("harmony") => ReasoningMarks::Harmony,
        Some("command") => ReasoningMarks::Command,
        _ => ReasoningMarks::Think,
    };
    Sections::new(reasoning, marks)
}

/// Parses a reply that arrives in these pieces.
pub fn parse(
    format: Option<ToolFormat>,
    reasoning: Option<ReasoningStart>,
    pieces: impl IntoIterator<Item = impl AsRef<str>>,
) -> Reply {
    let sections = sections(format, reasoning);
    parse_with(ReplyParser::new(sections, format.map(|format| (format, tools()))), pieces)
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

/// Texts that have a meaning in some format.
const FRAGMENTS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<|start|>assistant",
    "<|channel|>analysis",
    "<|channel|>commentary",
    " to=functions.f ",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<think>",
    "</think>",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    "<|START_RESPONSE|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}}",
    "{\"name\": \"f\", ",
    "{\"name\": \"f\", \"arguments\": {\"a\": ",
    "{\"tool_name\": \"f\", \"parameters\": {}}",
    "}}",
    "True",
    "[f(a=1)]",
    "[f(a=",
    "\"\"\"",
    "\\",
    "f",
    "\n",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "function<｜tool▁sep｜>f\n```json\n{\"a\": 1}",
    "f<｜tool▁sep｜>{\"a\": 1}",
    "```",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_call|>",
    "functools",
    "<function_calls>",
    "f(a=1)",
    "</function_calls>",
    "<arg_key>code</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<function=f>",
    "<parameter=code>\n",
    "<parameter=a>",
    "</parameter>",
    "</function>",
];

/// Generates replies of fragments that have a meaning in some format.
pub fn fragments() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        6 => proptest::sample::select(FRAGMENTS).prop_map(str::to_owned),
        1 => "[\\[\\]{}(),:; \n\"a-c<é🙂]{0,6}",
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

/// Parses a reply whole, by characters, and cut once at each position, and checks that the results are equal.
pub fn parse_in_all_ways(format: Option<ToolFormat>, reasoning: Option<ReasoningStart>, text: &str) -> Reply {
    let whole = parse(format, reasoning, [text]);
    assert_eq!(parse(format, reasoning, text.chars().map(String::from)), whole, "by characters: {text}");
    for (at, _) in text.char_indices() {
        assert_eq!(parse(format, reasoning, [&text[..at], &text[at..]]), whole, "cut at {at}: {text}");
    }
    whole
}
