//! The mistakes of models become valid JSON.

use super::json_scanner::json as any_json;
use proptest::prelude::*;
use serde_json::{Value, json};
use trunkline_reply::json_scanner::Scan;
use trunkline_reply::lenient_json::LenientScanner;

/// Reads a text whole and by characters, checks that both agree, and returns the JSON and the result.
fn read(text: &str) -> (String, Scan) {
    let mut whole = String::new();
    let scan = LenientScanner::new(0).read(text, &mut whole);
    let (mut scanner, mut out, mut last) = (LenientScanner::new(0), String::new(), Scan::Incomplete);
    for end in text.char_indices().map(|(at, _)| at).chain([text.len()]) {
        if last == Scan::Incomplete {
            last = scanner.read(&text[..end], &mut out);
        }
    }
    assert_eq!((&out, last), (&whole, scan), "{text:?}");
    (whole, scan)
}

#[test]
fn mistakes_of_models_are_repaired() {
    for (text, wanted) in [
        ("{\"a\": \"1\n\t2\r\x01\"}", json!({"a": "1\n\t2\r\x01"})),
        ("{\"a\n\": 1}", json!({"a\n": 1})),
        (r#"{"a": "it\'s \d+ \\ \" \u00e9 \u12"}"#, json!({"a": "it's \\d+ \\ \" é \\u12"})),
        ("{\"a\": \"cd x \\\nls\"}", json!({"a": "cd x \\\nls"})),
        (
            r#"{"a": True, "b": [False, None], "None": "True"}"#,
            json!({"a": true, "b": [false, null], "None": "True"}),
        ),
        ("{\"a\": [1, 2 , ],\n \"b\": {\"c\": \"x\",},\n}", json!({"a": [1, 2], "b": {"c": "x"}})),
        (
            r#"["\ud83d\ude00 \ud83d\u00e9\uDE00", "\ud83d\n\ud83d\ud83d\uDE00\ud83d"]"#,
            json!(["😀 \u{fffd}é\u{fffd}", "\u{fffd}\n\u{fffd}😀\u{fffd}"]),
        ),
        (r#"["\ud83d\ud8zz\d8"]"#, json!(["\u{fffd}\\ud8zz\\d8"])),
        ("None", Value::Null),
    ] {
        let (json, scan) = read(text);
        assert_eq!(scan, Scan::Complete(text.len()), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), wanted, "{text}");
    }
}

#[test]
fn text_is_invalid_from_the_first_held_byte_on() {
    for (text, json, at) in [
        (r#"{"a": oops}"#, r#"{"a": "#, 6),
        (r#"{"a": Nan}"#, r#"{"a": "#, 6),
        (r#"{"a": Trues}"#, r#"{"a": true"#, 10),
        (r#"{"a": 1,, }"#, r#"{"a": 1,"#, 8),
        (r"{,}", "{", 1),
        ("[1,\n}", "[1,\n", 4),
    ] {
        assert_eq!(read(text), (json.to_owned(), Scan::Invalid(at)), "{text}");
    }
    assert_eq!(read("5 "), ("5".to_owned(), Scan::Complete(1)));
    assert_eq!(read("{\"a\": \"\\"), ("{\"a\": \"".to_owned(), Scan::Incomplete));
}

proptest! {
    #![proptest_config(crate::support::drawn(256))]

    #[test]
    fn escapes_become_json(text in r#"(\\u(d8|DE|d|00)?|[0-9a-f]{0,3}|[\\n'x]){0,8}"#) {
        if let (json, Scan::Complete(_)) = read(&format!("[\"{text}\"]")) {
            prop_assert!(serde_json::from_str::<Value>(&json).is_ok(), "{json:?}");
        }
    }

    #[test]
    fn json_is_unchanged(value in any_json(), is_pretty: bool) {
        let text = if is_pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        let text = text.unwrap();
        prop_assert_eq!(read(&format!("{text} ,")), (text.clone(), Scan::Complete(text.len())));
    }

    #[test]
    fn complete_values_are_json(text in r#"[\[\{]["a,: \n]{0,3}["\[\]{},:0-9TFNrueon\\' \n\t]{0,16}"#) {
        if let (json, Scan::Complete(_)) = read(&text) {
            prop_assert!(serde_json::from_str::<Value>(&json).is_ok(), "{json:?}");
        }
    }

    #[test]
    fn strings_end_as_json_whatever_they_hold(text in "(\\PC|[\\x00-\\x1f]){0,8}") {
        let text = text.replace('"', "'");
        if let (json, Scan::Complete(_)) = read(&format!("[\"{text}\"]")) {
            prop_assert!(serde_json::from_str::<Value>(&json).is_ok(), "{json:?}");
        }
    }
}
