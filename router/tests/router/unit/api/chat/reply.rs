use serde_json::json;
use trunkline_api::chat::reply::{Reply, ReplyPlan};
use trunkline_api::chat::tools::{Tool, ToolChoice, Tools, no_parameters};
use trunkline_base::limits::Limits;
use trunkline_generation::generate::FinishReason;
use trunkline_generation::model::{Choice, ReplyStyle};
use trunkline_reply::{ReasoningMarks, ReasoningStart, ToolFormat};

const TEMPLATES: [(&str, Option<ToolFormat>, bool); 5] = [
    (include_str!("../../../../../text/testdata/templates/llama3.jinja"), Some(ToolFormat::LLAMA3), false),
    (include_str!("../../../../../text/testdata/templates/mistral.jinja"), Some(ToolFormat::MISTRAL), false),
    (include_str!("../../../../../text/testdata/templates/qwen2.5.jinja"), Some(ToolFormat::HERMES), false),
    (include_str!("../../../../../text/testdata/templates/qwen3.jinja"), Some(ToolFormat::HERMES), true),
    (include_str!("../../../../../text/testdata/templates/smollm3.jinja"), Some(ToolFormat::HERMES), true),
];

#[test]
fn reply_styles_are_detected_from_templates_unless_flags_set_them() {
    let marks = ReasoningMarks::Think;
    for (index, (source, tools, reasons)) in TEMPLATES.into_iter().enumerate() {
        let style = ReplyStyle::of_template(source, Choice::Auto, Choice::Auto);
        let call_ids = style.call_ids;
        assert_eq!(style, ReplyStyle { tools, ignores_calls: false, reasons, marks, call_ids }, "{index}");
        let told = ReplyStyle::of_template(source, Choice::Is(ToolFormat::PYTHONIC), Choice::Is(()));
        let told_so = ReplyStyle { tools: Some(ToolFormat::PYTHONIC), reasons: true, ..style };
        assert_eq!(told, told_so, "{index}");
        let off = ReplyStyle::of_template(source, Choice::Off, Choice::Off);
        assert_eq!(off, ReplyStyle { ignores_calls: true, reasons: false, ..style }, "{index}");
    }
    assert_eq!(ReplyStyle::of_template("{{ messages }}", Choice::Auto, Choice::Auto), ReplyStyle::default());
}

/// A tool that a reply may call once.
fn one_tool() -> Tools {
    let tool = Tool { name: "f".into(), description: None, parameters: no_parameters(), is_strict: false };
    Tools::new(vec![tool], ToolChoice::Auto, false, &Limits::default()).unwrap()
}

#[test]
fn reasoning_and_call_marks_are_decoded_and_parsed() {
    for (source, open, close, call) in [
        ("{{ '</think>' }}", "<think>", "</think>", "<tool_call>"),
        ("{% if tools %}[TOOL_CALLS]{% endif %}[/THINK]", "[THINK]", "[/THINK]", "[TOOL_CALLS]"),
    ] {
        let style = ReplyStyle::of_template(source, Choice::Auto, Choice::Auto);
        let plan = ReplyPlan::new(style, &Tools::default(), Some(ReasoningStart::InReply), false);
        assert_eq!(plan.shown_marks(), [open, close]);
        let reply = Reply::of(&plan, format!("{open}Hm.{close}Yes."), FinishReason::EndToken);
        assert_eq!((reply.reasoning.as_str(), reply.text.as_str()), ("Hm.", "Yes."));
        let plan = ReplyPlan::new(style, &one_tool(), Some(ReasoningStart::InReply), false);
        assert!(plan.shown_marks().starts_with(&[open, close, call]));
        let plan = ReplyPlan::new(style, &one_tool(), None, false);
        assert!(plan.shown_marks().starts_with(&[call]));
    }
}

#[test]
fn the_schema_of_a_tool_decides_which_arguments_are_text() {
    let source = "{% if tools %}<tool_call>{name}<arg_key>{key}</arg_key>{% endif %}";
    let style = ReplyStyle::of_template(source, Choice::Auto, Choice::Auto);
    let parameters =
        json!({"type": "object", "properties": {"zip": {"type": "string"}, "n": {"type": "integer"}}});
    let tool = Tool { name: "f".into(), description: None, parameters, is_strict: false };
    let tools = Tools::new(vec![tool], ToolChoice::Auto, true, &Limits::default()).unwrap();
    let plan = ReplyPlan::new(style, &tools, None, false);
    let argument = |key: &str| format!("<arg_key>{key}</arg_key><arg_value>12345</arg_value>");
    let text = format!("<tool_call>f{}{}</tool_call>", argument("zip"), argument("n"));
    let reply = Reply::of(&plan, text, FinishReason::EndToken);
    assert_eq!(reply.calls[0].arguments, r#"{"zip": "12345", "n": 12345}"#);
    assert!(reply.calls[0].id.starts_with("call_"));
}

#[test]
fn messages_of_gpt_oss_are_told_apart_with_and_without_tools() {
    let source = "{% if tools %}<|channel|>commentary{% endif %}<|channel|>analysis<|message|>";
    let style = ReplyStyle::of_template(source, Choice::Auto, Choice::Auto);
    assert_eq!((style.tools, style.reasons), (Some(ToolFormat::HARMONY), true));
    let text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.";
    let call = "<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}";
    for (tools, num_calls) in [(Tools::default(), 0), (one_tool(), 1)] {
        let plan = ReplyPlan::new(style, &tools, Some(ReasoningStart::InReply), false);
        assert!(plan.shown_marks().starts_with(&["<|start|>", "<|channel|>", "<|message|>", "<|end|>"]));
        let reply = Reply::of(&plan, text.to_owned(), FinishReason::EndToken);
        assert_eq!((reply.reasoning.as_str(), reply.text.as_str()), ("Hm.", "Yes."));
        let reply = Reply::of(&plan, format!("{text}{call}"), FinishReason::EndToken);
        assert_eq!((reply.reasoning.as_str(), reply.calls.len()), ("Hm.", num_calls));
    }
}

#[test]
fn a_complete_reply_has_no_call_with_broken_arguments() {
    let plan = ReplyPlan::new(ReplyStyle::default(), &one_tool(), None, false);
    let broken = r#"<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>"#;
    let of = |text: &str, reason| Reply::of(&plan, text.to_owned(), reason);
    let as_text = |text: &str| Reply { text: text.into(), ..Reply::default() };
    assert_eq!(of(broken, FinishReason::Length), as_text(broken));
    // A reply that a limit cut has its partial call. One that the model ended there has none.
    let begun = r#"<tool_call>{"name": "f", "arguments": {"a": 1"#;
    assert_eq!(of(begun, FinishReason::Length).calls[0].arguments, r#"{"a": 1"#);
    assert_eq!(of(begun, FinishReason::EndToken), as_text(begun));
    let twice = r#"<tool_call>{"name": "f", "arguments": {"a": True}}</tool_call>"#.repeat(2);
    let reply = of(&twice, FinishReason::EndToken);
    assert_eq!((reply.text.as_str(), reply.calls.len()), ("", 1));
    assert_eq!(reply.calls[0].arguments, r#"{"a": true}"#);
}
