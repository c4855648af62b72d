//! Structured output: a grammar is compiled once, and then says before each token which ones may follow. No clock, no
//! network, no async: the router calls it from a thread of its own, as compiling and masks take from microseconds to
//! tens of milliseconds.
//!
//! JSON and Lark have a parser, `llguidance` (Earley over derivatives of regular expressions,
//! <https://github.com/guidance-ai/llguidance>), whose state is each sequence's own. Regular expressions and choices
//! have a table that all sequences share, by `regex-automata`; those that need too many states have the parser.
//! What is here beside them: the vocabulary they walk, limits, keywords refused by name, and what a sequence needs.
//!
//! ```no_run
//! use std::sync::Arc;
//! use trunkline_grammar::{Forcing, Grammar, GrammarCompiler, GrammarLimits, Next};
//! use trunkline_reply::ReasoningMarks;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = trunkline_text::ModelText::load(std::path::Path::new("model.gguf"))?;
//! let compiler = GrammarCompiler::new(
//!     &model.tokenizer, &model.end_token_ids, ReasoningMarks::Think, GrammarLimits::default(),
//! )?;
//! let mut constraint = compiler.compile(&Grammar::Choices(vec!["yes".into(), "no".into()]))?;
//! let allowed = constraint.allowed(Forcing::Allow)?;
//! if let Next::Mask(mask) = allowed.next {
//!     let token_id = mask.iter().next().unwrap(); // sampled under the mask
//!     constraint.accept(token_id)?;
//! }
//! # Ok(()) }
//! ```

mod automaton;
mod classes;
mod compiler;
mod constraint;
mod error;
mod expression;
mod finite;
mod form;
mod in_time;
mod keywords;
mod limits;
mod mask;
mod names;
mod numbers;
mod patterns;
mod place;
mod reading;
mod reasoning;
mod refusal;
mod schema;
mod seen;
mod subschemas;
mod vocabulary;

pub use compiler::{Grammar, GrammarCompiler};
pub use constraint::{Allowed, Constraint, Forcing, MAX_FORCED_TOKENS, Next};
pub use error::GrammarError;
pub use keywords::{FORMATS, IGNORED_KEYWORDS, KEYWORDS, REFUSED_KEYWORDS};
pub use limits::GrammarLimits;
pub use mask::TokenMask;
pub use reasoning::Reasoning;
