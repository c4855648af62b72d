//! Formats that chat templates teach.

use trunkline_reply::ToolFormat;

#[test]
fn a_chat_template_shows_its_format() {
    for (source, wanted) in [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None),
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
    ] {
        assert_eq!(ToolFormat::from_template(source), wanted, "{source}");
    }
}
