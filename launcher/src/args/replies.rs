//! How the model's replies are told apart: flags and what they mean.

use clap::{Args, ValueEnum};

/// How replies are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
#[command(next_help_heading = "Replies")]
pub struct Replies {
    /// How the model writes tool calls: as its chat template shows, in a certain form, or not at all
    #[arg(
        long,
        value_enum,
        value_name = "FORM",
        default_value_t = ToolCallParser::Auto,
        env = "TRUNKLINE_TOOL_CALL_PARSER",
        hide_env_values = true
    )]
    pub tool_call_parser: ToolCallParser,
    /// Whether the model reasons between `<think>` and `</think>`: as its chat template shows, yes, or no
    #[arg(
        long,
        value_enum,
        value_name = "FORM",
        default_value_t = ReasoningParser::Auto,
        env = "TRUNKLINE_REASONING_PARSER",
        hide_env_values = true
    )]
    pub reasoning_parser: ReasoningParser,
}

/// The form of tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ToolCallParser {
    /// As the chat template shows
    Auto,
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`
    Hermes,
    /// `{"name": ..., "parameters": {...}}`
    #[value(alias = "llama3_json")]
    Llama3,
    /// `[TOOL_CALLS]` and a list, or a name and `[ARGS]`
    Mistral,
    /// `[name(key=value, ...), ...]`
    Pythonic,
    /// A JSON object or a list of them
    Json,
    /// Replies are text, whatever they look like
    Off,
}

/// The form of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReasoningParser {
    /// As the chat template shows
    Auto,
    /// Between `<think>` and `</think>`
    #[value(alias = "deepseek_r1", alias = "qwen3")]
    Think,
    /// Reasoning is text
    Off,
}
