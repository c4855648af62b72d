use serde_json::json;
use trunkline_api::chat::arguments::{Arguments, ArgumentsReader};

#[test]
fn arguments_become_an_object_if_possible() {
    for (sent, told) in [
        (json!("{\"a\": 1}"), json!({"a": 1})),
        (json!({"a": 1}), json!({"a": 1})),
        (json!(""), json!({})),
        (json!(" \n"), json!({})),
        (json!("null"), json!({})),
        (json!("{\"a\": "), json!("{\"a\": ")),
        (json!("[1]"), json!("[1]")),
    ] {
        let arguments: Arguments = serde_json::from_value(sent.clone()).unwrap();
        assert_eq!(ArgumentsReader::default().to_json(arguments), told, "{sent}");
    }
}
