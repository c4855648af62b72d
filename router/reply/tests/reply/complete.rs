//! Replies that are parsed complete, not streamed.

use proptest::prelude::*;
use trunkline_reply::{ReasoningStart, ReplyEnd, ReplyParser, ToolFormat};

use crate::support::{Reply, drawn, formats, fragments, parse, reasoning, sections, tools};

fn parse_complete(
    format: Option<ToolFormat>,
    reasoning: Option<ReasoningStart>,
    text: &str,
    end: ReplyEnd,
) -> Reply {
    let sections = sections(format, reasoning);
    let parser = ReplyParser::new(sections, format.map(|format| (format, tools())));
    let mut reply = Reply::default();
    parser.parse_complete(text, end).into_iter().for_each(|piece| reply.take(piece));
    reply
}

#[test]
fn a_call_with_invalid_arguments_is_text() {
    let call = r#"{"name": "f", "arguments": {"a": 1}}"#;
    for (format, text, wanted) in [
        (
            ToolFormat::HERMES,
            "Hm.\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": oops}}</tool_call>",
            None,
        ),
        (ToolFormat::MISTRAL, "[TOOL_CALLS]f[ARGS]{\"a\": oops}", None),
        (
            ToolFormat::GLM,
            "<tool_call>f<arg_key>code</arg_key><arg_value>x</arg_value> oops</tool_call>",
            None,
        ),
        (ToolFormat::JSON, "[{\"name\": \"f\", \"arguments\": {\"a\": oops}}]", None),
        (
            ToolFormat::JSON,
            &format!("[{call}, {{\"name\": \"f\", \"arguments\": {{oops}}}}]"),
            Some(Reply::of(r#"{"name": "f", "arguments": {oops}}]"#).calling("f", r#"{"a": 1}"#)),
        ),
        // A call that a limit cut is still a call.
        (ToolFormat::MISTRAL, "[TOOL_CALLS]f[ARGS]{\"a\": ", Some(Reply::of("").calling("f", "{\"a\": "))),
        (
            ToolFormat::QWEN3_CODER,
            "<tool_call><function=f><parameter=code>\na = 1\n</para",
            Some(Reply::of("").calling("f", "{\"code\": \"a = 1")),
        ),
        (
            ToolFormat::HERMES,
            &format!("Hm. <tool_call>{call}"),
            Some(Reply::of("Hm.").calling("f", r#"{"a": 1}"#)),
        ),
    ] {
        assert_eq!(
            parse_complete(Some(format), None, text, ReplyEnd::Cut),
            wanted.unwrap_or_else(|| Reply::of(text)),
            "{text}"
        );
    }
}

#[test]
fn a_call_whose_arguments_the_model_did_not_finish_is_text() {
    let list = r#"[{"name": "get_time", "arguments": {}}, "#;
    let item = r#"{"name": "f", "arguments": {"a": "x"#;
    let stopped =
        |format: ToolFormat, text: &str| parse_complete(Some(format), None, text, ReplyEnd::Stopped);
    for (format, text) in [
        (ToolFormat::HERMES, format!("Hm. <tool_call>{item}")),
        (ToolFormat::MISTRAL, "[TOOL_CALLS]f[ARGS]{\"a\": ".to_owned()),
        (ToolFormat::GLM, "<tool_call>f<arg_key>code</arg_key><arg_value>x".to_owned()),
        (ToolFormat::JSON, item.to_owned()),
    ] {
        assert_eq!(stopped(format, &text), Reply::of(&text), "{text}");
    }
    let wanted = Reply::of(item).calling("get_time", "{}");
    assert_eq!(stopped(ToolFormat::JSON, &format!("{list}{item}")), wanted);
    // Only the object is incomplete, not its arguments.
    let wanted = Reply::of("").calling("f", "{\"a\": 1}");
    assert_eq!(stopped(ToolFormat::JSON, r#"{"name": "f", "arguments": {"a": 1}"#), wanted);
}

proptest! {
    #![proptest_config(drawn(1_000))]

    #[test]
    fn complete_replies_equal_streamed_ones_unless_arguments_are_invalid(
        text in fragments(), format in formats(), reasoning in reasoning()
    ) {
        let streamed = parse(format, reasoning, text.chars().map(String::from));
        let reply = parse_complete(format, reasoning, &text, ReplyEnd::Cut);
        let is_json = |call: &(String, String, bool)| serde_json::from_str::<serde_json::Value>(&call.1).is_ok();
        if streamed.calls.iter().all(is_json) {
            prop_assert_eq!(reply, streamed);
        }
    }
}
