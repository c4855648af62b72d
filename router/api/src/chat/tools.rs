//! Tools that a request offers to the model, in the form that all dialects share.

use serde_json::{Map, Value, json};
use trunkline_grammar::{Calls, Grammar, JsonSchema, Strictness, StructuralTag};
use trunkline_reply::{CallBody, CallForm, Signature, TaggedCall, ToolFormat};
use trunkline_text::{ChatMessage, ChatRequest};

use super::prompt::Mark;
use crate::message_size::json_bytes;
use trunkline_base::error::ApiError;
use trunkline_base::limits::Limits;
use trunkline_generation::grammars::AskedGrammar;
use trunkline_generation::model::ReplyStyle;

/// The most characters in a tool's name. This is Anthropic's limit. OpenAI's limit of 64 is too short for names that
/// are prefixed with a server's name.
const MAX_NAME_CHARS: usize = 128;

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The name: letters, digits, `_`, `-` and `.`.
    pub name: String,
    pub description: Option<String>,
    /// The JSON schema of the arguments, which must be an object.
    pub parameters: Value,
    /// True if a required call must obey every keyword of the schema. Otherwise keywords that no grammar can hold are
    /// left out.
    pub is_strict: bool,
}

/// The rule that decides whether the model calls a tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// The model calls no tool.
    None,
    /// The model decides whether it calls tools.
    #[default]
    Auto,
    /// The model calls one or more tools.
    Required,
    /// The model calls this tool.
    Named(String),
    /// The model may call only these tools.
    Allowed {
        names: Vec<String>,
        /// If true, it calls at least one of them.
        is_required: bool,
    },
}

impl ToolChoice {
    /// Parses OpenAI's `tool_choice`: a word, or an object with a function's name at the JSON pointer `name` (RFC
    /// 6901). The pointer differs between OpenAI's APIs.
    pub fn from_openai(field: Option<&Value>, name: &str) -> Result<Self, ApiError> {
        let Some(field) = field else { return Ok(Self::Auto) };
        if let Some(word) = field.as_str() {
            return Ok(match word {
                "none" => Self::None,
                "auto" => Self::Auto,
                "required" => Self::Required,
                // TGI's clients send a tool's name as the word.
                tool => Self::Named(tool.to_owned()),
            });
        }
        if field["type"] == "allowed_tools" {
            return Self::allowed(field, name);
        }
        // TGI's clients send the object without a type.
        let is_bare = field.get("type").is_none() && field["function"].is_object();
        if field["type"] != "function" && !is_bare {
            let problem = "must be `none`, `auto`, `required`, a tool's name or an object of the type `function` or \
                           `allowed_tools`";
            return Err(ApiError::value("tool_choice", problem));
        }
        let missing = || ApiError::MissingField { field: format!("tool_choice{}", name.replace('/', ".")) };
        Ok(Self::Named(field.pointer(name).and_then(Value::as_str).ok_or_else(missing)?.to_owned()))
    }

    /// Parses an object of the type `allowed_tools`. Its members are in an object of that name, or in Responses beside
    /// the type.
    fn allowed(field: &Value, name: &str) -> Result<Self, ApiError> {
        let (members, path) = match &field["allowed_tools"] {
            Value::Null => (field, "tool_choice"),
            members => (members, "tool_choice.allowed_tools"),
        };
        let is_required = match members["mode"].as_str() {
            Some("auto") => false,
            Some("required") => true,
            _ => return Err(ApiError::value(format!("{path}.mode"), "must be `auto` or `required`")),
        };
        let tools = members["tools"].as_array().filter(|tools| !tools.is_empty());
        let tools =
            tools.ok_or_else(|| ApiError::value(format!("{path}.tools"), "must be a list of tools"))?;
        let named = |(idx, tool): (usize, &Value)| {
            let problem = || {
                ApiError::value(format!("{path}.tools[{idx}]"), "must have the type `function` and a name")
            };
            let name = tool.pointer(name).and_then(Value::as_str).filter(|_| tool["type"] == "function");
            name.map(str::to_owned).ok_or_else(problem)
        };
        let names: Result<Vec<String>, ApiError> = tools.iter().enumerate().map(named).collect();
        Ok(Self::Allowed { names: names?, is_required })
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tools {
    tools: Vec<Tool>,
    choice: ToolChoice,
    /// If true, one reply may have several calls.
    is_parallel: bool,
    /// The beginning of call ids in the request's dialect.
    id_prefix: &'static str,
}

impl Tools {
    /// Checks the number of tools, their names and schemas, and the choice.
    pub fn new(
        tools: Vec<Tool>,
        choice: ToolChoice,
        is_parallel: bool,
        limits: &Limits,
    ) -> Result<Self, ApiError> {
        if tools.len() > limits.max_tools {
            let (num_tools, limit) = (tools.len(), limits.max_tools);
            let problem = format!("has {num_tools} tools, the limit is {limit}; hint: raise `--max-tools`");
            return Err(ApiError::value("tools", problem));
        }
        for (idx, tool) in tools.iter().enumerate() {
            let is_named = !tool.name.is_empty()
                && tool.name.chars().count() <= MAX_NAME_CHARS
                && tool.name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
            if !is_named {
                let problem =
                    format!("has a name that is not 1 to {MAX_NAME_CHARS} letters, digits, `_`, `-`, `.`");
                return Err(ApiError::value(format!("tools[{idx}]"), problem));
            }
            if tools[..idx].iter().any(|other| other.name == tool.name) {
                return Err(ApiError::value(format!("tools[{idx}]"), "has the same name as an earlier tool"));
            }
            if !tool.parameters.is_object() {
                let problem = "has parameters that are not a JSON schema of an object";
                return Err(ApiError::value(format!("tools[{idx}]"), problem));
            }
        }
        let is_offered = |name: &String| tools.iter().any(|tool| tool.name == *name);
        let are_offered = match &choice {
            ToolChoice::Named(name) => is_offered(name),
            ToolChoice::Allowed { names, .. } => names.iter().all(is_offered),
            ToolChoice::None | ToolChoice::Auto | ToolChoice::Required => true,
        };
        match &choice {
            _ if !are_offered => {
                let problem = "names a tool that is not in `tools`; hint: name one of them, or use `auto`";
                Err(ApiError::value("tool_choice", problem))
            }
            ToolChoice::Required if tools.is_empty() => {
                Err(ApiError::value("tool_choice", "needs `tools`; hint: send at least one"))
            }
            _ => Ok(Self { tools, choice, is_parallel, id_prefix: "call_" }),
        }
    }

    /// Lets call ids begin with `id_prefix` instead of OpenAI's `call_`.
    pub fn with_id_prefix(self, id_prefix: &'static str) -> Self {
        Self { id_prefix, ..self }
    }

    pub fn id_prefix(&self) -> &'static str {
        self.id_prefix
    }

    /// Returns the tools that the model may call.
    pub fn callable(&self) -> Vec<&Tool> {
        let may_call = |tool: &&Tool| match &self.choice {
            ToolChoice::None => false,
            ToolChoice::Named(name) => tool.name == *name,
            ToolChoice::Allowed { names, .. } => names.contains(&tool.name),
            ToolChoice::Auto | ToolChoice::Required => true,
        };
        self.tools.iter().filter(may_call).collect()
    }

    /// Returns what a reply's parser needs to know of the tools that the model may call.
    pub fn signatures(&self) -> Vec<Signature> {
        self.callable().into_iter().map(|tool| Signature::new(&tool.name, &tool.parameters)).collect()
    }

    /// Returns true if the reply must consist of calls.
    pub fn must_call(&self) -> bool {
        matches!(
            self.choice,
            ToolChoice::Required | ToolChoice::Named(_) | ToolChoice::Allowed { is_required: true, .. }
        )
    }

    pub fn is_parallel(&self) -> bool {
        self.is_parallel
    }

    /// Returns true if the request names the tool to call.
    pub fn is_named(&self) -> bool {
        matches!(self.choice, ToolChoice::Named(_))
    }

    /// Returns the grammar of replies of this style, if there is one. `format` is what a reply without calls follows.
    pub fn constrain(&self, style: ReplyStyle, format: Option<AskedGrammar>) -> Option<AskedGrammar> {
        if let Some(required) = self.grammar(style) {
            return Some(required);
        }
        let AskedGrammar { field, grammar } = format?;
        let grammar = match self.calls_beside_format(style).and_then(|format| self.marked_calls(format)) {
            Some(calls) => Grammar::WithCalls { reply: Box::new(grammar), calls },
            None => grammar,
        };
        Some(AskedGrammar { field, grammar })
    }

    /// Returns the format of the calls that a reply may consist of in place of what a grammar allows.
    pub fn calls_beside_format(&self, style: ReplyStyle) -> Option<ToolFormat> {
        let format = style.tools.unwrap_or(ToolFormat::HERMES);
        let may_call = !self.must_call() && !self.callable().is_empty() && !style.ignores_calls;
        // Without their headers, messages cannot be told apart.
        let has_headers = format != ToolFormat::HARMONY || style.required_calls() == format;
        Some(format).filter(|format| format.call_form().is_some() && may_call && has_headers)
    }

    /// Returns the grammar of calls after their mark, if it can hold any of the tools.
    fn marked_calls(&self, format: ToolFormat) -> Option<Calls> {
        let CallForm { body, closing_mark } = format.call_form()?;
        let is_list = matches!(body, CallBody::ObjectList);
        let mark = format.opening_marks().first().copied().unwrap_or_default();
        let one = |body| vec![(mark.to_owned(), body)];
        let forms = match body {
            CallBody::Object => one(Grammar::JsonSchema(self.calls_schema(false))),
            CallBody::ObjectList => {
                let mut list = self.calls_schema(true);
                if !self.is_parallel {
                    list.schema["maxItems"] = 1.into();
                }
                one(Grammar::JsonSchema(list))
            }
            CallBody::Tagged(call) => one(Grammar::StructuralTag(self.tagged_calls(call)?)),
            CallBody::Named { before_name, after_name } => {
                let form = |tool: &Tool| {
                    let mark = format!("{mark}{before_name}{}{after_name}", tool.name);
                    (mark, Grammar::JsonSchema(JsonSchema::new(tool.arguments_schema(), tool.is_strict)))
                };
                self.callable().into_iter().map(form).collect()
            }
        };
        Some(Calls { forms, closing_mark, may_repeat: self.is_parallel && !is_list })
    }

    /// Returns the form of one call with tags around its arguments, if tags can hold those of any tool.
    fn tagged_calls(&self, call: &TaggedCall) -> Option<StructuralTag> {
        let tools = self.callable().into_iter();
        let formats: Vec<Value> =
            tools.filter_map(|tool| call.format(&tool.name, &tool.parameters, tool.is_strict)).collect();
        let tag = Map::from_iter([("format".to_owned(), json!({"type": "or", "elements": formats}))]);
        StructuralTag::parse(&tag, false).ok()
    }

    /// Returns the grammar of required calls in replies of this style; `None` if calls are optional.
    fn grammar(&self, style: ReplyStyle) -> Option<AskedGrammar> {
        let is_message = style.required_calls() == ToolFormat::HARMONY;
        let grammar = || {
            if is_message { self.one_call() } else { Grammar::JsonSchema(self.reply_schema()) }
        };
        self.must_call().then(|| AskedGrammar { field: "tools", grammar: grammar() })
    }

    /// Returns the grammar of one call that is a message.
    fn one_call(&self) -> Grammar {
        let schema = |tool: &Tool| JsonSchema::new(tool.arguments_schema(), tool.is_strict);
        Grammar::Call(self.callable().into_iter().map(|tool| (tool.name.clone(), schema(tool))).collect())
    }

    /// Returns the schema of required calls: an object with `name` and `arguments`, or a list of such objects.
    pub fn reply_schema(&self) -> JsonSchema {
        self.calls_schema(self.is_parallel && !self.is_named())
    }

    /// Returns the schema of a call, or of a list of calls.
    fn calls_schema(&self, is_list: bool) -> JsonSchema {
        let tools = self.callable();
        let base = if is_list { "#/items" } else { "#" };
        let pointer =
            |idx: usize| if tools.len() == 1 { base.to_owned() } else { format!("{base}/anyOf/{idx}") };
        let mut calls: Vec<Value> =
            tools.iter().enumerate().map(|(idx, tool)| tool.call_schema(&pointer(idx))).collect();
        let one = if calls.len() == 1 { calls.swap_remove(0) } else { json!({"anyOf": calls}) };
        let strict = tools.iter().enumerate().filter(|(_, tool)| tool.is_strict);
        JsonSchema {
            schema: if is_list { json!({"type": "array", "minItems": 1, "items": one}) } else { one },
            strictness: Strictness::StrictBelow(
                strict.map(|(idx, _)| format!("{}/properties/arguments", pointer(idx))).collect(),
            ),
        }
    }

    /// Returns the approximate size in bytes of the text that the prompt has for the tools.
    pub fn num_bytes(&self) -> usize {
        let tools = self.tools.iter().filter(|_| self.choice != ToolChoice::None);
        tools
            .map(|tool| {
                tool.name.len()
                    + tool.description.as_ref().map_or(0, String::len)
                    + json_bytes(&tool.parameters)
            })
            .sum()
    }

    /// Puts the tools into the prompt. If the template `knows` tools, it writes them; otherwise they go into a system
    /// message. `mark` is moved if a message is inserted before it.
    pub fn describe(&self, chat: &mut ChatRequest, knows: bool, mark: &mut Option<Mark>) {
        if self.choice == ToolChoice::None || self.tools.is_empty() {
            return;
        }
        if knows {
            chat.tools = self.tools.iter().map(Tool::to_json).collect();
            return;
        }
        let mut text = String::from(
            "You may call functions. To call one, reply with nothing but a JSON object of its name and arguments in \
             <tool_call></tool_call> tags:\n<tool_call>\n{\"name\": NAME, \"arguments\": OBJECT}\n</tool_call>\n\
             The functions, a JSON object each:",
        );
        for tool in &self.tools {
            text.push('\n');
            text.push_str(&tool.to_json()["function"].to_string());
        }
        match chat.messages.first_mut() {
            Some(first) if first.role == "system" => {
                let content = first.content.get_or_insert_default();
                content.push_str(if content.is_empty() { "" } else { "\n\n" });
                content.push_str(&text);
            }
            _ => {
                chat.messages.insert(0, ChatMessage::new("system", text));
                if let Some(mark) = mark {
                    mark.message_idx += 1;
                }
            }
        }
    }
}

impl Tool {
    /// Returns the schema of the arguments, which are an object.
    fn arguments_schema(&self) -> Value {
        let mut arguments = self.parameters.clone();
        if let Value::Object(schema) = &mut arguments {
            schema.entry("type").or_insert_with(|| "object".into());
        }
        arguments
    }

    /// Returns the schema of a call, which will be at the JSON pointer `pointer` of the whole schema.
    fn call_schema(&self, pointer: &str) -> Value {
        let mut arguments = self.arguments_schema();
        move_references(&mut arguments, &format!("{pointer}/properties/arguments"));
        json!({
            "type": "object",
            "properties": {"name": {"const": self.name}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": false,
        })
    }

    /// Converts the tool to OpenAI's form, which templates expect.
    fn to_json(&self) -> Value {
        let mut function = Map::from_iter([("name".to_owned(), self.name.as_str().into())]);
        if let Some(description) = &self.description {
            function.insert("description".into(), description.as_str().into());
        }
        function.insert("parameters".into(), self.parameters.clone());
        json!({"type": "function", "function": function})
    }
}

/// Rewrites each `$ref` that is relative to the schema's root, because the schema is now at `pointer`. The JSON
/// parser's depth limit bounds the recursion.
fn move_references(schema: &mut Value, pointer: &str) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(target) if key == "$ref" => {
                        if let Some(rest) =
                            target.strip_prefix('#').filter(|rest| rest.is_empty() || rest.starts_with('/'))
                        {
                            *target = format!("{pointer}{rest}");
                        }
                    }
                    // These members contain values, not schemas.
                    _ if matches!(key.as_str(), "const" | "enum" | "default" | "examples") => {}
                    _ => move_references(value, pointer),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| move_references(value, pointer)),
        _ => {}
    }
}

/// Returns the schema of a tool without arguments.
pub fn no_parameters() -> Value {
    json!({"type": "object", "properties": {}})
}
