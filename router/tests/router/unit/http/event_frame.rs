use serde::Serialize;
use serde_json::{Value, json};
use trunkline_http::{EventFrame, Events};

/// Texts that need every kind of escape, and texts that look like the surrounding event.
const TEXTS: &[&str] =
    &["", "x", "\"", "\\", "\n\r\t\u{8}\u{c}\0\u{1f}\u{7f}", "\u{2028}🙂é", "\"},\"x\":\"", "\n\ndata: x"];

/// Returns the bytes of one event.
fn json_event(data: &impl Serialize) -> Vec<u8> {
    let mut events = Events::default();
    events.json(data);
    events.take().into()
}

#[test]
fn a_framed_event_is_the_event_byte_for_byte() {
    for model in ["m", "\"", "xx", "{\"content\":\"\"}", "\\\"x\n"] {
        let event = |text| json!({"model": model, "x": [{"content": text, "x": null}], "last": "x\""});
        let frame = EventFrame::new(event);
        for text in TEXTS {
            let mut framed = Events::default();
            framed.framed(&frame, text);
            let framed = framed.take();
            assert_eq!(framed, json_event(&event(text)), "{model:?} {text:?}");
            let data = framed.strip_prefix(b"data: ").and_then(|data| data.strip_suffix(b"\n\n"));
            let value: Value = serde_json::from_slice(data.expect("one event")).expect("JSON");
            assert_eq!(value["x"][0]["content"], **text);
        }
    }
}

#[test]
#[should_panic(expected = "contains its text once")]
fn an_event_without_the_text_has_no_frame() {
    EventFrame::new(|_| json!({"content": "fixed"}));
}

#[test]
#[should_panic(expected = "contains its text once")]
fn an_event_with_the_text_twice_has_no_frame() {
    EventFrame::new(|text| json!([text, text]));
}
