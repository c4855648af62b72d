use std::time::Duration;

use trunkline_terminal::reply::{Piece, Reply};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_reply_with_everything_is_put_together() {
    let mut reply = Reply::default();
    let events = [
        r#"{"choices":[{"delta":{"role":"assistant","content":""}}],"usage":null}"#,
        r#"{"choices":[{"delta":{"reasoning_content":"hm","reasoning":"hm"}}]}"#,
        r#"{"choices":[{"delta":{"content":"It is "}}]}"#,
        r#"{"choices":[{"delta":{"content":"4."}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call_1","function":{"name":"add","arguments":""}}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}"#,
        r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":8}}}"#,
        "[DONE]",
    ];
    let times = (100..).step_by(100).map(ms);
    let pieces: Vec<Piece> =
        events.iter().zip(times).flat_map(|(event, now)| reply.add(event, now).unwrap()).collect();
    let text = |text: &str| text.to_owned();
    let wanted = [
        Piece::Reasoning(text("hm")),
        Piece::Text(text("It is ")),
        Piece::Text(text("4.")),
        Piece::Call(text("add")),
        Piece::Arguments(text("{}")),
        Piece::Done,
    ];
    assert_eq!(pieces, wanted);
    assert_eq!((reply.text.as_str(), reply.reasoning.as_str()), ("It is 4.", "hm"));
    assert_eq!((reply.calls[0].id.as_str(), reply.calls[0].function.arguments.as_str()), ("call_1", "{}"));
    assert_eq!(reply.finish_reason.as_deref(), Some("tool_calls"));
    // Four tokens in the 0.4 s after the first one.
    let line = "5 tokens at 10.0 tokens/s, first after 200 ms; prompt of 9, 8 of them cached";
    assert_eq!(reply.stats.line(), line);
}

#[test]
fn errors_and_nonsense_are_told_apart() {
    let mut reply = Reply::default();
    let failed =
        reply.add(r#"{"error":{"message":"the shard was lost","code":"shard_lost"}}"#, ms(1)).unwrap();
    assert_eq!(failed, [Piece::Failed("the shard was lost".to_owned())]);
    for data in ["<html>", r#"{"choices":[{"delta":{"tool_calls":[{"index":9}]}}]}"#] {
        assert!(reply.add(data, ms(1)).is_err(), "{data}");
    }
    assert!(reply.is_empty());
    assert_eq!(reply.stats.line(), "no token came");
}
