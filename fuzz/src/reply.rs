//! Replies of models. Their division into text, reasoning and calls must not depend on how a reply arrives in pieces,
//! and no text may be lost.

use trunkline_reply::{Piece, ReasoningMarks, ReasoningStart, ReplyParser, Sections, ToolFormat};

const FORMATS: [Option<ToolFormat>; 6] = [
    None,
    Some(ToolFormat::HERMES),
    Some(ToolFormat::LLAMA3),
    Some(ToolFormat::MISTRAL),
    Some(ToolFormat::PYTHONIC),
    Some(ToolFormat::JSON),
];
const STARTS: [Option<ReasoningStart>; 3] =
    [None, Some(ReasoningStart::InPrompt), Some(ReasoningStart::InReply)];

/// Parses the pieces of a reply and joins adjacent results of the same kind.
fn read(mode: u8, pieces: &[&str]) -> Vec<Piece> {
    let tools =
        FORMATS[usize::from(mode) % 6].map(|format| (format, vec!["f".to_owned(), "get_weather".to_owned()]));
    let mut parser =
        ReplyParser::new(Sections::new(STARTS[usize::from(mode) / 6 % 3], ReasoningMarks::Think), tools);
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
    let [mode, cut, text @ ..] = data else { return };
    let text = String::from_utf8_lossy(text);
    let whole = read(*mode, &[&text]);
    let is_plain = FORMATS[usize::from(*mode) % 6].is_none() && STARTS[usize::from(*mode) / 6 % 3].is_none();
    if is_plain {
        let expected: &[Piece] = if text.is_empty() { &[] } else { &[Piece::Text(text.to_string())] };
        assert_eq!(whole, expected);
    }
    let step = usize::from(*cut % 9) + 1;
    let chars: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let cuts: Vec<usize> = chars.iter().copied().step_by(step).chain([text.len()]).collect();
    let pieces: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
    assert_eq!(read(*mode, &pieces), whole, "cut every {step} characters: {text:?}");
}

/// Returns replies in the format of each model family.
pub fn seeds() -> Vec<Vec<u8>> {
    [
        "\x01\0<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}\n</tool_call>",
        "\x02\x01<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
        "\x03\x02[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"f\", \"arguments\": {\"x\": null}}]",
        "\x04\x03[f(a=1, b='x', c=[True, None]), get_weather(city=\"Paris\")]",
        "\x05\x04[{\"name\": \"f\", \"arguments\": {\"a\": \"\\u00e9\"}}]",
        "\x0d\0<think>\nfirst</think>\n\nthen <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> and text",
        "\x07\x02thought</think>answer",
        "\x01\x02a < b <tool_ {\"name\": \"f\"} [f( ]",
    ]
    .map(Vec::from)
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
    ]
    .map(String::from)
    .to_vec()
}
