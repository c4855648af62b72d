use serde_json::{Value, json};
use trunkline_api::chat::call_ids::{fit, fitting, new_id};
use trunkline_generation::model::{CallIds, Choice, ReplyStyle};
use trunkline_text::ChatMessage;

fn ids_of_template(source: &str) -> CallIds {
    ReplyStyle::of_template(source, Choice::Auto, Choice::Auto).call_ids
}

#[test]
fn templates_show_the_ids_that_they_accept() {
    let mistral = include_str!("../../../../../text/testdata/templates/mistral.jinja");
    assert_eq!(ids_of_template(mistral), CallIds::Nine);
    let kimi = "{% if tools %}<|tool_call_begin|>{{ call['id'] }}<|tool_call_argument_begin|>{% endif %}";
    assert_eq!(ids_of_template(kimi), CallIds::Named);
    for source in [
        include_str!("../../../../../text/testdata/templates/qwen3.jinja"),
        include_str!("../../../../../text/testdata/templates/llama3.jinja"),
    ] {
        assert_eq!(ids_of_template(source), CallIds::Any);
    }
}

#[test]
fn new_ids_have_the_prefix_of_their_dialect_unless_the_template_needs_short_ones() {
    for ids in [CallIds::Any, CallIds::Named] {
        assert!(new_id("toolu_", ids).starts_with("toolu_"));
    }
    let short = new_id("call_", CallIds::Nine);
    assert_eq!(fitting(&short), short);
}

fn message(role: &str, extra: Value) -> ChatMessage {
    let extra = extra.as_object().cloned().unwrap_or_default();
    ChatMessage { role: role.into(), content: None, extra }
}

#[test]
fn a_call_and_its_result_keep_the_same_id() {
    let call = json!({"id": "call_abc123DEF456", "function": {"name": "f"}});
    let mut messages = [
        message("assistant", json!({"tool_calls": [call, {"function": {"name": "g"}}]})),
        message("tool", json!({"tool_call_id": "call_abc123DEF456"})),
    ];
    fit(&mut messages, CallIds::Nine);
    let fitted = fitting("call_abc123DEF456");
    assert_eq!(messages[0].extra["tool_calls"][0]["id"], fitted.as_str());
    assert_eq!(messages[0].extra["tool_calls"][1], json!({"function": {"name": "g"}}));
    assert_eq!(messages[1].extra["tool_call_id"], fitted.as_str());
}

#[test]
fn ids_name_the_functions_where_a_template_writes_only_ids() {
    let call = |id: &str, name: &str| json!({"id": id, "function": {"name": name}});
    let mut messages = [
        message("assistant", json!({"tool_calls": [call("call_a", "f"), call("call_b", "g")]})),
        message("tool", json!({"tool_call_id": "call_b"})),
        message("tool", json!({"tool_call_id": "call_a"})),
        message("assistant", json!({"tool_calls": [call("call_a", "f")]})),
        message("tool", json!({"tool_call_id": "call_a"})),
        message("tool", json!({"tool_call_id": "other"})),
    ];
    fit(&mut messages, CallIds::Named);
    let ids: Vec<&Value> = messages.iter().filter_map(|message| message.extra.get("tool_call_id")).collect();
    assert_eq!(ids, ["functions.g:1", "functions.f:0", "functions.f:2", "other"]);
    assert_eq!(messages[0].extra["tool_calls"][1]["id"], "functions.g:1");
    assert_eq!(messages[3].extra["tool_calls"][0]["id"], "functions.f:2");
}

#[test]
fn only_unsuitable_ids_are_changed_and_always_in_the_same_way() {
    assert_eq!(fitting("a1B2c3D4e"), "a1B2c3D4e");
    for id in ["call_abc123DEF456", "toolu_01", "", "abc-12345"] {
        let fitted = fitting(id);
        assert_eq!((fitted.len(), &fitting(id)), (9, &fitted));
        assert!(fitted.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{fitted}");
    }
    assert_ne!(fitting("call_1"), fitting("call_2"));
}
