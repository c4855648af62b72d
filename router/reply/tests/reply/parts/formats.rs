//! Formats that chat templates teach.

use serde_json::{Value, json};
use trunkline_reply::{CallBody, ToolFormat};

#[test]
fn a_chat_template_shows_its_format() {
    let templates = [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None),
        // As in the templates of DeepSeek R1's distillates, which write calls and present no tools.
        ("{% for tool in message['tool_calls'] %}<｜tool▁call▁begin｜>{% endfor %}", None),
        (
            "{% if tools %}<tools>{{ tools }}</tools> within <tool_call></tool_call>{% endif %}",
            Some(ToolFormat::HERMES),
        ),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", Some(ToolFormat::MISTRAL)),
        ("{% if tools %}{% endif %}<|channel|>commentary json<|message|>", Some(ToolFormat::HARMONY)),
        ("{% if tools %}{{ '<|python_tag|>' }}{% endif %}", Some(ToolFormat::LLAMA3)),
        ("{% if tools %}[func_name1(params_name1=params_value1)]{% endif %}", Some(ToolFormat::PYTHONIC)),
        ("{% if tools %}<|python_start|>ipython{% endif %}", Some(ToolFormat::PYTHONIC)),
        ("{% if tools %}{{ tools | tojson }}{% endif %}", Some(ToolFormat::JSON)),
        (
            "{% if tools %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>{% endif %}",
            Some(ToolFormat::DEEPSEEK),
        ),
        (
            "{% if tools %}<|tool_call_begin|>{{ call['id'] }}<|tool_call_argument_begin|>{% endif %}",
            Some(ToolFormat::KIMI),
        ),
        ("{% if tools %}<tool_call>{name}\n<arg_key>{key}</arg_key>{% endif %}", Some(ToolFormat::GLM)),
        (
            "{% if tools %}<tool_call>\n<function=example_function_name>{% endif %}",
            Some(ToolFormat::QWEN3_CODER),
        ),
        ("{% if tools %}write <|START_ACTION|> followed by{% endif %}", Some(ToolFormat::COMMAND)),
        ("{% if tools %}<|tool|>{{ tools }}<|/tool|><|tool_call|>{% endif %}", Some(ToolFormat::PHI4)),
        ("{% if tools %}respond only with <|tool_call|> followed by{% endif %}", Some(ToolFormat::GRANITE)),
        ("{% if tools %}<function_calls>f(a='b')</function_calls>{% endif %}", Some(ToolFormat::OLMO3)),
        ("{% if tools %}make calls in a single JSON array: ipython{% endif %}", Some(ToolFormat::XLAM)),
    ];
    for (source, wanted) in templates {
        assert_eq!(ToolFormat::from_template(source), wanted, "{source}");
    }
    for format in ToolFormat::ALL {
        assert!(templates.iter().any(|(_, shown)| *shown == Some(*format)), "no template shows {format:?}");
    }
}

#[test]
fn tags_hold_no_strict_arguments_with_rules_beyond_their_types() {
    let format = |parameters: &Value, is_strict| {
        let Some(CallBody::Tagged(call)) = ToolFormat::GLM.call_form().map(|form| form.body) else {
            panic!("tags are a form of their own")
        };
        call.format("f", parameters, is_strict)
    };
    let of_text = |text: Value| json!({"type": "object", "properties": {"a": text}});
    for (parameters, is_held) in [
        (json!({"type": "object"}), true),
        (of_text(json!({"type": "string"})), true),
        (of_text(json!({"type": ["string", "null"], "description": "d"})), true),
        (of_text(json!({"enum": ["x", 1]})), true),
        (of_text(json!({"type": "integer", "minimum": 2})), true),
        (of_text(json!({"type": "string", "minLength": 2})), false),
        (of_text(json!({"anyOf": [{"type": "string"}, {"type": "object", "required": ["b"]}]})), false),
        (json!({"type": "object", "minProperties": 1}), false),
    ] {
        assert_eq!(format(&parameters, true).is_some(), is_held, "{parameters}");
        assert!(format(&parameters, false).is_some(), "{parameters}");
    }
    let undescribed = json!({"type": "object", "required": ["a"]});
    let found = format(&undescribed, true).map(|format| format.to_string());
    assert!(found.is_some_and(|format| format.contains("<arg_key>a</arg_key>")), "a required key is there");
    let impossible = json!({"type": "object", "required": ["a"], "additionalProperties": false});
    assert_eq!(format(&impossible, false), None);
}
