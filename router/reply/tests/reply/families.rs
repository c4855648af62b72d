//! Replies in the formats of model families that have marks of their own, cut at every position.

use proptest::prelude::*;
use trunkline_reply::{ReasoningStart, ToolFormat};

use crate::replies;
use crate::support::{Reply, drawn, parse, parse_in_all_ways, weather};

/// The text that a model wrote, and the expected result.
type Recorded = (&'static str, Reply);

/// Replies in the form of DeepSeek-V3-0324, R1-0528 and V3.1, as their chat templates and vLLM's tests write it.
fn deepseek() -> Vec<Recorded> {
    vec![
        (
            "I will look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n\
             ```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n\
             ```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            weather("I will look.").calling("get_time", "{}"),
        ),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜>\
             <｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            weather("").calling("get_time", "{}"),
        ),
        // The mark of the section is missing.
        (
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"code\": \"```json\"}<｜tool▁call▁end｜>",
            Reply::of("").calling("f", "{\"code\": \"```json\"}"),
        ),
    ]
}

/// Replies in the form of Kimi-K2-Instruct, as its guide to tool calls and vLLM's tests write it.
fn kimi() -> Vec<Recorded> {
    vec![
        (
            "I will look. <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\
             <|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|><|tool_call_begin|>functions.get_time:1 \
             <|tool_call_argument_begin|> {} <|tool_call_end|><|tool_calls_section_end|>",
            weather("I will look.").calling("get_time", "{}"),
        ),
        // The model names the function without its prefix or number.
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>get_time<|tool_call_argument_begin|>{}<|tool_call_end|>",
            Reply::of("").calling("get_time", "{}"),
        ),
    ]
}

/// Replies in the form of Granite-3.0 to 3.3 and Granite-20B-FunctionCalling, as vLLM's tests write it.
fn granite() -> Vec<Recorded> {
    vec![
        ("<|tool_call|> [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]", weather("")),
        (
            "<tool_call>[{\"arguments\": {\"city\": \"Paris\"}, \"name\": \"get_weather\"}, {\"name\": \"get_time\", \
             \"arguments\": {}}]",
            weather("").calling("get_time", "{}"),
        ),
        (
            "<function_call> {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n<function_call> \
             {\"name\": \"get_time\", \"arguments\": {}}",
            weather("").calling("get_time", "{}"),
        ),
    ]
}

/// Replies in the form of Phi-4-mini-instruct, as its model card and vLLM's tests write it.
fn phi4() -> Vec<Recorded> {
    vec![
        (
            "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]<|/tool_call|>",
            weather(""),
        ),
        (
            "Let me see.\nfunctools[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}},\n {\"name\": \
             \"get_time\", \"arguments\": {}}]",
            weather("Let me see.").calling("get_time", "{}"),
        ),
    ]
}

/// Replies in the form of Command A, R7B and R+, as their chat templates and vLLM's tests write it.
fn command() -> Vec<Recorded> {
    let thinking = |reply: Reply| Reply { reasoning: "I need it.".into(), ..reply };
    vec![
        (
            "<|START_THINKING|>I need it.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \
             \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}},\n    {\"tool_call_id\": \"1\", \
             \"tool_name\": \"get_time\", \"parameters\": {}}\n]<|END_ACTION|>",
            thinking(weather("").calling("get_time", "{}")),
        ),
        (
            "<|START_THINKING|>I need it.<|END_THINKING|>\n<|START_RESPONSE|>It is 5 < 6.<|END_RESPONSE|>",
            thinking(Reply::of("It is 5 < 6.")),
        ),
        ("<|START_RESPONSE|>Yes.<|END_RESPONSE|>", Reply::of("Yes.")),
        (
            "Action: ```json\n[\n    {\n        \"tool_name\": \"get_weather\",\n        \"parameters\": {\"city\": \
             \"Paris\"}\n    }\n]```",
            weather(""),
        ),
    ]
}

/// Replies in the form of xLAM-2, as its chat template and vLLM's tests write it.
fn xlam() -> Vec<Recorded> {
    vec![
        ("[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]", weather("")),
        (
            "I will look.\n```json\n[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]\n```",
            weather("I will look."),
        ),
        (
            "Hm.[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]",
            weather("Hm."),
        ),
        (
            "Hm.<tool_call>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]</tool_call>",
            weather("Hm."),
        ),
    ]
}

/// Replies in the form of OLMo-3-Instruct, as its chat template and vLLM's tests write it.
fn olmo3() -> Vec<Recorded> {
    let paris = |text| Reply::of(text).calling("get_weather", "{\"city\":\"Paris\"}");
    vec![
        (
            "I will look.\n<function_calls>\nget_weather(city='Paris')\nget_time()\n</function_calls>",
            paris("I will look.").calling("get_time", "{}"),
        ),
        (
            "<function_calls>f(a=[1, '</function_calls>'], b=null, c={'d': true})</function_calls> Done.",
            Reply::of(" Done.")
                .calling("f", "{\"a\":[1,\"</function_calls>\"],\"b\":null,\"c\":{\"d\":true}}"),
        ),
        ("<function_calls>[get_weather(city=\"Paris\")]</function_calls>", paris("")),
    ]
}

/// Replies in the form of GLM-4.5, 4.6 and 4.7, as their chat templates and vLLM's tests write it.
fn glm() -> Vec<Recorded> {
    vec![
        (
            "I will look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n\
             <arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>",
            Reply::of("I will look.")
                .calling("get_weather", "{\"city\": \"Paris\", \"days\": 3}")
                .calling("get_time", "{}"),
        ),
        // The schema decides what is text.
        (
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>12</arg_value><arg_key>unit</arg_key>\
             <arg_value>C</arg_value></tool_call>",
            Reply::of("").calling("get_weather", "{\"city\": \"12\", \"unit\": \"C\"}"),
        ),
        (
            "<tool_call>get_weather<arg_key>days</arg_key><arg_value>a few</arg_value><arg_key>unit</arg_key>\
             <arg_value>null</arg_value></tool_call>",
            Reply::of("").calling("get_weather", "{\"days\": \"a few\", \"unit\": null}"),
        ),
        // A parameter without a type takes the value for JSON if it is any.
        (
            "<tool_call>f<arg_key>a</arg_key><arg_value>[1, \"x\", True]</arg_value><arg_key>b</arg_key>\
             <arg_value>{'c': None}</arg_value><arg_key>d</arg_key><arg_value>007</arg_value></tool_call>",
            Reply::of("").calling("f", "{\"a\": [1, \"x\", true], \"b\": {\"c\":null}, \"d\": \"007\"}"),
        ),
    ]
}

/// Replies in the form of Qwen3-Coder, as its chat template and vLLM's tests write it.
fn qwen3_coder() -> Vec<Recorded> {
    vec![
        (
            "I will look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n\
             <parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n\
             </function>\n</tool_call>",
            Reply::of("I will look.")
                .calling("get_weather", "{\"city\": \"Paris\", \"days\": 3}")
                .calling("get_time", "{}"),
        ),
        // Blank lines of a text stay.
        (
            "<tool_call>\n<function=f>\n<parameter=code>\n\nif a < b:\n    \"x\"\n\n</parameter>\n</function>\n</tool_call>",
            Reply::of("").calling("f", "{\"code\": \"\\nif a < b:\\n    \\\"x\\\"\\n\"}"),
        ),
        // The outer mark is missing.
        ("<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</tool_call>", weather("")),
    ]
}

/// Replies with a call before reasoning has ended, as Qwen3.5 and others write them (vLLM's issue 39056).
fn in_reasoning() -> Vec<(ToolFormat, &'static str, Reply)> {
    let after = |reasoning: &str, reply: Reply| Reply { reasoning: reasoning.into(), ..reply };
    let paris = || weather("");
    vec![
        (
            ToolFormat::QWEN3_CODER,
            "<think>\nI need it.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n\
             </function>\n</tool_call>\n</think>\n\n",
            after("\nI need it.", paris()),
        ),
        // The reply ends in reasoning.
        (
            ToolFormat::QWEN3_CODER,
            "<think>\nI need it.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n\
             </function>\n</tool_call>",
            after("\nI need it.", paris()),
        ),
        // Reasoning goes on, and another call follows it.
        (
            ToolFormat::HERMES,
            "<think>\nFirst.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n\
             </tool_call>\nThen.\n</think>\n\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n\
             </tool_call>",
            after("\nFirst.\nThen.", paris().calling("get_time", "{}")),
        ),
        (
            ToolFormat::HERMES,
            "<think>a <tool_call>{\"name\": \"get_time\"}</tool_call><tool_call>{\"name\": \"f\"}</tool_call></think>It is 5.",
            after("a", Reply::of("It is 5.").calling("get_time", "{}").calling("f", "{}")),
        ),
        (
            ToolFormat::GLM,
            "<think>I look.<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
            after("I look.", paris()),
        ),
        (
            ToolFormat::KIMI,
            "<think>I look. <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\
             <|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|><|tool_calls_section_end|></think>",
            after("I look.", paris()),
        ),
        (
            ToolFormat::DEEPSEEK,
            "<think>I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            after("I look.", paris()),
        ),
        (
            ToolFormat::COMMAND,
            "<|START_THINKING|>I look.<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \
             \"parameters\": {\"city\": \"Paris\"}}]<|END_ACTION|>",
            after("I look.", paris()),
        ),
        // A call that reasoning cuts off has the arguments before the mark, as one at the end of a reply.
        (
            ToolFormat::HERMES,
            "<think>a<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1</think>b",
            after("a", Reply::of("b").calling("f", "{\"a\": 1")),
        ),
    ]
}

/// Reasoning about calls, in formats where a call may be part of reasoning and in others.
const THOUGHTS: &[(ToolFormat, &str)] = &[
    (ToolFormat::HERMES, "I could write <tool_call> and </tool_call>."),
    (ToolFormat::HERMES, "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>\n"),
    (ToolFormat::HERMES, "{\"name\": \"f\", \"arguments\": {}} "),
    (ToolFormat::HERMES, " <tool_"),
    (ToolFormat::QWEN3_CODER, "Some models write <function=f>\n</function> without a mark."),
    (ToolFormat::GLM, "<tool_call>get_time is a tool"),
    (ToolFormat::XLAM, "```json\n[{\"name\": \"f\", \"arguments\": {}}]\n```"),
    (ToolFormat::JSON, "{\"name\": \"f\", \"arguments\": {}}"),
    (ToolFormat::LLAMA3, "<|python_tag|>{\"name\": \"f\"}"),
    (ToolFormat::PYTHONIC, "[f(a=1)]"),
    (ToolFormat::PHI4, "functools[{\"name\": \"f\", \"arguments\": {}}]"),
    (ToolFormat::OLMO3, "<function_calls>f(a=1)</function_calls>"),
    (ToolFormat::GRANITE, "<tool_call>[{\"name\": \"f\", \"arguments\": {}}]"),
];

#[test]
fn calls_in_reasoning_are_found_where_the_format_has_a_mark_for_them() {
    for (format, text, wanted) in in_reasoning() {
        let (start, inside) = (ReasoningStart::InReply, ReasoningStart::InPrompt);
        assert_eq!(parse_in_all_ways(Some(format), Some(start), text), wanted, "{format:?}: {text}");
        // The prompt may have opened reasoning.
        let text = text.strip_prefix("<think>").or(text.strip_prefix("<|START_THINKING|>")).unwrap();
        assert_eq!(parse_in_all_ways(Some(format), Some(inside), text), wanted, "{format:?}: {text}");
        // Without tools it is only reasoning.
        assert_eq!(parse_in_all_ways(None, Some(inside), text).calls, [], "{text}");
    }
}

#[test]
fn reasoning_about_calls_is_reasoning() {
    for (format, thought) in THOUGHTS {
        let wanted = Reply { reasoning: (*thought).into(), ..Reply::of("Yes.") };
        let text = format!("<think>{thought}</think>Yes.");
        let found = parse_in_all_ways(Some(*format), Some(ReasoningStart::InReply), &text);
        assert_eq!(found, wanted, "{format:?}: {text}");
    }
}

#[test]
fn a_reply_under_a_grammar_has_no_calls_in_its_reasoning() {
    use trunkline_reply::{ReasoningMarks, ReplyParser, Sections};
    let call = "<tool_call>{\"name\": \"get_time\", \"arguments\": {}}</tool_call>";
    let text = format!("<think>a{call}</think>{call}");
    for cuts in [vec![text.as_str()], text.split_inclusive('>').collect()] {
        let sections = Sections::constrained(Some(ReasoningStart::InReply), ReasoningMarks::Think);
        let parser = ReplyParser::new(sections, Some((ToolFormat::HERMES, crate::support::tools())));
        let reply = crate::support::parse_with(parser, cuts);
        let wanted = Reply { reasoning: format!("a{call}"), ..Reply::of("").calling("get_time", "{}") };
        assert_eq!(reply, wanted);
    }
}

/// Returns recorded replies in a format.
fn recorded(format: ToolFormat) -> Vec<Recorded> {
    match format.name() {
        "hermes" => [replies::hermes(), replies::malformed_hermes()].concat(),
        "llama3" => replies::llama3(),
        "mistral" => replies::mistral(),
        "pythonic" => replies::pythonic(),
        "harmony" => replies::harmony(),
        "deepseek" => deepseek(),
        "kimi" => kimi(),
        "glm" => glm(),
        "qwen3_coder" => qwen3_coder(),
        "command" => command(),
        "phi4" => phi4(),
        "granite" => granite(),
        "olmo3" => olmo3(),
        "xlam" => xlam(),
        "json" => replies::json(),
        name => panic!("there is no recorded reply in the format `{name}`"),
    }
}

#[test]
fn calls_of_each_format_are_found_wherever_they_are_cut() {
    for format in ToolFormat::ALL.iter().copied() {
        for (text, wanted) in recorded(format) {
            let found = parse_in_all_ways(Some(format), Some(ReasoningStart::InReply), text);
            assert_eq!(found, wanted, "{format:?}: {text}");
            // Without the channels of reasoning, messages cannot be told apart.
            if wanted.reasoning.is_empty() && format != ToolFormat::HARMONY {
                assert_eq!(parse_in_all_ways(Some(format), None, text), wanted, "{format:?}: {text}");
            }
        }
    }
}

#[test]
fn lookalikes_of_each_family_are_text() {
    for (format, text) in [
        (
            ToolFormat::DEEPSEEK,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>nothing<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        ),
        (ToolFormat::DEEPSEEK, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{\"a\": 1}"),
        (
            ToolFormat::KIMI,
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.g:0<|tool_call_argument_begin|>{}",
        ),
        (ToolFormat::KIMI, "<|tool_call_begin|>functions.f:0 is a call"),
        (ToolFormat::GRANITE, "<|tool_call|> is a mark"),
        (ToolFormat::PHI4, "import functools\n\nfunctools.cache"),
        (ToolFormat::PHI4, "functools[1]"),
        (
            ToolFormat::COMMAND,
            "Action: ```json\n[{\"tool_name\": \"directly-answer\", \"parameters\": {}}]```",
        ),
        (ToolFormat::XLAM, "```json\n{\"city\": \"Paris\"}\n```"),
        (ToolFormat::OLMO3, "<function_calls>g(a=1)</function_calls>"),
        (ToolFormat::OLMO3, "<function_calls>f(a=b'z')</function_calls>"),
        (ToolFormat::OLMO3, "<function_calls>f(a=1"),
        (ToolFormat::GLM, "<tool_call>get_time is a tool"),
        (ToolFormat::GLM, "<tool_call>get_time</tool"),
        (ToolFormat::GLM, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
        (ToolFormat::QWEN3_CODER, "<function=g>\n<parameter=a>\n1\n</parameter>\n</function>"),
        (ToolFormat::QWEN3_CODER, "A <function=f> tag"),
    ] {
        assert_eq!(parse_in_all_ways(Some(format), None, text), Reply::of(text), "{format:?}: {text}");
    }
}

#[test]
fn names_and_keys_have_a_longest_length_wherever_they_are_cut() {
    let long = "x".repeat(600);
    for (format, text) in [
        (ToolFormat::KIMI, format!("<|tool_call_begin|>functions.{long}:0<|tool_call_argument_begin|>{{}}")),
        (ToolFormat::QWEN3_CODER, format!("<function={long}>\n</function>")),
    ] {
        assert_eq!(parse_in_all_ways(Some(format), None, &text), Reply::of(&text), "{format:?}");
    }
    let rest = format!("<arg_key>{long}</arg_key><arg_value>1</arg_value></tool_call>");
    let reply = parse_in_all_ways(Some(ToolFormat::GLM), None, &format!("<tool_call>f{rest}"));
    assert_eq!((reply.calls, reply.text), (vec![("f".into(), "{".into(), true)], rest));
}

#[test]
fn an_argument_between_tags_streams() {
    use trunkline_reply::{Piece, ReasoningMarks, ReplyParser, Sections};
    let tools = (ToolFormat::QWEN3_CODER, crate::support::tools());
    let mut parser = ReplyParser::new(Sections::new(None, ReasoningMarks::Think), Some(tools));
    let mut out = Vec::new();
    parser.push("<tool_call>\n<function=f>\n<parameter=code>\none\n", &mut out);
    let begin = Piece::CallBegin { name: "f".into() };
    assert_eq!(out, [begin, Piece::Arguments("{\"code\": \"one".into())]);
    out.clear();
    parser.push("two\n</param", &mut out);
    assert_eq!(out, [Piece::Arguments("\\ntwo".into())]);
    out.clear();
    parser.push("eter>\n</function>", &mut out);
    assert_eq!(out, [Piece::Arguments("\"}".into()), Piece::CallEnd]);
    // Tags that break off end the call, and the rest is text.
    let text = "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value> oops</tool_call>";
    let reply = parse_in_all_ways(Some(ToolFormat::GLM), None, text);
    assert_eq!(reply.calls, [("f".into(), "{\"a\": 1".into(), true)]);
    assert_eq!(reply.text, " oops</tool_call>");
}

proptest! {
    #![proptest_config(drawn(300))]

    #[test]
    fn a_text_between_tags_is_the_argument(code in "[ -~\n<>/éß🙂\\\\\"]{0,24}", is_glm: bool) {
        let (format, text) = if is_glm {
            let text = format!("<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>{code}</arg_value>\n</tool_call>");
            (ToolFormat::GLM, text)
        } else {
            let text = format!("<tool_call>\n<function=f>\n<parameter=code>\n{code}\n</parameter>\n</function>\n</tool_call>");
            (ToolFormat::QWEN3_CODER, text)
        };
        let reply = parse(Some(format), None, text.chars().map(String::from));
        prop_assert_eq!(&reply, &parse(Some(format), None, [&text]));
        let arguments: serde_json::Value = serde_json::from_str(&reply.calls[0].1).unwrap();
        prop_assert_eq!(arguments, serde_json::json!({"code": code}));
        prop_assert_eq!(reply.text, "");
    }
}
