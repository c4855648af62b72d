//! The parser of one sequence, and the memory of all parsers.
//!
//! A parser creates the states of its lexer while its sequence is generated, up to a hundred megabytes of them. All
//! parsers of a compiler together may have `all_lexers_bytes`. Beyond that a sequence fails when it asks for a mask,
//! unless its own lexer is small, so that one with a simple grammar never fails because of others.

use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;
use llguidance::{TokenParser, panic_utils};

use crate::limits::GrammarLimits;

/// The memory of the lexers of all sequences.
#[derive(Debug)]
pub(crate) struct LexerMemory {
    num_bytes: AtomicUsize,
    limits: GrammarLimits,
}

impl LexerMemory {
    pub(crate) fn new(limits: GrammarLimits) -> Self {
        Self { num_bytes: AtomicUsize::new(0), limits }
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.num_bytes.load(Ordering::Relaxed)
    }
}

/// The memory of one lexer. Dropping it returns the memory.
struct LexerShare {
    memory: Arc<LexerMemory>,
    num_bytes: usize,
}

impl LexerShare {
    /// Returns the share of a copy.
    fn fork(&self) -> Self {
        let mut fork = Self { memory: self.memory.clone(), num_bytes: 0 };
        fork.set(self.num_bytes);
        fork
    }

    fn set(&mut self, num_bytes: usize) {
        self.memory.num_bytes.fetch_add(num_bytes, Ordering::Relaxed);
        self.memory.num_bytes.fetch_sub(self.num_bytes, Ordering::Relaxed);
        self.num_bytes = num_bytes;
    }

    /// Sets the size of the lexer, and checks whether it may be so large.
    fn grow(&mut self, num_bytes: usize) -> Result<(), String> {
        self.set(num_bytes);
        let GrammarLimits { small_lexer_bytes, all_lexers_bytes, .. } = self.memory.limits;
        if num_bytes <= small_lexer_bytes || self.memory.num_bytes() <= all_lexers_bytes {
            return Ok(());
        }
        Err(format!(
            "the lexer has {} MiB, and those of all outputs together more than {} MiB, the limit",
            num_bytes >> 20,
            all_lexers_bytes >> 20
        ))
    }
}

impl Drop for LexerShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A parser that ends with the first error.
pub(crate) struct Parser {
    parser: TokenParser,
    error: Option<String>,
    share: LexerShare,
}

impl Parser {
    pub(crate) fn new(mut parser: TokenParser, memory: Arc<LexerMemory>) -> Self {
        if parser.is_fresh() {
            parser.start_without_prompt();
        }
        Self { parser, error: None, share: LexerShare { memory, num_bytes: 0 } }
    }

    /// Returns a copy that shares nothing with this one.
    pub(crate) fn fork(&self) -> Self {
        Self { parser: self.parser.deep_clone(), error: self.error.clone(), share: self.share.fork() }
    }

    /// Returns to the beginning.
    pub(crate) fn reset(&mut self) -> Result<(), String> {
        self.run(TokenParser::reset)
    }

    pub(crate) fn mask(&mut self) -> Result<SimpleVob, String> {
        let mask = self.run(TokenParser::compute_mask)?;
        let num_bytes = self.parser.parser.lexer_stats().num_bytes;
        self.share.grow(num_bytes).inspect_err(|error| self.error = Some(error.clone()))?;
        Ok(mask)
    }

    pub(crate) fn accept(&mut self, token_id: u32) -> Result<(), String> {
        self.run(|parser| {
            parser.consume_token(token_id)?;
            parser.check_stop().map(|_| ())
        })
    }

    /// Returns true if the text is complete, so that no token may follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.error.is_none() && self.parser.stop_reason() != StopReason::NotStopped
    }

    /// Runs `work` unless an error occurred before. A panic is an error.
    fn run<T, E: Display>(
        &mut self,
        work: impl FnOnce(&mut TokenParser) -> Result<T, E>,
    ) -> Result<T, String> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let outcome = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(work(&mut self.parser))));
        let error = match outcome {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => self.parser.augment_err(error),
            Err(panic) => self.parser.augment_err(panic),
        };
        self.error = Some(error.clone());
        Err(error)
    }
}
