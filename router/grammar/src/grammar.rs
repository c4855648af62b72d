//! The rules that an output can follow, as clients give them.

use crate::lark::ebnf::is_ebnf;
use crate::lark::structural_tag::StructuralTag;
use crate::schema::strictness::JsonSchema;

/// The rule that an output must follow.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// JSON text that is any object.
    JsonObject,
    /// JSON that is valid under this schema, by the draft that its `$schema` names or else by 2020-12.
    JsonSchema(JsonSchema),
    /// Text that matches a regular expression as a whole. The syntax is that of Rust's `regex`, without look-around.
    Regex(String),
    Choices(Vec<String>),
    /// A grammar in `llguidance`'s variant of Lark, or in the EBNF of XGrammar and llama.cpp (GBNF).
    Lark(String),
    /// Text with parts between tags that follow grammars.
    StructuralTag(StructuralTag),
    /// A call in the harmony format: the header of one of these functions, then arguments under its schema.
    Call(Vec<(String, JsonSchema)>),
    /// Either a reply under another grammar, or calls.
    WithCalls {
        reply: Box<Grammar>,
        calls: Calls,
    },
}

/// Calls that may take the place of a reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    /// The texts that begin a call, and the grammar of what follows each. Control tokens may be part of a text that
    /// begins with one.
    pub forms: Vec<(String, Grammar)>,
    /// The text after a call. A reply may end without it if it is a control token.
    pub closing_mark: Option<&'static str>,
    /// True if another call may follow the closing mark.
    pub may_repeat: bool,
}

impl Grammar {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::JsonObject | Self::JsonSchema(_) | Self::Call(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Choices(_) => "list of choices",
            Self::Lark(text) if is_ebnf(text) => "EBNF grammar",
            Self::Lark(_) => "Lark grammar",
            Self::StructuralTag(_) => "structural tag",
            Self::WithCalls { reply, .. } => reply.kind(),
        }
    }

    /// Returns the number of bytes of the texts that recursion may follow.
    pub(crate) fn num_bytes(&self) -> usize {
        let schemas = self.schemas().into_iter().map(|schema| schema.schema.to_string().len()).sum();
        match self {
            Self::Regex(text) | Self::Lark(text) => text.len(),
            Self::StructuralTag(tag) => tag.text().len() + schemas,
            Self::WithCalls { reply, calls } => {
                reply.num_bytes() + calls.forms.iter().map(|(_, body)| body.num_bytes()).sum::<usize>()
            }
            Self::JsonSchema(_) | Self::Call(_) => schemas,
            Self::JsonObject | Self::Choices(_) => 0,
        }
    }

    /// Returns the schemas of the grammar.
    pub(crate) fn schemas(&self) -> Vec<&JsonSchema> {
        match self {
            Self::JsonSchema(schema) => vec![schema],
            Self::Call(functions) => functions.iter().map(|(_, schema)| schema).collect(),
            Self::StructuralTag(tag) => tag.schemas(),
            Self::WithCalls { reply, calls } => {
                let mut schemas = reply.schemas();
                schemas.extend(calls.forms.iter().flat_map(|(_, body)| body.schemas()));
                schemas
            }
            Self::JsonObject | Self::Regex(_) | Self::Choices(_) | Self::Lark(_) => Vec::new(),
        }
    }
}
