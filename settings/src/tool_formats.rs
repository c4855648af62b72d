//! The table of tool formats.

/// Passes the table of the formats in which models write tool calls to a macro, which makes what it needs of the rows.
/// Each is a value of `--tool-call-parser`, a constant of the crate `trunkline-reply`, and a row of docs/api/openai.md.
///
/// A row has the help text; the module in `router/reply/src/formats`, which contains the format; the names of the value
/// and the constant; the name that users write, with its aliases; and the models that write the format. The rows are in
/// the order of the help text.
#[macro_export]
macro_rules! with_tool_formats {
    ($receiver:ident) => {
        $receiver! {
            /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`
            hermes Hermes HERMES = "hermes", of "Hermes 2 Pro, Qwen 2.5 and 3, SmolLM3, Granite 4";
            /// `{"name": ..., "parameters": {...}}`
            llama3 Llama3 LLAMA3 = "llama3" | "llama3_json", of "Llama 3.1 to 3.3";
            /// `[TOOL_CALLS]` and a list, or a name and `[ARGS]`.
            mistral Mistral MISTRAL = "mistral", of "Mistral";
            /// `[name(key=value, ...), ...]`
            pythonic Pythonic PYTHONIC = "pythonic" | "llama4_pythonic", of "Llama 3.2 and 4, ToolACE";
            /// `<|channel|>commentary to=functions.NAME <|message|>{...}`, of GPT-OSS.
            harmony Harmony HARMONY = "harmony" | "openai", of "GPT-OSS";
            /// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}`
            deepseek Deepseek DEEPSEEK = "deepseek" | "deepseek_v3" | "deepseek_v31", of "DeepSeek V3, R1 and V3.1";
            /// `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}`
            kimi Kimi KIMI = "kimi" | "kimi_k2", of "Kimi K2";
            /// `<tool_call>NAME` and `<arg_key>`, `<arg_value>` for each argument.
            glm Glm GLM = "glm" | "glm45" | "glm47", of "GLM 4.5 and later";
            /// `<function=NAME>` and `<parameter=KEY>` for each argument.
            qwen3_coder Qwen3Coder QWEN3_CODER = "qwen3_coder" | "qwen3_xml", of "Qwen3-Coder, Qwen 3.5";
            /// `<|START_ACTION|>` and a list.
            command Command COMMAND = "command" | "cohere_command3", of "Command A, R7B, R and R+";
            /// `functools` or `<|tool_call|>` and a list.
            phi4 Phi4 PHI4 = "phi4" | "phi4_mini_json", of "Phi-4-mini";
            /// `<|tool_call|>` and a list.
            granite Granite GRANITE = "granite" | "granite-20b-fc", of "Granite 3, Granite 20B for function calling";
            /// Calls in Python's syntax in `<function_calls>`.
            olmo3 Olmo3 OLMO3 = "olmo3", of "OLMo 3";
            /// A list, perhaps as a block of code.
            xlam Xlam XLAM = "xlam", of "xLAM 2";
            /// A JSON object or a list of them.
            json Json JSON = "json", of "all others";
        }
    };
}
