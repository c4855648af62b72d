//! Structured output: a grammar is compiled once, and then gives before each token the set of tokens that may follow.
//!
//! The crate has no clock, no network and no async code. The router calls it from threads of its own, because compiling
//! and masks take from microseconds to tens of milliseconds.
//!
//! JSON schemas and Lark grammars use the parser of `llguidance` (Earley over derivatives of regular expressions,
//! <https://github.com/guidance-ai/llguidance>), whose state belongs to one sequence. Regular expressions and lists of
//! choices become a table of `regex-automata` that all their sequences share, unless the table would be too large.
//! This crate adds the vocabulary that both walk, limits, checks that refuse unsupported keywords by name, and the
//! state of a sequence. It may use the contract and the crates `reply` and `text`. Begin with [`GrammarCompiler`].
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

mod avoided;
mod before_grammar;
mod budget;
mod compiler;
mod constraint;
mod dry;
mod error;
mod grammar;
mod grammar_state;
mod lark;
mod limits;
mod mask;
mod mask_cache;
mod parser;
mod reasoning;
mod regex;
mod schema;
mod timeout;
mod vocabulary;

pub use avoided::Avoided;
pub use compiler::GrammarCompiler;
pub use constraint::{Allowed, Constraint, Forcing, Next};
pub use dry::DryParams;
pub use error::GrammarError;
pub use grammar::{Calls, Grammar};
pub use lark::structural_tag::StructuralTag;
pub use limits::GrammarLimits;
pub use mask::TokenMask;
pub use reasoning::Reasoning;
pub use schema::keywords::{CONDITIONAL_KEYWORDS, FORMATS, IGNORED_KEYWORDS, KEYWORDS, REFUSED_KEYWORDS};
pub use schema::strictness::{JsonSchema, Strictness};
