//! Calls written as Python lists.

use serde_json::json;
use trunkline_reply::python_calls::{ListScan, ListScanner, parse};

#[test]
fn python_literals_become_json() {
    let list = r#"[get_weather(city='San "F"', days=3, exact=True, at=None, range=(1.5, -2), by={"a": ['x\n']}), no_arguments()]"#;
    let calls = parse(list).unwrap();
    assert_eq!(calls[0].0, "get_weather");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&calls[0].1).unwrap(),
        json!({"city": "San \"F\"", "days": 3, "exact": true, "at": null, "range": [1.5, -2], "by": {"a": ["x\n"]}})
    );
    assert_eq!(calls[1], ("no_arguments".into(), "{}".into()));
    for list in [
        "[f(x=)]",
        "[f(1)]",
        "[f(x=y)]",
        "[f]",
        "[f(x=1) g()]",
        "[f(x='a)]",
        "[f(,)]",
        "[,]",
        "[f(x=1,,)]",
        "[f(x=1, x=2)]",
        "[f(x=b'a')]",
        "[f(x=1-2)]",
    ] {
        assert_eq!(parse(list), None, "{list}");
    }
}

#[test]
fn values_are_read_as_python_reads_them() {
    for (value, wanted) in [
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("-9007199254740993", "-9007199254740993"),
        ("+1_000", "1000"),
        ("-0", "0"),
        ("1e3", "1000.0"),
        (".5", "0.5"),
        ("\"a\" 'b'\n r\"\\d\"", r#""ab\\d""#),
        ("(\"a\"\n \"b\")", r#""ab""#),
        ("(1,)", "[1]"),
        ("()", "[]"),
        ("[1, [2,],]", "[1,[2]]"),
        ("{'a': {}, 'b' 'c': {'d': 1,},}", r#"{"a":{},"bc":{"d":1}}"#),
        ("\"\"\"say \"]\" (\"\"\"", r#""say \"]\" (""#),
        (r"'\ud83d\ude00'", "\"😀\""),
    ] {
        let list = format!("[f(x={value},), f(x={value}),]");
        assert_eq!(ListScanner::new(0).read(&list), ListScan::Complete(list.len()), "{list}");
        let call = ("f".to_owned(), format!("{{\"x\":{wanted}}}"));
        assert_eq!(parse(&list), Some(vec![call.clone(), call]), "{list}");
    }
}

#[test]
fn lists_end_at_their_own_bracket() {
    assert_eq!(ListScanner::new(0).read(" [f(x=']', y=[1])] more"), ListScan::Complete(18));
    assert_eq!(ListScanner::new(0).read("[f(x='\\']'"), ListScan::Incomplete);
    assert_eq!(ListScanner::new(0).read("f()"), ListScan::NotAList);
}
