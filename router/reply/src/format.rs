//! The forms in which families of models write tool calls.

/// How a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes 2 Pro, Qwen 2.5 and 3, SmolLM3.
    Hermes,
    /// `{"name": ..., "parameters": {...}}` as the whole reply, several with `;` between them, after
    /// `<|python_tag|>` or not: Llama 3.1 to 3.3.
    Llama3,
    /// `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or since tokenizer version 11
    /// `[TOOL_CALLS]name[ARGS]{...}`: Mistral.
    Mistral,
    /// `[name(key=value, ...), ...]` as the whole reply: Llama 3.2 and 4, ToolACE.
    Pythonic,
    /// A JSON object or a list of them as the whole reply.
    Json,
}

impl ToolFormat {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Hermes, Self::Llama3, Self::Mistral, Self::Pythonic, Self::Json];

    /// Its name in flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::Llama3 => "llama3",
            Self::Mistral => "mistral",
            Self::Pythonic => "pythonic",
            Self::Json => "json",
        }
    }

    /// The form that a model was taught, by the source of its chat template; none if that does not speak of tools.
    pub fn of_template(source: &str) -> Option<Self> {
        if !source.contains("tools") && !source.contains("tool_calls") {
            return None;
        }
        let marks: [(&str, Self); 9] = [
            ("[TOOL_CALLS]", Self::Mistral),
            ("<tool_call>", Self::Hermes),
            // SmolLM3's word for tools that are called so.
            ("xml_tools", Self::Hermes),
            ("func_name1(params_name1=", Self::Pythonic),
            ("<|python_start|>", Self::Pythonic),
            ("<|python_tag|>", Self::Llama3),
            ("\"parameters\": dictionary of argument name", Self::Llama3),
            ("\\\"parameters\\\": dictionary of argument name", Self::Llama3),
            // Who answers calls, in all templates of that family.
            ("ipython", Self::Llama3),
        ];
        let found = marks.iter().find(|(mark, _)| source.contains(mark));
        Some(found.map_or(Self::Json, |(_, format)| *format))
    }

    /// What begins calls anywhere in a reply. Where these are control tokens they must not be left out of the text.
    pub fn opening_marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &["<tool_call>"],
            Self::Llama3 => &["<|python_tag|>"],
            Self::Mistral => &["[TOOL_CALLS]"],
            Self::Pythonic => &["<|python_start|>"],
            Self::Json => &[],
        }
    }

    /// Other marks that belong to calls.
    pub fn inner_marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &["</tool_call>"],
            Self::Mistral => &["[CALL_ID]", "[ARGS]"],
            Self::Pythonic => &["<|python_end|>"],
            Self::Llama3 | Self::Json => &[],
        }
    }

    /// What ends the calls that an opening mark began.
    pub(crate) fn closing_mark(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some("</tool_call>"),
            Self::Pythonic => Some("<|python_end|>"),
            Self::Llama3 | Self::Mistral | Self::Json => None,
        }
    }

    /// Whether a reply may begin with a call, without a mark.
    pub(crate) fn may_begin_bare(self) -> bool {
        matches!(self, Self::Llama3 | Self::Pythonic | Self::Json)
    }
}
