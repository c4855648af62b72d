//! Replies as models of each family write them, cut at every position.

use proptest::prelude::*;
use trunkline_reply::{Piece, ReasoningMarks, ReasoningStart, ReplyParser, Sections, ToolFormat};

use crate::support::{
    Reply, drawn, formats, fragments, parse, parse_in_all_ways, parse_with, reasoning, tools, weather,
};

/// The text that a model wrote, and the expected result.
type Recorded = (&'static str, Reply);

/// Replies of Qwen2.5-7B-Instruct and Hermes-2-Pro.
pub fn hermes() -> Vec<Recorded> {
    vec![
        (
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
            weather(""),
        ),
        (
            "I will look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>",
            weather("I will look.").calling("get_time", "{}"),
        ),
        (
            "<tool_call>{\"arguments\": {\"city\": \"Paris\"}, \"name\": \"get_weather\"}</tool_call>\n\n",
            weather(""),
        ),
        ("<tool_call>{\"name\": \"get_time\"}</tool_call>", Reply::of("").calling("get_time", "{}")),
        ("<tool_call>{\"name\": \"get_time\", \"arguments\": null}", Reply::of("").calling("get_time", "{}")),
        (
            r#"<tool_call>{"name": "f", "arguments": "{\"a\": [1, \"}\"]}"}</tool_call> Done."#,
            Reply::of(" Done.").calling("f", r#"{"a": [1, "}"]}"#),
        ),
    ]
}

/// The same format with mistakes.
pub fn malformed_hermes() -> Vec<Recorded> {
    vec![
        // The object is invalid after its arguments. They stand, and what follows the last complete member is text.
        (
            r#"<tool_call>{"name": "f", "arguments": {"a": 1}, "arguments": {"b": nulll}}</tool_call>"#,
            Reply::of(r#", "arguments": {"b": nulll}}</tool_call>"#).calling("f", r#"{"a": 1}"#),
        ),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"code\": \"if x:\n\ty = 'it\\'s'\"}}</tool_call>",
            Reply::of("").calling("f", r#"{"code": "if x:\n\ty = 'it's'"}"#),
        ),
        (
            "<tool_call>{\"arguments\": \"{\\\"a\\\": \\\"x\n\\\"}\", \"name\": \"f\"}</tool_call>",
            Reply::of("").calling("f", r#"{"a": "x\n"}"#),
        ),
        (
            r#"<tool_call>{"name": "f", "arguments": {"a": [True, None,], "b": 1,}}</tool_call>"#,
            Reply::of("").calling("f", r#"{"a": [true, null], "b": 1}"#),
        ),
        // There is one bracket too many.
        (
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}}}\n</tool_call> Done.",
            weather(" Done."),
        ),
        (r#"<tool_call>{"name": "f", "arguments": {}}}</tool_"#, Reply::of("").calling("f", "{}")),
        (r#"<tool_call>{"name": "f", "arguments": {}}} or"#, Reply::of("} or").calling("f", "{}")),
        // There are several ways to write no arguments.
        (r#"<tool_call>{"name": "f", "arguments": ""}</tool_call>"#, Reply::of("").calling("f", "{}")),
        (r#"<tool_call>{"arguments": " \n", "name": "f"}"#, Reply::of("").calling("f", "{}")),
        (r#"<tool_call>{"name": "f", "arguments": "null"}"#, Reply::of("").calling("f", "{}")),
        (r#"<tool_call>{"name": "f", "arguments": None}"#, Reply::of("").calling("f", "{}")),
    ]
}

/// Replies as Llama-3.1-8B-Instruct writes them.
pub fn llama3() -> Vec<Recorded> {
    vec![
        (r#"[{"name": "get_weather", "parameters": {"city": "Paris"}}]"#, weather("")),
        (r#"{"type": "function", "function": "get_weather", "parameters": {"city": "Paris"}}"#, weather("")),
        (r#"{"name": "f", "function": "no tool", "parameters": null}"#, Reply::of("").calling("f", "{}")),
        (r#"<|python_tag|>{"name": "f"}"#, Reply::of("").calling("f", "{}")),
        (r#"{"name": "get_weather", "parameters": {"city": "Paris"}}"#, weather("")),
        (r#"<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}"#, weather("")),
        (
            r#"{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "get_time", "parameters": {}}"#,
            weather("").calling("get_time", "{}"),
        ),
    ]
}

/// Replies of Mistral-7B-Instruct-v0.3 and Mistral-Small-3.2.
pub fn mistral() -> Vec<Recorded> {
    vec![
        (
            r#"[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "VvvODy9mT"}]"#,
            weather(""),
        ),
        (
            r#"[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", "arguments": {}}]"#,
            weather("").calling("get_time", "{}"),
        ),
        (
            r#"One moment.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[CALL_ID]a1b2[ARGS]{}"#,
            weather("One moment.").calling("get_time", "{}"),
        ),
        // A mark after a complete call does not belong to it.
        ("[TOOL_CALLS]f{\"a\": 1}[ARGS]{}", Reply::of("[ARGS]{}").calling("f", "{\"a\": 1}")),
        ("[TOOL_CALLS]f [ARGS]{}", Reply::of("").calling("f", "{}")),
    ]
}

/// Replies of Llama-3.2-3B-Instruct, Llama-4-Scout and ToolACE-8B.
pub fn pythonic() -> Vec<Recorded> {
    vec![
        (
            "[get_weather(city='Paris'), get_time()]",
            Reply::of("").calling("get_weather", r#"{"city":"Paris"}"#).calling("get_time", "{}"),
        ),
        (
            "Let me see. <|python_start|>[f(a=[1, \"]\"], b=True)]<|python_end|>",
            Reply::of("Let me see.").calling("f", r#"{"a":[1,"]"],"b":true}"#),
        ),
        (
            "[f(id=123456789012345678901234567890, code=\"\"\"print(\"a]\")\"\"\",), get_time(),]",
            Reply::of("")
                .calling("f", r#"{"id":123456789012345678901234567890,"code":"print(\"a]\")"}"#)
                .calling("get_time", "{}"),
        ),
    ]
}

/// Replies of models without a format of their own.
pub fn json() -> Vec<Recorded> {
    vec![
        (
            r#"  [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "f", "parameters": {}}]"#,
            weather("").calling("f", "{}"),
        ),
        (r#"{"name": "get_weather", "arguments": {"city": "Paris"}}"#, weather("")),
        // An item of a list that is not a call is text, and the other items are calls.
        (
            "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"nothing\", \"arguments\": {\"a\": [1]}}, \
             {\"name\": \"get_time\", \"arguments\": {}}]",
            Reply::of(r#"{"name": "nothing", "arguments": {"a": [1]}}"#)
                .calling("f", "{}")
                .calling("get_time", "{}"),
        ),
        (
            r#"[{"name": "f", "arguments": {}}, {"name": "f", "age": "#,
            Reply::of(r#"{"name": "f", "age":"#).calling("f", "{}"),
        ),
        (
            r#"[{"name": "f", "arguments": {}}, {"a"; 1}] and [2]"#,
            Reply::of(r#"{"a"; 1}] and [2]"#).calling("f", "{}"),
        ),
        (r#"[{"name": "f", "arguments": {}}, 5]"#, Reply::of(", 5]").calling("f", "{}")),
        // A vertical tab is white space in Unicode, and not in JSON.
        (
            "[{\"name\": \"f\", \"arguments\": {}},\u{b} {\"name\": 5}]",
            Reply::of(",\u{b} {\"name\": 5}]").calling("f", "{}"),
        ),
    ]
}

/// Texts that look like calls and are not.
const LOOKALIKES: &[(ToolFormat, &str)] = &[
    (ToolFormat::HERMES, "Use <tool_call> to call."),
    (ToolFormat::HERMES, "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>"),
    (ToolFormat::HERMES, "<tool_call>{\"name\": 5}</tool_call> and so on\n"),
    (ToolFormat::HERMES, "<tool_call>{\"nam"),
    (ToolFormat::HERMES, "<tool_call>"),
    (ToolFormat::HERMES, "a <tool_"),
    (ToolFormat::HERMES, "{\"name\": \"get_time\", \"arguments\": {}}"),
    (ToolFormat::LLAMA3, "{\"temperature\": 21}"),
    (ToolFormat::LLAMA3, "{\"name\": \"Ann\", \"parameters\": {}}"),
    (ToolFormat::LLAMA3, "{\"name\": \"f\", \"age\": 5}"),
    (ToolFormat::LLAMA3, "{\"function\": \"f\"}"),
    (ToolFormat::LLAMA3, "[{\"name\": \"f\"}]\n"),
    (ToolFormat::LLAMA3, "[1, 2]"),
    (ToolFormat::JSON, "{\"name\": \"f\", \"age\": 5, \"address\": {\"city\": \"Paris\"}}"),
    (ToolFormat::JSON, "[{\"name\": \"f\"}, {\"name\": \"f\", \"arguments\": {}}]"),
    (ToolFormat::LLAMA3, "A set {1, 2}; {\"name\": \"get_time\", \"parameters\": {}}"),
    (ToolFormat::LLAMA3, "<|python_tag|>print(1)"),
    (ToolFormat::MISTRAL, "[TOOL_CALLS] is a token"),
    (ToolFormat::MISTRAL, "[TOOL_CALLS]get_nothing[ARGS]{}"),
    (ToolFormat::MISTRAL, "[TOOL_CALLS]get_time[ARGS]5"),
    (ToolFormat::MISTRAL, "[TOOL_CALLS]get_time[1] and [ARGS]{}"),
    (ToolFormat::MISTRAL, "[TOOL_CALLS]get_time[CALL_ID]a b[ARGS]{}"),
    (ToolFormat::PYTHONIC, "[1] and [2]"),
    (ToolFormat::PYTHONIC, "[get_time is a tool]"),
    (ToolFormat::PYTHONIC, "[get_time(5)] "),
    (ToolFormat::PYTHONIC, "[f(a=\"\"\"]\"\")] "),
    (ToolFormat::PYTHONIC, "[get_weather(city='Paris'"),
    (ToolFormat::JSON, "[1, 2, 3]"),
    (ToolFormat::JSON, "[]"),
    (ToolFormat::JSON, " {}"),
];

/// Replies in the form that the harmony format's specification gives for GPT-OSS.
pub fn harmony() -> Vec<Recorded> {
    let weather = |reasoning: &str, text: &str| Reply { reasoning: reasoning.into(), ..weather(text) };
    vec![
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
            Reply { reasoning: "Hm.".into(), ..Reply::of("Yes.") },
        ),
        (
            "<|channel|>analysis<|message|>I need it.<|end|><|start|>assistant<|channel|>commentary \
             to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>",
            weather("I need it.", ""),
        ),
        (
            "<|channel|>analysis<|message|>I need it.<|end|><|start|>assistant to=functions.get_weather<|channel|>\
             commentary json<|message|>{\"city\": \"Paris\"}",
            weather("I need it.", ""),
        ),
        (
            " to=functions.get_time<|channel|>commentary json<|message|>{}",
            Reply::of("").calling("get_time", "{}"),
        ),
        // Text for the reader precedes the calls, and reasoning goes on behind one.
        (
            "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant<|channel|>commentary \
             to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|><|start|>assistant\
             <|channel|>analysis<|message|>More.<|end|><|start|>assistant<|channel|>commentary \
             to=functions.get_time <|constrain|>json<|message|>{}<|call|>",
            weather("More.", "I will look.").calling("get_time", "{}"),
        ),
        // The arguments end with their message.
        (
            "<|channel|>commentary to=functions.f<|message|>{\"a\": 1<|end|><|start|>assistant<|channel|>final\
             <|message|>Yes.",
            Reply::of("Yes.").calling("f", "{\"a\": 1"),
        ),
        // There is no such tool.
        (
            "<|channel|>commentary to=functions.g<|message|>{}<|call|>",
            Reply::of("<|channel|>commentary to=functions.g<|message|>{}"),
        ),
        // A grammar left no room for a header.
        ("{\"a\": 1}", Reply::of("{\"a\": 1}")),
    ]
}

#[test]
fn text_that_only_looks_like_a_call_is_text() {
    for (format, text) in LOOKALIKES {
        assert_eq!(parse_in_all_ways(Some(*format), None, text), Reply::of(text), "{format:?}: {text}");
    }
    // A call that follows such text is found.
    let text = "<tool_call>no <tool_call>{\"name\": \"get_time\", \"arguments\": {}}</tool_call>";
    let wanted = Reply::of("<tool_call>no").calling("get_time", "{}");
    assert_eq!(parse_in_all_ways(Some(ToolFormat::HERMES), None, text), wanted);
}

#[test]
fn arguments_stream_and_end_where_the_reply_is_cut() {
    let mut parser =
        ReplyParser::new(Sections::new(None, ReasoningMarks::Think), Some((ToolFormat::HERMES, tools())));
    let mut out = Vec::new();
    parser.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"One", &mut out);
    assert_eq!(out, [Piece::CallBegin { name: "f".into() }, Piece::Arguments("{\"text\": \"One".into())]);
    out.clear();
    parser.push(" two", &mut out);
    assert_eq!(out, [Piece::Arguments(" two".into())]);
    out.clear();
    parser.finish(&mut out);
    assert_eq!(out, [Piece::CallEnd]);
    // A call whose arguments become invalid ends there, and the rest is text.
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": oops}}</tool_call>";
    let reply = parse_in_all_ways(Some(ToolFormat::HERMES), None, text);
    assert_eq!(reply.calls, [("f".into(), "{\"a\": ".into(), true)]);
    assert_eq!(reply.text, "oops}}</tool_call>");
}

#[test]
fn reasoning_is_separated_from_the_reply() {
    use ReasoningStart::{InPrompt, InReply};
    let reply = |reasoning: &str, text: &str| Reply { reasoning: reasoning.into(), ..Reply::of(text) };
    for (start, text, wanted) in [
        (InReply, "<think>\nHm.\n</think>\n\nYes.", reply("\nHm.\n", "Yes.")),
        (InReply, " <think></think>Yes.", reply("", "Yes.")),
        (InReply, "Yes. <think> is a tag </think>", reply("", "Yes. <think> is a tag </think>")),
        (InReply, "<thi", reply("", "<thi")),
        (InReply, "<think>never ends </th", reply("never ends </th", "")),
        (InPrompt, "Hm. <b>\n</think>\n", reply("Hm. <b>\n", "")),
        (InPrompt, "</think>Yes. </think>", reply("", "Yes. </think>")),
        // The prompt opens reasoning, and the model writes the opening mark again.
        (InPrompt, "<think>\nHm.</think>Yes.", reply("\nHm.", "Yes.")),
        (InPrompt, "\n<think>Hm. <think></think>Yes.", reply("Hm. <think>", "Yes.")),
        (InPrompt, " <thin", reply(" <thin", "")),
        (InPrompt, " <thing></think>Yes.", reply(" <thing>", "Yes.")),
        (InPrompt, "\n\n", reply("\n\n", "")),
        (InReply, "[THINK]Hm.[/THINK]Yes.", reply("", "[THINK]Hm.[/THINK]Yes.")),
    ] {
        assert_eq!(parse_in_all_ways(None, Some(start), text), wanted, "{text}");
    }
    let text = "<think>a {\"b\"</think>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let wanted = reply("a {\"b\"", "").calling("f", "{}");
    assert_eq!(parse_in_all_ways(Some(ToolFormat::HERMES), Some(InReply), text), wanted);
}

#[test]
fn reasoning_may_have_the_marks_of_mistral() {
    let reply = |reasoning: &str, text: &str| Reply { reasoning: reasoning.into(), ..Reply::of(text) };
    for (text, wanted) in [
        ("[THINK]Hm. </think>[/THINK]Yes.", reply("Hm. </think>", "Yes.")),
        ("[THINK]Hm.[/THINK][TOOL_CALLS]f[ARGS]{}", reply("Hm.", "").calling("f", "{}")),
        ("<think>Hm.</think>Yes.", reply("", "<think>Hm.</think>Yes.")),
        ("[TH", reply("", "[TH")),
    ] {
        for (at, _) in text.char_indices() {
            let sections = Sections::new(Some(ReasoningStart::InReply), ReasoningMarks::Mistral);
            let parser = ReplyParser::new(sections, Some((ToolFormat::MISTRAL, tools())));
            assert_eq!(parse_with(parser, [&text[..at], &text[at..]]), wanted, "cut at {at}: {text}");
        }
    }
}

proptest! {
    #![proptest_config(drawn(1_000))]

    #[test]
    fn cuts_change_nothing(
        text in fragments(),
        format in formats(),
        reasoning in reasoning(),
        cuts in proptest::collection::vec(any::<usize>(), 0..6),
    ) {
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
        ends.retain(|end| text.is_char_boundary(*end));
        ends.extend([0, text.len()]);
        ends.sort_unstable();
        let pieces = ends.windows(2).map(|ends| &text[ends[0]..ends[1]]);
        prop_assert_eq!(parse(format, reasoning, pieces), parse(format, reasoning, [&text]));
    }

    #[test]
    fn arguments_are_json_whatever_a_model_writes_in_their_strings(code in "([^\"\\\\]|\\\\.){0,12}", format in formats(), is_named: bool) {
        let object = format!("{{\"a\": \"{code}\"}}");
        let text = match format.map(ToolFormat::name) {
            Some("hermes") => {
                format!("<tool_call>{{\"name\": \"f\", \"arguments\": {object}}}</tool_call>")
            }
            Some("harmony") => {
                format!("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{object}")
            }
            Some("mistral") if is_named => format!("[TOOL_CALLS]f[ARGS]{object}"),
            Some("mistral") => {
                format!("[TOOL_CALLS][{{\"arguments\": {object}, \"name\": \"f\"}}]")
            }
            Some("llama3" | "json" | "granite" | "xlam") => {
                format!("{{\"name\": \"f\", \"parameters\": {object}}}")
            }
            Some("deepseek") if is_named => {
                format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{object}\n```<｜tool▁call▁end｜>")
            }
            Some("deepseek") => format!("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{object}"),
            Some("kimi") => {
                format!("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{object}<|tool_call_end|>")
            }
            Some("phi4") => format!("functools[{{\"name\": \"f\", \"arguments\": {object}}}]"),
            Some("command") => {
                format!("<|START_ACTION|>[{{\"tool_name\": \"f\", \"parameters\": {object}}}]<|END_ACTION|>")
            }
            _ => return Ok(()),
        };
        let reply = parse(format, None, text.chars().map(String::from));
        prop_assert_eq!(&reply, &parse(format, None, [&text]));
        prop_assert_eq!(reply.text, "");
        let arguments: Result<serde_json::Value, _> = serde_json::from_str(&reply.calls[0].1);
        prop_assert!(arguments.is_ok_and(|arguments| arguments["a"].is_string()), "{:?}", reply.calls);
    }

    #[test]
    fn a_reply_without_calls_is_unchanged(text in fragments(), format in formats()) {
        // The marks around the content of Command A are no text.
        let sections = Sections::new(None, ReasoningMarks::Think);
        let reply = parse_with(ReplyParser::new(sections, format.map(|format| (format, tools()))), [&text]);
        if reply.calls.is_empty() {
            prop_assert_eq!(reply.text, text);
        }
    }
}
