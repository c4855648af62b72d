//! Server-sent events, written by the router and parsed by the standard's algorithm. Every text must arrive unchanged.

use serde_json::{Value, json};
use trunkline_http::{EventFrame, Events};

/// Returns the data of all events of a stream, as defined in
/// <https://html.spec.whatwg.org/multipage/server-sent-events.html>.
pub fn parse_events(bytes: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(bytes).expect("events are UTF-8");
    // Lines end with CR LF, LF or CR. Data after the last blank line is not an event.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n").replace('\r', "\n");
    let (mut events, mut data) = (Vec::new(), Vec::new());
    for line in text.split('\n') {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        if line.is_empty() && !data.is_empty() {
            events.push(std::mem::take(&mut data).join("\n"));
        } else if field == "data" {
            data.push(value.strip_prefix(' ').unwrap_or(value).to_owned());
        } else {
            assert!(matches!(field, "" | "event"), "an unknown field: {line:?}");
        }
    }
    assert!(data.is_empty(), "the stream ends within an event: {data:?}");
    events
}

/// Runs an input that consists of texts separated by zero bytes, of which the first is a model's name.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut texts = text.split('\0');
    let name = texts.next().unwrap_or_default();
    let frame = EventFrame::new(
        |text| json!({"model": name, "choices": [{"delta": {"content": text}, "end": null}]}),
    );
    let (mut events, mut expected) = (Events::default(), Vec::new());
    for (number, text) in texts.enumerate() {
        let event = json!({"model": name, "choices": [{"delta": {"content": text}, "end": null}]});
        match number % 3 {
            0 => events.framed(&frame, text),
            1 => events.named("delta", &event),
            _ => {
                events.comment();
                events.json(&event);
            }
        }
        expected.push(event);
    }
    let read = parse_events(&events.take());
    let read: Vec<Value> = read.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect();
    assert_eq!(read, expected);
}

/// Returns texts with characters that end lines and events.
pub fn seeds() -> Vec<Vec<u8>> {
    ["m\0a\0b\0c\0d", "m\"\0\n\n\0data: x\n\n\0\r\n\0\u{2028}\0\u{feff}", "\0", "\u{feff}\0:\0event: x\0\\"]
        .map(Vec::from)
        .to_vec()
}

/// Returns field names and separators of the format.
pub fn words() -> Vec<String> {
    ["data:", "event:", "id:", "retry:", "\r\n\r\n", "[DONE]"].map(String::from).to_vec()
}
