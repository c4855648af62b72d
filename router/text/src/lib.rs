//! Converts text to token ids and back, by the tokenizer and the chat template in a model's files.
//!
//! The crate also decodes incrementally and finds stop strings. It has no clock, no network and no async code,
//! and uses no other crate of ours. Begin with [`ModelText`], then [`Tokenizer`] and [`ChatTemplates`].
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
mod framing;
mod gguf;
mod infill;
mod model_files;
mod prompt;
mod question;
mod stop;
mod tokenizer;
mod utf8_stream;

/// Parts that can be used by themselves: readers of each kind of vocabulary, and steps on the way from messages to a
/// prompt and from bytes to text.
pub mod parts {
    pub use tokenizers::AddedToken;

    pub use crate::chat_template::python::without_generation_tags;
    pub use crate::chat_template::time::strftime;
    pub use crate::prompt::{MARKS, Marker, Marks};
    pub use crate::tokenizer::bytes::{byte_of_char, byte_token, char_of_byte};
    pub use crate::tokenizer::from_gguf::tokenizer_from_gguf;
    pub use crate::tokenizer::from_json::tokenizer_from_json;
    pub use crate::tokenizer::sentence_piece::{SpaceRules, tokenizer_from_sentence_piece};
    pub use crate::tokenizer::tiktoken::tokenizer_from_tiktoken;
    pub use crate::utf8_stream::{MAX_INCOMPLETE_BYTES, Utf8Stream};
}

pub use chat_template::{ChatMessage, ChatRequest, ChatTemplates, MAX_RENDERED_BYTES};
pub use detokenize::Detokenizer;
pub use error::{ErrorClass, GgufError, TextError};
pub use framing::{Framed, Framing, PairFraming};
pub use gguf::{GgufArray, GgufMetadata, GgufValue};
pub use infill::{Infill, InfillFile};
pub use model_files::{GenerationDefaults, InfillTokens, ModelText, SpecialToken, SpecialTokens};
pub use prompt::ChatPrompt;
pub use question::Question;
pub use stop::{StopMatcher, StopStep, StopText};
pub use tokenizer::{DecodeSpecial, EncodeSpecial, EncodedToken, TextStart, Tokenizer};
