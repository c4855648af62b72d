use serde_json::{Value, json};
use trunkline_api::chat::prompt::Mark;
use trunkline_api::chat::tools::{Tool, ToolChoice, Tools, no_parameters};
use trunkline_base::limits::Limits;
use trunkline_grammar::{JsonSchema, Strictness};
use trunkline_text::{ChatMessage, ChatRequest};

fn tool(name: &str) -> Tool {
    Tool { name: name.into(), description: None, parameters: no_parameters(), is_strict: false }
}

#[test]
fn a_reply_that_must_call_has_a_schema() {
    let limits = Limits::default();
    let tools =
        |choice, is_parallel| Tools::new(vec![tool("a"), tool("b")], choice, is_parallel, &limits).unwrap();
    let named = tools(ToolChoice::Named("b".into()), true);
    assert_eq!(named.reply_schema().schema["properties"]["name"], json!({"const": "b"}));
    assert_eq!(named.callable(), [&tool("b")]);
    let single = tools(ToolChoice::Required, false);
    assert_eq!(single.reply_schema().schema["anyOf"].as_array().unwrap().len(), 2);
    assert_eq!(tools(ToolChoice::Required, true).reply_schema().schema["minItems"], 1);
    assert!(tools(ToolChoice::None, true).callable().is_empty());
}

#[test]
fn a_choice_may_allow_some_of_the_tools() {
    let limits = Limits::default();
    let chat = json!({"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "b"}}]}});
    let responses =
        json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "b"}]});
    for (field, pointer, must_call) in [(chat, "/function/name", true), (responses, "/name", false)] {
        let choice = ToolChoice::from_openai(Some(&field), pointer).unwrap();
        let tools = Tools::new(vec![tool("a"), tool("b")], choice.clone(), true, &limits).unwrap();
        assert_eq!(tools.callable(), [&tool("b")]);
        assert_eq!(tools.must_call(), must_call);
        let error = Tools::new(vec![tool("a")], choice, true, &limits).unwrap_err().to_string();
        assert!(error.starts_with("`tool_choice` names a tool that is not"));
    }
}

#[test]
fn only_the_arguments_of_strict_tools_are_strict() {
    let strict = Tool { is_strict: true, ..tool("b") };
    let below = |choice, is_parallel| {
        let tools = vec![tool("a"), strict.clone()];
        let tools = Tools::new(tools, choice, is_parallel, &Limits::default()).unwrap();
        let JsonSchema { schema, strictness } = tools.reply_schema();
        let Strictness::StrictBelow(pointers) = strictness else { panic!("{strictness:?}") };
        for pointer in &pointers {
            assert_eq!(schema.pointer(pointer.strip_prefix('#').unwrap()), Some(&no_parameters()));
        }
        pointers
    };
    assert_eq!(below(ToolChoice::Required, true), ["#/items/anyOf/1/properties/arguments"]);
    assert_eq!(below(ToolChoice::Named("b".into()), true), ["#/properties/arguments"]);
    assert!(below(ToolChoice::Named("a".into()), true).is_empty());
}

#[test]
fn references_in_schemas_still_resolve() {
    let parameters = json!({
        "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}, "whole": {"$ref": "#"}}}},
        "properties": {"$ref": {"type": "string"}, "list": {"items": {"$ref": "#/$defs/node"}}},
        "default": {"$ref": "#/left/alone"},
    });
    let with = |name: &str| Tool { parameters: parameters.clone(), ..tool(name) };
    for (tools, choice, is_parallel) in [
        (vec![with("a")], ToolChoice::Required, true),
        (vec![with("a"), with("b")], ToolChoice::Required, true),
        (vec![with("a"), with("b")], ToolChoice::Required, false),
        (vec![with("a"), with("b")], ToolChoice::Named("b".into()), true),
    ] {
        let tools = Tools::new(tools, choice, is_parallel, &Limits::default()).unwrap();
        let schema = tools.reply_schema().schema;
        let mut found = Vec::new();
        references(&schema, &mut found);
        assert_eq!(found.len() % 3, 0, "{found:?}");
        for reference in found {
            let target = schema.pointer(reference.strip_prefix('#').unwrap());
            assert!(target.is_some_and(|target| target.get("properties").is_some()), "{reference}: {schema}");
        }
        assert!(schema.to_string().contains("#/left/alone"));
    }
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(target) if key == "$ref" && target != "#/left/alone" => {
                        found.push(target.clone());
                    }
                    value => references(value, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn tools_are_described_if_the_template_does_not_support_them() {
    let tools = Tools::new(vec![tool("look_up")], ToolChoice::Auto, true, &Limits::default()).unwrap();
    let mut chat = ChatRequest { messages: vec![ChatMessage::new("user", "x")], ..ChatRequest::default() };
    let mut mark = Some(Mark { message_idx: 0, num_bytes: 1, ttl_s: 300 });
    tools.describe(&mut chat, false, &mut mark);
    assert_eq!(mark.unwrap().message_idx, 1);
    assert_eq!(chat.messages.len(), 2);
    assert!(chat.messages[0].content.as_ref().unwrap().contains("\"name\":\"look_up\""));
    tools.describe(&mut chat, true, &mut None);
    assert_eq!(chat.tools[0]["function"]["name"], "look_up");
}
