//! Arguments that stream, reasoning, and properties of all formats.

use proptest::prelude::*;
use trunkline_reply::{Piece, ReasoningMarks, ReasoningStart, ReplyParser, Sections, ToolFormat};

use crate::support::{
    Reply, drawn, formats, fragments, parse, parse_in_all_ways, parse_with, reasoning, tools,
};

#[test]
fn arguments_stream_and_end_where_the_reply_is_cut() {
    let mut parser =
        ReplyParser::new(Sections::new(None, ReasoningMarks::Think), Some((ToolFormat::HERMES, tools())));
    let mut out = Vec::new();
    parser.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"One", &mut out);
    assert_eq!(out, [Piece::CallBegin { name: "f".into() }, Piece::Arguments("{\"text\": \"One".into())]);
    out.clear();
    parser.push(" two", &mut out);
    assert_eq!(out, [Piece::Arguments(" two".into())]);
    out.clear();
    parser.finish(&mut out);
    assert_eq!(out, [Piece::CallEnd]);
    // A call whose arguments become invalid ends there, and the rest is text.
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": oops}}</tool_call>";
    let reply = parse_in_all_ways(Some(ToolFormat::HERMES), None, text);
    assert_eq!(reply.calls, [("f".into(), "{\"a\": ".into(), true)]);
    assert_eq!(reply.text, "oops}}</tool_call>");
}

#[test]
fn reasoning_is_separated_from_the_reply() {
    use ReasoningStart::{InPrompt, InReply};
    let reply = |reasoning: &str, text: &str| Reply { reasoning: reasoning.into(), ..Reply::of(text) };
    for (start, text, wanted) in [
        (InReply, "<think>\nHm.\n</think>\n\nYes.", reply("\nHm.\n", "Yes.")),
        (InReply, " <think></think>Yes.", reply("", "Yes.")),
        (InReply, "Yes. <think> is a tag </think>", reply("", "Yes. <think> is a tag </think>")),
        (InReply, "<thi", reply("", "<thi")),
        (InReply, "<think>never ends </th", reply("never ends </th", "")),
        (InPrompt, "Hm. <b>\n</think>\n", reply("Hm. <b>\n", "")),
        (InPrompt, "</think>Yes. </think>", reply("", "Yes. </think>")),
        // The prompt opens reasoning, and the model writes the opening mark again.
        (InPrompt, "<think>\nHm.</think>Yes.", reply("\nHm.", "Yes.")),
        (InPrompt, "\n<think>Hm. <think></think>Yes.", reply("Hm. <think>", "Yes.")),
        (InPrompt, " <thin", reply(" <thin", "")),
        (InPrompt, " <thing></think>Yes.", reply(" <thing>", "Yes.")),
        (InPrompt, "\n\n", reply("\n\n", "")),
        (InReply, "[THINK]Hm.[/THINK]Yes.", reply("", "[THINK]Hm.[/THINK]Yes.")),
    ] {
        assert_eq!(parse_in_all_ways(None, Some(start), text), wanted, "{text}");
    }
    let text = "<think>a {\"b\"</think>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let wanted = reply("a {\"b\"", "").calling("f", "{}");
    assert_eq!(parse_in_all_ways(Some(ToolFormat::HERMES), Some(InReply), text), wanted);
}

#[test]
fn reasoning_may_have_the_marks_of_mistral() {
    let reply = |reasoning: &str, text: &str| Reply { reasoning: reasoning.into(), ..Reply::of(text) };
    for (text, wanted) in [
        ("[THINK]Hm. </think>[/THINK]Yes.", reply("Hm. </think>", "Yes.")),
        ("[THINK]Hm.[/THINK][TOOL_CALLS]f[ARGS]{}", reply("Hm.", "").calling("f", "{}")),
        ("<think>Hm.</think>Yes.", reply("", "<think>Hm.</think>Yes.")),
        ("[TH", reply("", "[TH")),
    ] {
        for (at, _) in text.char_indices() {
            let sections = Sections::new(Some(ReasoningStart::InReply), ReasoningMarks::Mistral);
            let parser = ReplyParser::new(sections, Some((ToolFormat::MISTRAL, tools())));
            assert_eq!(parse_with(parser, [&text[..at], &text[at..]]), wanted, "cut at {at}: {text}");
        }
    }
}

proptest! {
    #![proptest_config(drawn(1_000))]

    #[test]
    fn cuts_change_nothing(
        text in fragments(),
        format in formats(),
        reasoning in reasoning(),
        cuts in proptest::collection::vec(any::<usize>(), 0..6),
    ) {
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
        ends.retain(|end| text.is_char_boundary(*end));
        ends.extend([0, text.len()]);
        ends.sort_unstable();
        let pieces = ends.windows(2).map(|ends| &text[ends[0]..ends[1]]);
        prop_assert_eq!(parse(format, reasoning, pieces), parse(format, reasoning, [&text]));
    }

    #[test]
    fn arguments_are_json_whatever_a_model_writes_in_their_strings(code in "([^\"\\\\]|\\\\.){0,12}", format in formats(), is_named: bool) {
        let object = format!("{{\"a\": \"{code}\"}}");
        let text = match format.map(ToolFormat::name) {
            Some("hermes") => {
                format!("<tool_call>{{\"name\": \"f\", \"arguments\": {object}}}</tool_call>")
            }
            Some("harmony") => {
                format!("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{object}")
            }
            Some("mistral") if is_named => format!("[TOOL_CALLS]f[ARGS]{object}"),
            Some("mistral") => {
                format!("[TOOL_CALLS][{{\"arguments\": {object}, \"name\": \"f\"}}]")
            }
            Some("llama3" | "json" | "granite" | "xlam") => {
                format!("{{\"name\": \"f\", \"parameters\": {object}}}")
            }
            Some("deepseek") if is_named => {
                format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{object}\n```<｜tool▁call▁end｜>")
            }
            Some("deepseek") => format!("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{object}"),
            Some("kimi") => {
                format!("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{object}<|tool_call_end|>")
            }
            Some("phi4") => format!("functools[{{\"name\": \"f\", \"arguments\": {object}}}]"),
            Some("command") => {
                format!("<|START_ACTION|>[{{\"tool_name\": \"f\", \"parameters\": {object}}}]<|END_ACTION|>")
            }
            _ => return Ok(()),
        };
        let reply = parse(format, None, text.chars().map(String::from));
        prop_assert_eq!(&reply, &parse(format, None, [&text]));
        prop_assert_eq!(reply.text, "");
        let arguments: Result<serde_json::Value, _> = serde_json::from_str(&reply.calls[0].1);
        prop_assert!(arguments.is_ok_and(|arguments| arguments["a"].is_string()), "{:?}", reply.calls);
    }

    #[test]
    fn a_reply_without_calls_is_unchanged(text in fragments(), format in formats()) {
        // The marks around the content of Command A are no text.
        let sections = Sections::new(None, ReasoningMarks::Think);
        let reply = parse_with(ReplyParser::new(sections, format.map(|format| (format, tools()))), [&text]);
        if reply.calls.is_empty() {
            prop_assert_eq!(reply.text, text);
        }
    }
}
