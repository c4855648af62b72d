//! Replies in the formats of all model families, cut at every position.

use proptest::prelude::*;
use serde_json::Value;
use trunkline_reply::{ReasoningStart, ToolFormat};

use crate::support::{Reply, drawn, parse, parse_in_all_ways};

/// Replies as models of each family write them, and texts that only look like calls, a line each.
const RECORDED: &str = include_str!("../replies/recorded.jsonl");

/// Returns the rows of [`RECORDED`] with this mark, or those without any: format, text and expected reply.
fn recorded(mark: Option<&str>) -> Vec<(ToolFormat, String, Reply)> {
    let rows = RECORDED.lines().map(|line| serde_json::from_str::<Value>(line).expect("a row"));
    let marks = ["has_calls_in_reasoning", "is_lookalike"];
    let rows = rows.filter(|row| marks.into_iter().find(|mark| row.get(mark).is_some()) == mark);
    let read = |row: Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut reply = Reply { reasoning: text(&row["reasoning"]), ..Reply::of(&text(&row["content"])) };
        for call in row["calls"].as_array().into_iter().flatten() {
            reply = reply.calling(&text(&call[0]), &text(&call[1]));
        }
        let format = ToolFormat::ALL.iter().find(|format| row["format"] == format.name());
        (*format.unwrap_or_else(|| panic!("{row}")), text(&row["text"]), reply)
    };
    rows.map(read).collect()
}

/// Reasoning about calls, in formats where a call may be part of reasoning and in others.
const THOUGHTS: &[(ToolFormat, &str)] = &[
    (ToolFormat::HERMES, "I could write <tool_call> and </tool_call>."),
    (ToolFormat::HERMES, "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>\n"),
    (ToolFormat::HERMES, "{\"name\": \"f\", \"arguments\": {}} "),
    (ToolFormat::HERMES, " <tool_"),
    (ToolFormat::QWEN3_CODER, "Some models write <function=f>\n</function> without a mark."),
    (ToolFormat::GLM, "<tool_call>get_time is a tool"),
    (ToolFormat::XLAM, "```json\n[{\"name\": \"f\", \"arguments\": {}}]\n```"),
    (ToolFormat::JSON, "{\"name\": \"f\", \"arguments\": {}}"),
    (ToolFormat::LLAMA3, "<|python_tag|>{\"name\": \"f\"}"),
    (ToolFormat::PYTHONIC, "[f(a=1)]"),
    (ToolFormat::PHI4, "functools[{\"name\": \"f\", \"arguments\": {}}]"),
    (ToolFormat::OLMO3, "<function_calls>f(a=1)</function_calls>"),
    (ToolFormat::GRANITE, "<tool_call>[{\"name\": \"f\", \"arguments\": {}}]"),
];

#[test]
fn calls_in_reasoning_are_found_where_the_format_has_a_mark_for_them() {
    // As Qwen3.5 and others write them (vLLM's issue 39056).
    for (format, text, wanted) in recorded(Some("has_calls_in_reasoning")) {
        let (start, inside) = (ReasoningStart::InReply, ReasoningStart::InPrompt);
        assert_eq!(parse_in_all_ways(Some(format), Some(start), &text), wanted, "{format:?}: {text}");
        // The prompt may have opened reasoning.
        let text = text.strip_prefix("<think>").or(text.strip_prefix("<|START_THINKING|>")).unwrap();
        assert_eq!(parse_in_all_ways(Some(format), Some(inside), text), wanted, "{format:?}: {text}");
        // Without tools it is only reasoning.
        assert_eq!(parse_in_all_ways(None, Some(inside), text).calls, [], "{text}");
    }
}

#[test]
fn reasoning_about_calls_is_reasoning() {
    for (format, thought) in THOUGHTS {
        let wanted = Reply { reasoning: (*thought).into(), ..Reply::of("Yes.") };
        let text = format!("<think>{thought}</think>Yes.");
        let found = parse_in_all_ways(Some(*format), Some(ReasoningStart::InReply), &text);
        assert_eq!(found, wanted, "{format:?}: {text}");
    }
}

#[test]
fn a_reply_under_a_grammar_has_no_calls_in_its_reasoning() {
    use trunkline_reply::{ReasoningMarks, ReplyParser, Sections};
    let call = "<tool_call>{\"name\": \"get_time\", \"arguments\": {}}</tool_call>";
    let text = format!("<think>a{call}</think>{call}");
    for cuts in [vec![text.as_str()], text.split_inclusive('>').collect()] {
        let sections = Sections::constrained(Some(ReasoningStart::InReply), ReasoningMarks::Think);
        let parser = ReplyParser::new(sections, Some((ToolFormat::HERMES, crate::support::tools())));
        let reply = crate::support::parse_with(parser, cuts);
        let wanted = Reply { reasoning: format!("a{call}"), ..Reply::of("").calling("get_time", "{}") };
        assert_eq!(reply, wanted);
    }
}

#[test]
fn calls_of_each_format_are_found_wherever_they_are_cut() {
    let rows = recorded(None);
    assert!(ToolFormat::ALL.iter().all(|format| rows.iter().any(|(of, ..)| of == format)));
    for (format, text, wanted) in rows {
        let found = parse_in_all_ways(Some(format), Some(ReasoningStart::InReply), &text);
        assert_eq!(found, wanted, "{format:?}: {text}");
        // Without the channels of reasoning, messages cannot be told apart.
        if wanted.reasoning.is_empty() && format != ToolFormat::HARMONY {
            assert_eq!(parse_in_all_ways(Some(format), None, &text), wanted, "{format:?}: {text}");
        }
    }
}

#[test]
fn text_that_only_looks_like_a_call_is_text() {
    for (format, text, _) in recorded(Some("is_lookalike")) {
        assert_eq!(parse_in_all_ways(Some(format), None, &text), Reply::of(&text), "{format:?}: {text}");
    }
    // A call that follows such text is found.
    let text = "<tool_call>no <tool_call>{\"name\": \"get_time\", \"arguments\": {}}</tool_call>";
    let wanted = Reply::of("<tool_call>no").calling("get_time", "{}");
    assert_eq!(parse_in_all_ways(Some(ToolFormat::HERMES), None, text), wanted);
}

#[test]
fn names_and_keys_have_a_longest_length_wherever_they_are_cut() {
    let long = "x".repeat(600);
    for (format, text) in [
        (ToolFormat::KIMI, format!("<|tool_call_begin|>functions.{long}:0<|tool_call_argument_begin|>{{}}")),
        (ToolFormat::QWEN3_CODER, format!("<function={long}>\n</function>")),
    ] {
        assert_eq!(parse_in_all_ways(Some(format), None, &text), Reply::of(&text), "{format:?}");
    }
    let rest = format!("<arg_key>{long}</arg_key><arg_value>1</arg_value></tool_call>");
    let reply = parse_in_all_ways(Some(ToolFormat::GLM), None, &format!("<tool_call>f{rest}"));
    assert_eq!((reply.calls, reply.text), (vec![("f".into(), "{".into(), true)], rest));
}

#[test]
fn an_argument_between_tags_streams() {
    use trunkline_reply::{Piece, ReasoningMarks, ReplyParser, Sections};
    let tools = (ToolFormat::QWEN3_CODER, crate::support::tools());
    let mut parser = ReplyParser::new(Sections::new(None, ReasoningMarks::Think), Some(tools));
    let mut out = Vec::new();
    parser.push("<tool_call>\n<function=f>\n<parameter=code>\none\n", &mut out);
    let begin = Piece::CallBegin { name: "f".into() };
    assert_eq!(out, [begin, Piece::Arguments("{\"code\": \"one".into())]);
    out.clear();
    parser.push("two\n</param", &mut out);
    assert_eq!(out, [Piece::Arguments("\\ntwo".into())]);
    out.clear();
    parser.push("eter>\n</function>", &mut out);
    assert_eq!(out, [Piece::Arguments("\"}".into()), Piece::CallEnd]);
    // Tags that break off end the call, and the rest is text.
    let text = "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value> oops</tool_call>";
    let reply = parse_in_all_ways(Some(ToolFormat::GLM), None, text);
    assert_eq!(reply.calls, [("f".into(), "{\"a\": 1".into(), true)]);
    assert_eq!(reply.text, " oops</tool_call>");
}

proptest! {
    #![proptest_config(drawn(300))]

    #[test]
    fn a_text_between_tags_is_the_argument(code in "[ -~\n<>/éß🙂\\\\\"]{0,24}", is_glm: bool) {
        let (format, text) = if is_glm {
            let text = format!("<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>{code}</arg_value>\n</tool_call>");
            (ToolFormat::GLM, text)
        } else {
            let text = format!("<tool_call>\n<function=f>\n<parameter=code>\n{code}\n</parameter>\n</function>\n</tool_call>");
            (ToolFormat::QWEN3_CODER, text)
        };
        let reply = parse(Some(format), None, text.chars().map(String::from));
        prop_assert_eq!(&reply, &parse(Some(format), None, [&text]));
        let arguments: serde_json::Value = serde_json::from_str(&reply.calls[0].1).unwrap();
        prop_assert_eq!(arguments, serde_json::json!({"code": code}));
        prop_assert_eq!(reply.text, "");
    }
}
