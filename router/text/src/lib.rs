//! Text on its way to token ids and back: what a model's own files say about its tokenizer and chat template, encoding,
//! incremental decoding and stop strings. No clock, no network, no async: the router calls it.
//!
//! ```no_run
//! use trunkline_text::{DecodeSpecial, Detokenizer, ModelText, TextStart};
//! # fn main() -> Result<(), trunkline_text::TextError> {
//! let model = ModelText::load(std::path::Path::new("model.gguf"))?;
//! let prompt = model.encode_prompt("Once upon a time")?;
//! let mut detokenizer = Detokenizer::new(model.tokenizer.clone(), DecodeSpecial::Skip, TextStart::Continuation);
//! let text: String = prompt.iter().map(|&id| detokenizer.push(id)).collect();
//! # Ok(()) }
//! ```

mod chat_template;
mod detokenize;
mod error;
mod gguf;
mod model_files;
mod prompt;
mod stop;
mod tokenizer;

/// Parts that only the tests in `tests/text` reach. They are public so that the library is not compiled again for tests
/// of its own.
#[doc(hidden)]
pub mod internals {
    pub use crate::chat_template::python::without_generation_tags;
    pub use crate::chat_template::time::strftime;
    pub use crate::detokenize::{MAX_INCOMPLETE_BYTES, Utf8Stream};
    pub use crate::prompt::{MARKS, Marker, Marks};
    pub use crate::tokenizer::bytes::{byte_of_char, byte_token, char_of_byte};
    pub use crate::tokenizer::{tokenizer_from_gguf, tokenizer_from_json};
}

pub use chat_template::{
    ChatMessage, ChatRequest, ChatTemplates, MAX_RENDERED_BYTES, TEMPLATE_FUEL, flatten_content,
};
pub use detokenize::{Detokenizer, TextStart};
pub use error::{ErrorClass, TextError};
pub use gguf::{GgufArray, GgufError, GgufMetadata, GgufValue};
pub use model_files::{GenerationDefaults, ModelText, SpecialToken, SpecialTokens};
pub use prompt::ChatPrompt;
pub use stop::{StopMatcher, StopStep, StopText};
pub use tokenizer::{DecodeSpecial, EncodeSpecial, EncodedToken, Tokenizer};
