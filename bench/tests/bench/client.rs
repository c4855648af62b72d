//! The client's parsers.

use proptest::prelude::*;
use trunkline_bench::client::address::Address;
use trunkline_bench::client::event::{Event, parse};
use trunkline_bench::client::sse::{MAX_EVENT_BYTES, Splitter, TooLong};

const STREAM: &str =
    ": ping\r\n\r\ndata: {\"a\": 1}\n\nevent: x\ndata:{\"b\": \"\u{e9}\"}\r\n\r\ndata: [DONE]\n\n";

fn split(pieces: &[&[u8]]) -> Vec<String> {
    let (mut splitter, mut found) = (Splitter::default(), Vec::new());
    for piece in pieces {
        splitter.push(piece, |data| found.push(String::from_utf8(data.to_vec()).unwrap())).unwrap();
    }
    found
}

proptest! {
    #[test]
    fn every_cut_of_a_stream_gives_the_same_events(mut cuts in prop::collection::vec(0..STREAM.len(), 0..12)) {
        cuts.extend([0, STREAM.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &STREAM.as_bytes()[cut[0]..cut[1]]).collect();
        prop_assert_eq!(split(&pieces), ["{\"a\": 1}", "{\"b\": \"\u{e9}\"}", "[DONE]"]);
    }
}

#[test]
fn an_event_without_end_is_too_long() {
    let mut splitter = Splitter::default();
    let piece = vec![b'x'; MAX_EVENT_BYTES];
    assert_eq!(splitter.push(&piece, |_| ()), Ok(()));
    assert_eq!(splitter.push(b"x", |_| ()), Err(TooLong));
}

fn event(data: &str) -> Event {
    parse(data.as_bytes()).unwrap().0
}

fn output(text: &str, is_last: bool) -> Event {
    Event::Output { text: text.to_owned(), is_last }
}

#[test]
fn events_of_both_routes() {
    assert_eq!(event(r#"{"choices": [{"text": " a", "finish_reason": null}]}"#), output(" a", false));
    // A special token has no text, and counts.
    assert_eq!(event(r#"{"choices": [{"text": ""}]}"#), output("", false));
    assert_eq!(event(r#"{"choices": [{"delta": {"content": "b"}}]}"#), output("b", false));
    assert_eq!(event(r#"{"choices": [{"delta": {"role": "assistant", "content": ""}}]}"#), Event::Other);
    assert_eq!(
        event(r#"{"choices": [{"delta": {"role": "assistant", "content": "c"}}]}"#),
        output("c", false)
    );
    assert_eq!(event(r#"{"choices": [{"delta": {"reasoning_content": "d"}}]}"#), output("", false));
    assert_eq!(event(r#"{"choices": [{"delta": {}, "finish_reason": "stop"}]}"#), output("", true));
    assert_eq!(event(r#"{"error": {"message": "e"}}"#), Event::Error("e".to_owned()));
    assert_eq!(event(r#"{"error": "f"}"#), Event::Error("f".to_owned()));
    assert_eq!(event("[DONE]"), Event::Done);
    assert!(parse(b"{").is_err());
}

#[test]
fn usage_may_come_with_any_event() {
    let (event, usage) = parse(
        br#"{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 4}}}"#,
    )
    .unwrap();
    let usage = usage.unwrap();
    assert_eq!(event, Event::Other);
    assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens()), (9, 2, Some(4)));
    let (_, usage) = parse(br#"{"choices": [{"text": "x"}], "usage": {"prompt_tokens": 9}}"#).unwrap();
    assert_eq!(usage.unwrap().cached_tokens(), None);
    assert_eq!(parse(br#"{"choices": [{"text": "x"}], "usage": null}"#).unwrap().1, None);
}

#[test]
fn addresses() {
    let url =
        |text: &str| Address::parse(text).map(|address| address.url()).map_err(|error| error.to_string());
    assert_eq!(url("http://localhost:3000"), Ok("http://localhost:3000".to_owned()));
    assert_eq!(url("localhost:3000/"), Ok("http://localhost:3000".to_owned()));
    assert_eq!(url("http://localhost:3000/v1/"), Ok("http://localhost:3000".to_owned()));
    assert_eq!(url("https://api.example.com/llm/v1"), Ok("https://api.example.com/llm".to_owned()));
    assert_eq!(url("http://[::1]:80"), Ok("http://[::1]".to_owned()));
    for wrong in ["ftp://x", "http://", "", "http://x:y", "http://key@x"] {
        assert!(url(wrong).unwrap_err().contains("hint: give one such as"), "{wrong}");
    }
}
