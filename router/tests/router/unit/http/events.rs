use serde_json::json;
use trunkline_http::{Events, StreamForm};

#[test]
fn events_are_appended_in_order() {
    let mut events = Events::default();
    events.json(&json!({"text": "a\n\nb"}));
    events.comment();
    events.done();
    let num_bytes = events.num_bytes();
    let taken = events.take();
    assert_eq!(num_bytes, taken.len());
    assert_eq!(&taken[..], b"data: {\"text\":\"a\\n\\nb\"}\n\n:\n\ndata: [DONE]\n\n");
    assert_eq!(events.num_bytes(), 0);
}

#[test]
fn a_stream_of_lines_has_a_value_in_each_line() {
    let mut events = Events::new(StreamForm::Lines);
    events.comment();
    events.json(&json!({"text": "a\n\nb"}));
    events.json(&json!(1));
    assert_eq!(&events.take()[..], b" {\"text\":\"a\\n\\nb\"}\n1\n");
}

#[test]
fn values_that_are_not_json_become_an_error_event() {
    let mut events = Events::default();
    events.json(&std::collections::BTreeMap::from([((1, 2), "keys must be strings")]));
    let error = br#"{"error":{"message":"internal error","code":"internal_error"}}"#;
    assert_eq!(events.take(), [b"data: ", &error[..], b"\n\n"].concat());
}
