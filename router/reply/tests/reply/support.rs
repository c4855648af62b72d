//! What the tests compare: a reply's parts, and replies to try.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use trunkline_reply::{Piece, ReasoningMarks, ReasoningStart, ReplyParser, Sections, ToolFormat};

use crate::draw;

/// A reply's parts, joined: what must not depend on the cuts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    /// For the reader.
    pub text: String,
    /// Before it.
    pub reasoning: String,
    /// Name, arguments, whether it ended.
    pub calls: Vec<(String, String, bool)>,
}

impl Reply {
    /// Text alone.
    pub fn of(text: &str) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// With a call that ended.
    pub fn calling(mut self, name: &str, arguments: &str) -> Self {
        self.calls.push((name.into(), arguments.into(), true));
        self
    }

    /// With this piece behind the others.
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

/// So many cases in the first tier, and 30 times as many in the second.
pub fn drawn(few: u64) -> ProptestConfig {
    ProptestConfig {
        cases: draw::count("TRUNKLINE_CASES", few, 30 * few) as u32,
        rng_seed: RngSeed::Fixed(draw::first_seed()),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// The tools.
pub const NAMES: [&str; 3] = ["get_weather", "get_time", "f"];

/// The parts of a reply that comes in these pieces.
pub fn parse(
    format: Option<ToolFormat>,
    reasoning: Option<ReasoningStart>,
    pieces: impl IntoIterator<Item = impl AsRef<str>>,
) -> Reply {
    let names = NAMES.map(String::from).to_vec();
    let sections = Sections::new(reasoning, ReasoningMarks::Think);
    parse_with(ReplyParser::new(sections, format.map(|format| (format, names))), pieces)
}

/// The same, of this parser.
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

/// Replies made of what means something in some form.
pub fn fragments() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        Just("<tool_call>".to_owned()),
        Just("</tool_call>".to_owned()),
        Just("[TOOL_CALLS]".to_owned()),
        Just("[ARGS]".to_owned()),
        Just("[CALL_ID]".to_owned()),
        Just("<|python_tag|>".to_owned()),
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

/// Each of the forms, and none.
pub fn formats() -> impl Strategy<Value = Option<ToolFormat>> {
    (0..=ToolFormat::ALL.len()).prop_map(|idx| ToolFormat::ALL.get(idx).copied())
}

/// Wherever reasoning begins.
pub fn reasoning() -> impl Strategy<Value = Option<ReasoningStart>> {
    prop_oneof![Just(None), Just(Some(ReasoningStart::InReply)), Just(Some(ReasoningStart::InPrompt))]
}
