//! Replies of models. Their division into text, reasoning and calls must not depend on how a reply arrives in pieces,
//! and no text may be lost.

use trunkline_reply::{Piece, ReasoningMarks, ReasoningStart, ReplyParser, Sections, Signature, ToolFormat};

const STARTS: [Option<ReasoningStart>; 3] =
    [None, Some(ReasoningStart::InPrompt), Some(ReasoningStart::InReply)];

/// Returns the format and the start of reasoning that a byte stands for.
fn mode(byte: u8) -> (Option<ToolFormat>, Option<ReasoningStart>) {
    let byte = usize::from(byte);
    let num_formats = ToolFormat::ALL.len() + 1;
    (ToolFormat::ALL.get(byte % num_formats).copied(), STARTS[byte / num_formats % 3])
}

/// Returns the byte of a format and the start of reasoning at an index of [`STARTS`].
fn byte(format: Option<ToolFormat>, start: usize) -> u8 {
    let idx = ToolFormat::ALL.iter().position(|each| Some(*each) == format).unwrap_or(ToolFormat::ALL.len());
    u8::try_from(start * (ToolFormat::ALL.len() + 1) + idx).expect("few formats")
}

/// Parses the pieces of a reply and joins adjacent results of the same kind.
fn read((format, start): (Option<ToolFormat>, Option<ReasoningStart>), pieces: &[&str]) -> Vec<Piece> {
    let code = serde_json::json!({"properties": {"code": {"type": "string"}}});
    let tools = || ["f", "get_weather"].map(|name| Signature::new(name, &code)).to_vec();
    let mut parser =
        ReplyParser::new(Sections::new(start, ReasoningMarks::Think), format.map(|format| (format, tools())));
    let mut out = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut out);
    }
    parser.finish(&mut out);
    let mut joined: Vec<Piece> = Vec::new();
    for piece in out {
        match (joined.last_mut(), piece) {
            (Some(Piece::Text(last)), Piece::Text(more))
            | (Some(Piece::Reasoning(last)), Piece::Reasoning(more))
            | (Some(Piece::Arguments(last)), Piece::Arguments(more)) => last.push_str(&more),
            (_, piece) => joined.push(piece),
        }
    }
    joined
}

/// Runs an input that consists of a byte for the format, one for the size of pieces, and the reply.
pub fn run(data: &[u8]) {
    let [first, cut, text @ ..] = data else { return };
    let (text, mode) = (String::from_utf8_lossy(text), mode(*first));
    let whole = read(mode, &[&text]);
    if mode == (None, None) {
        let expected: &[Piece] = if text.is_empty() { &[] } else { &[Piece::Text(text.to_string())] };
        assert_eq!(whole, expected);
    }
    let step = usize::from(*cut % 9) + 1;
    let chars: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let cuts: Vec<usize> = chars.iter().copied().step_by(step).chain([text.len()]).collect();
    let pieces: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
    assert_eq!(read(mode, &pieces), whole, "cut every {step} characters: {text:?}");
}

/// Returns replies in the format of each model family.
pub fn seeds() -> Vec<Vec<u8>> {
    let call = "{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}";
    let hermes = format!("<tool_call>\n{call}\n</tool_call>");
    let reasoning = format!("<think>\nfirst</think>\n\nthen {hermes} and text");
    let list = format!("[{call}, {call}]");
    [
        (Some(ToolFormat::HERMES), 0, hermes.as_str()),
        (Some(ToolFormat::HERMES), 2, &reasoning),
        (Some(ToolFormat::HERMES), 0, "a < b <tool_ {\"name\": \"f\"} [f( ]"),
        (None, 1, "thought</think>answer"),
        (Some(ToolFormat::LLAMA3), 0, "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}"),
        (Some(ToolFormat::MISTRAL), 0, &format!("[TOOL_CALLS] {list}")),
        (Some(ToolFormat::PYTHONIC), 0, "[f(a=1, b='x', c=[True, None]), get_weather(city=\"Paris\")]"),
        (Some(ToolFormat::JSON), 0, "[{\"name\": \"f\", \"arguments\": {\"a\": \"\\u00e9\"}}]"),
        (Some(ToolFormat::DEEPSEEK), 0, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>"),
        (Some(ToolFormat::KIMI), 0, "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|>"),
        (Some(ToolFormat::GRANITE), 0, &format!("<|tool_call|>{list}")),
        (Some(ToolFormat::PHI4), 0, &format!("functools{list}")),
        (Some(ToolFormat::COMMAND), 0, "<|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": {}}]<|END_ACTION|>"),
        (Some(ToolFormat::XLAM), 0, &format!("```json\n{list}\n```")),
        (Some(ToolFormat::OLMO3), 0, "<function_calls>\nf(a=1)\nget_weather(city='Paris')\n</function_calls>"),
        (Some(ToolFormat::GLM), 0, "<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>x\n</arg_value>\n</tool_call>"),
        (Some(ToolFormat::QWEN3_CODER), 0, "<tool_call>\n<function=f>\n<parameter=code>\nx\n</parameter>\n</function>\n</tool_call>"),
    ]
    .map(|(format, start, text)| [&[byte(format, start), 0], text.as_bytes()].concat())
    .to_vec()
}

/// Returns markers of all families.
pub fn words() -> Vec<String> {
    [
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "<think>",
        "</think>",
        "{\"name\": \"f\"",
        "\"arguments\": {",
        "\"parameters\":",
        "[f(",
        "get_weather(",
        "f(a=",
        "}}",
        "\\\"",
        "'",
        "```json\n",
        ";",
        "<｜tool▁sep｜>",
        "<|tool_call_argument_begin|>",
        "<|tool_call|>",
        "<function_calls>",
        "<arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<function=f>",
        "<parameter=",
        "</parameter>",
    ]
    .map(String::from)
    .to_vec()
}
