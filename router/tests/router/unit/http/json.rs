use trunkline_base::limits::MAX_JSON_VALUES;
use trunkline_http::{Refused, parse};

#[derive(Debug, serde::Deserialize)]
#[allow(dead_code)]
struct Body {
    messages: Vec<Message>,
    top_k: Option<i64>,
}

#[derive(Debug, serde::Deserialize)]
#[allow(dead_code)]
struct Message {
    role: String,
}

const REFUSED: &[Refused] = &[Refused { field: "n", neutral: &["1"], hint: "send several requests" }];

fn error(body: &[u8]) -> String {
    parse::<Body>(body, REFUSED, "").unwrap_err().to_string()
}

#[test]
fn missing_and_repeated_fields_are_named() {
    let field = |body: &str, prefix: &str| {
        let error = parse::<Body>(body.as_bytes(), REFUSED, prefix).unwrap_err();
        (error.code(), error.param().map(str::to_owned))
    };
    let named = |code, field: &str| (code, Some(field.to_owned()));
    assert_eq!(field("{}", ""), named("missing_field", "messages"));
    assert_eq!(field("{}", "parameters."), named("missing_field", "parameters.messages"));
    assert_eq!(field(r#"{"messages": [{}]}"#, ""), named("missing_field", "messages[0].role"));
    assert_eq!(field(r#"{"messages": [], "top_k": 1, "top_k": 2}"#, ""), named("invalid_type", "top_k"));
    assert_eq!(field("[]", ""), ("invalid_type", None));
    assert_eq!(field("[]", "parameters."), named("invalid_type", "parameters"));
    assert_eq!(field("{", ""), ("invalid_json", None));
}

#[test]
fn refused_fields_are_named_unless_neutral() {
    assert!(
        error(b"{\"messages\": [], \"n\": 2}")
            .starts_with("`n` is not supported; hint: send several requests")
    );
    assert!(parse::<Body>(b"{\"messages\": [], \"n\": 1, \"other\": {\"x\": []}}", REFUSED, "").is_ok());
    assert!(parse::<Body>(b"{\"messages\": [], \"n\": null}", REFUSED, "").is_ok());
}

#[test]
fn values_are_counted_outside_strings() {
    for (json, num_values) in [
        ("0", 1),
        ("\"a, [b], {c}\\\", d\"", 1),
        ("[1, 2, 3]", 4),
        ("{\"a\": 1, \"b\": [true]}", 4),
        ("[\"\\\\\", \"\"]", 3),
    ] {
        assert_eq!(trunkline_http::num_values(json), num_values, "{json}");
    }
}

#[test]
fn a_body_with_too_many_values_is_refused_by_the_name_of_its_field() {
    let list = |num: usize| format!("[{}]", vec!["0"; num].join(","));
    let body = |field: &str, num| format!("{{\"messages\": [], \"{field}\": {}}}", list(num));
    assert!(parse::<Body>(body("metadata", MAX_JSON_VALUES - 4).as_bytes(), REFUSED, "").is_ok());
    let refused = parse::<Body>(body("top_k", MAX_JSON_VALUES).as_bytes(), REFUSED, "x.").unwrap_err();
    assert_eq!((refused.code(), refused.param()), ("invalid_value", Some("x.top_k")));
    let text = refused.to_string();
    assert!(text.contains("131072 JSON values") && text.contains("; hint: "), "{text}");
    // The log has the field of an error, so a name that the client made up is left out.
    for (prefix, field) in [("x.", "x"), ("", "body")] {
        let body = body("sk-0123456789abcdef", MAX_JSON_VALUES);
        let refused = parse::<Body>(body.as_bytes(), REFUSED, prefix).unwrap_err();
        assert_eq!((refused.code(), refused.param()), ("invalid_value", Some(field)));
        assert!(!refused.to_string().contains("sk-"), "{refused}");
    }
    // Token ids are plain numbers in memory.
    assert!(parse::<Body>(body("prompt", 2 * MAX_JSON_VALUES).as_bytes(), REFUSED, "").is_ok());
    // All fields count together.
    let half = list(MAX_JSON_VALUES / 2);
    let two = format!("{{\"messages\": [], \"a\": {half}, \"n\": {half}}}");
    assert_eq!(parse::<Body>(two.as_bytes(), REFUSED, "").unwrap_err().param(), Some("n"));
}
