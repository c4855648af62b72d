//! The served model as the router sees it: its tokenizer and templates, its name and the style of its replies.

mod reply_style;

use std::path::Path;

use trunkline_reply::ToolFormat;
use trunkline_text::{ModelText, TextError};

use trunkline_base::clock::unix_s;

pub use reply_style::{CallIds, Choice, ReplyStyle};

/// Names that clients of other servers send for the served model, whatever it is.
const MODEL_ALIASES: [&str; 3] = ["", "tgi", "dummy"];

/// The suffix that Ollama's clients put behind a name that has no other tag.
const LATEST: &str = ":latest";
/// Ollama's users write one of these before the name of a repository of the Hub.
const HUB_PREFIXES: [&str; 2] = ["hf.co/", "huggingface.co/"];

/// The most characters of an unknown name that an error repeats. A name may be as long as the body.
pub(crate) const MAX_SHOWN_CHARS: usize = 128;

/// The text side of the served model. Its weights belong to the shards.
pub struct Model {
    /// The tokenizer, the chat templates and the special tokens.
    pub text: ModelText,
    pub served_name: String,
    /// Other names by which clients call the model.
    pub aliases: Vec<String>,
    pub reply: ReplyStyle,
    /// The time at which this process loaded the model, in seconds since 1970.
    pub created_unix_s: u64,
}

impl Model {
    /// Reads the model's text files and derives the style of its replies from the chat template.
    pub fn load(path: &Path, served_name: String) -> Result<Self, TextError> {
        Self::load_with(path, served_name, None, Choice::Auto, Choice::Auto)
    }

    /// Reads the model's text files. The template in `chat_template` replaces the model's own, and `tools` and
    /// `reasoning` can override the style that the template shows.
    pub fn load_with(
        path: &Path,
        served_name: String,
        chat_template: Option<&Path>,
        tools: Choice<ToolFormat>,
        reasoning: Choice<()>,
    ) -> Result<Self, TextError> {
        let text = ModelText::load_with(path, chat_template)?;
        if let Some(problem) = &text.chat_template_problem {
            tracing::warn!(problem, "the model's chat template cannot be used; chats will be refused");
        }
        let reply = ReplyStyle::of_model(&text, tools, reasoning);
        Ok(Self { text, served_name, aliases: Vec::new(), reply, created_unix_s: unix_s() })
    }

    /// Returns true if clients call the model by this name.
    pub fn is_named(&self, name: &str) -> bool {
        let mut own = [&self.served_name].into_iter().chain(&self.aliases);
        MODEL_ALIASES.contains(&name) || own.any(|own| plain_name(own) == plain_name(name))
    }
}

/// Returns a name without the tag and the prefix that Ollama's clients may add.
pub(crate) fn plain_name(name: &str) -> &str {
    let name = name.strip_suffix(LATEST).unwrap_or(name);
    HUB_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}
