//! Replies that are there as a whole.

use proptest::prelude::*;
use trunkline_reply::{ReasoningMarks, ReasoningStart, ReplyEnd, ReplyParser, Sections, ToolFormat};

use crate::support::{NAMES, Reply, drawn, formats, fragments, parse, reasoning};

fn whole(format: Option<ToolFormat>, reasoning: Option<ReasoningStart>, text: &str, end: ReplyEnd) -> Reply {
    let names = NAMES.map(String::from).to_vec();
    let sections = Sections::new(reasoning, ReasoningMarks::Think);
    let parser = ReplyParser::new(sections, format.map(|format| (format, names)));
    let mut reply = Reply::default();
    parser.whole(text, end).into_iter().for_each(|piece| reply.take(piece));
    reply
}

#[test]
fn they_have_no_calls_with_broken_arguments() {
    let call = r#"{"name": "f", "arguments": {"a": 1}}"#;
    for (format, text, wanted) in [
        (
            ToolFormat::Hermes,
            "Hm.\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": oops}}</tool_call>",
            None,
        ),
        (ToolFormat::Mistral, "[TOOL_CALLS]f[ARGS]{\"a\": oops}", None),
        (ToolFormat::Json, "[{\"name\": \"f\", \"arguments\": {\"a\": oops}}]", None),
        (
            ToolFormat::Json,
            &format!("[{call}, {{\"name\": \"f\", \"arguments\": {{oops}}}}]"),
            Some(Reply::of(r#"{"name": "f", "arguments": {oops}}]"#).calling("f", r#"{"a": 1}"#)),
        ),
        // Cut by a limit, it is still a call.
        (ToolFormat::Mistral, "[TOOL_CALLS]f[ARGS]{\"a\": ", Some(Reply::of("").calling("f", "{\"a\": "))),
        (
            ToolFormat::Hermes,
            &format!("Hm. <tool_call>{call}"),
            Some(Reply::of("Hm.").calling("f", r#"{"a": 1}"#)),
        ),
    ] {
        assert_eq!(
            whole(Some(format), None, text, ReplyEnd::Cut),
            wanted.unwrap_or_else(|| Reply::of(text)),
            "{text}"
        );
    }
}

#[test]
fn those_that_stop_in_arguments_have_no_call() {
    let list = r#"[{"name": "get_time", "arguments": {}}, "#;
    let item = r#"{"name": "f", "arguments": {"a": "x"#;
    let stopped = |format: ToolFormat, text: &str| whole(Some(format), None, text, ReplyEnd::Stopped);
    for (format, text) in [
        (ToolFormat::Hermes, format!("Hm. <tool_call>{item}")),
        (ToolFormat::Mistral, "[TOOL_CALLS]f[ARGS]{\"a\": ".to_owned()),
        (ToolFormat::Json, item.to_owned()),
    ] {
        assert_eq!(stopped(format, &text), Reply::of(&text), "{text}");
    }
    let wanted = Reply::of(item).calling("get_time", "{}");
    assert_eq!(stopped(ToolFormat::Json, &format!("{list}{item}")), wanted);
    // Its arguments are complete.
    let wanted = Reply::of("").calling("f", "{\"a\": 1}");
    assert_eq!(stopped(ToolFormat::Json, r#"{"name": "f", "arguments": {"a": 1}"#), wanted);
}

proptest! {
    #![proptest_config(drawn(1_000))]

    /// Whole replies are what their parts are, but for broken arguments.
    #[test]
    fn they_are_what_their_parts_are(
        text in fragments(), format in formats(), reasoning in reasoning()
    ) {
        let streamed = parse(format, reasoning, text.chars().map(String::from));
        let reply = whole(format, reasoning, &text, ReplyEnd::Cut);
        let is_json = |call: &(String, String, bool)| serde_json::from_str::<serde_json::Value>(&call.1).is_ok();
        if streamed.calls.iter().all(is_json) {
            prop_assert_eq!(reply, streamed);
        }
    }
}
