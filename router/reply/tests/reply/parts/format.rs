//! What a template says about the form of calls.

use trunkline_reply::ToolFormat;
use trunkline_reply::tools::{ARGS, CALL_ID};

#[test]
fn marks_between_a_name_and_its_arguments_are_marks_of_calls() {
    assert_eq!(ToolFormat::Mistral.inner_marks(), [CALL_ID, ARGS]);
}

#[test]
fn templates_tell_their_form() {
    for (source, wanted) in [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None),
        (
            "{% if tools %}<tools>{{ tools }}</tools> within <tool_call></tool_call>{% endif %}",
            Some(ToolFormat::Hermes),
        ),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", Some(ToolFormat::Mistral)),
        ("{% if tools %}{{ '<|python_tag|>' }}{% endif %}", Some(ToolFormat::Llama3)),
        ("{% if tools %}[func_name1(params_name1=params_value1)]{% endif %}", Some(ToolFormat::Pythonic)),
        ("{% if tools %}{{ tools | tojson }}{% endif %}", Some(ToolFormat::Json)),
    ] {
        assert_eq!(ToolFormat::of_template(source), wanted, "{source}");
    }
}
