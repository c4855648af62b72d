//! Grammars of requests: compiled on the blocking pool, a few at a time.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::Semaphore;
use trunkline_grammar::{Constraint, Grammar, GrammarCompiler, GrammarError, GrammarLimits};

use crate::app::Model;
use crate::error::ApiError;
use crate::limits::{GRAMMAR_TIMEOUT, MAX_COMPILING_GRAMMARS};

/// A grammar as a client sent it, or compiled.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestGrammar {
    /// As sent.
    Asked {
        /// The field that asks for it, in the dialect's words.
        field: &'static str,
        /// It.
        grammar: Grammar,
    },
    /// Ready to be used.
    Compiled(CompiledGrammar),
}

/// The beginning of an output under a grammar. Cheap to clone.
#[derive(Clone)]
pub struct CompiledGrammar(Arc<Mutex<Constraint>>);

impl CompiledGrammar {
    /// A constraint for one sequence.
    pub fn constraint(&self) -> Constraint {
        // Forking changes nothing, so a panic in it leaves the state whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fork()
    }
}

impl fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompiledGrammar")
    }
}

/// The same one, not one that says the same.
impl PartialEq for CompiledGrammar {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Compiles the grammars of all requests.
pub struct Grammars {
    model: Arc<Model>,
    limits: GrammarLimits,
    /// Made for the first request that needs it: the vocabulary's trie takes tens of milliseconds.
    compiler: OnceLock<Result<GrammarCompiler, GrammarError>>,
    /// One permit per grammar being compiled.
    compiling: Arc<Semaphore>,
}

impl Grammars {
    /// For a model.
    pub fn new(model: Arc<Model>, limits: GrammarLimits) -> Self {
        let compiling = Arc::new(Semaphore::new(MAX_COMPILING_GRAMMARS));
        Self { model, limits, compiler: OnceLock::new(), compiling }
    }

    /// Compiles what a client asked for; waits for its turn a while, others go on meanwhile.
    pub async fn compile(
        self: &Arc<Self>,
        field: &'static str,
        grammar: Grammar,
    ) -> Result<CompiledGrammar, ApiError> {
        let turn = tokio::time::timeout(GRAMMAR_TIMEOUT, self.compiling.clone().acquire_owned());
        let permit = match turn.await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_closed)) => return Err(ApiError::Bug { request_id: crate::random::id() }),
            Err(_elapsed) => {
                let error = GrammarError::Busy { count: MAX_COMPILING_GRAMMARS };
                return Err(ApiError::Grammar { field, error });
            }
        };
        let grammars = self.clone();
        let compiled = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            grammars.compiler()?.compile(&grammar)
        });
        match compiled.await {
            Ok(Ok(constraint)) => Ok(CompiledGrammar(Arc::new(Mutex::new(constraint)))),
            Ok(Err(error)) => Err(ApiError::Grammar { field, error }),
            // A panic in the parser is a defect, as one in a handler.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    fn compiler(&self) -> Result<&GrammarCompiler, GrammarError> {
        let text = &self.model.text;
        let make = || GrammarCompiler::new(&text.tokenizer, &text.end_token_ids, self.limits);
        self.compiler.get_or_init(make).as_ref().map_err(Clone::clone)
    }
}
