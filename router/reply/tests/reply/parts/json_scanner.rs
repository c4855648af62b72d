//! The scanner accepts JSON, wherever it is cut.

use proptest::prelude::*;
use serde_json::Value;
use trunkline_reply::json_scanner::{Scan, Scanner};

fn scan_in_pieces(text: &str, cuts: &[usize]) -> Scan {
    let mut scanner = Scanner::default();
    let mut start = 0;
    let ends = cuts.iter().map(|cut| cut % (text.len() + 1)).chain([text.len()]);
    let mut ends: Vec<usize> = ends.collect();
    ends.sort_unstable();
    for end in ends {
        match scanner.feed(&text.as_bytes()[start..end]) {
            Scan::Incomplete => start = end,
            Scan::Complete(at) => return Scan::Complete(start + at),
            Scan::Invalid(at) => return Scan::Invalid(start + at),
        }
    }
    Scan::Incomplete
}

pub fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9f64).prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(".*", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(crate::support::drawn(256))]

    #[test]
    fn every_value_is_accepted_wherever_it_is_cut(
        value in json(), is_pretty: bool, cuts in proptest::collection::vec(any::<usize>(), 0..6)
    ) {
        let text = if is_pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        let text = text.unwrap() + " after";
        let end = text.len() - " after".len();
        prop_assert_eq!(scan_in_pieces(&text, &cuts), Scan::Complete(end));
    }

    #[test]
    fn the_scanner_accepts_what_serde_accepts(text in r#"[\[\]{},:"0-9eE.+\-a-u\\ ]{0,12}"#) {
        let mut stream = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let first = stream.next();
        match scan_in_pieces(&text, &[]) {
            Scan::Complete(end) => {
                let parsed: Result<Value, _> = serde_json::from_str(&text[..end]);
                prop_assert!(parsed.is_ok() || is_out_of_range(&parsed), "{:?}", &text[..end]);
            }
            Scan::Invalid(_) => {
                // serde requires a separator after some values, which the scanner does not check.
                prop_assert!(first.is_none_or(|value| value.is_err()), "{text:?}");
            }
            Scan::Incomplete => {
                let is_number = serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_number());
                let is_open = first.is_none_or(|value| value.is_err_and(|error| error.is_eof() || is_range(&error)));
                prop_assert!(is_number || is_open, "{text:?}");
            }
        }
    }
}

fn is_range(error: &serde_json::Error) -> bool {
    error.to_string().contains("out of range")
}

/// Returns true if serde rejected valid JSON: a number that an f64 cannot hold, or an unpaired surrogate.
fn is_out_of_range(parsed: &Result<Value, serde_json::Error>) -> bool {
    parsed.as_ref().is_err_and(|error| {
        is_range(error) || error.to_string().contains("surrogate") || error.to_string().contains("hex escape")
    })
}
