//! Compiles the grammars of requests on the blocking pool, a few at a time, and caches them for each tenant.

pub mod cache;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::time::Instant;
use trunkline_grammar::{
    Avoided, Constraint, Grammar, GrammarCompiler, GrammarError, GrammarLimits, Reasoning,
};
use trunkline_reply::ReasoningStart;

use crate::grammars::cache::{GrammarCache, GrammarKey};
use crate::model::Model;
use trunkline_base::error::ApiError;
use trunkline_base::limits::{GRAMMAR_TIMEOUT, MAX_COMPILING_GRAMMARS, MAX_COMPILING_OF_TENANT};
use trunkline_base::metrics::ModelMetrics;
use trunkline_base::tenants::Caller;
use trunkline_base::tenants::permits::TenantPermits;

/// A grammar as a client sent it.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedGrammar {
    /// The dialect's name of the field that asks for the grammar.
    pub field: &'static str,
    pub grammar: Grammar,
}

impl AskedGrammar {
    /// Adds the grammar's key in the cache. Takes time in proportion to the grammar.
    pub fn keyed(self, caller: &Caller) -> KeyedGrammar {
        KeyedGrammar { key: GrammarKey::new(caller.name(), &self.grammar), asked: self }
    }
}

/// A grammar that a caller asks for, with its key in the cache.
#[derive(Debug)]
pub struct KeyedGrammar {
    key: GrammarKey,
    asked: AskedGrammar,
}

/// The most tokens of reasoning, as a client sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskedBudget {
    /// The dialect's name of the field that asks for it.
    pub field: &'static str,
    pub num_tokens: u32,
}

/// The beginning of an output under a grammar. Cheap to clone.
#[derive(Clone)]
pub struct CompiledGrammar {
    beginning: Arc<Mutex<Constraint>>,
    /// The reasoning that may precede the grammar.
    reasoning: Option<Reasoning>,
    /// The most tokens of that reasoning.
    budget: Option<u32>,
    /// The texts that the output avoids besides what the grammar forbids.
    avoided: Option<Arc<Avoided>>,
}

impl CompiledGrammar {
    fn new(constraint: Constraint) -> Self {
        Self { beginning: Arc::new(Mutex::new(constraint)), reasoning: None, budget: None, avoided: None }
    }

    /// Returns the keywords that were left out of the grammar's schemas.
    pub fn relaxed(&self) -> Vec<String> {
        // Forking changes nothing, so a panic in it leaves the state whole.
        let beginning = self.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        beginning.relaxed().map(str::to_owned).collect()
    }

    /// Returns the same grammar for a reply that may reason before it.
    pub fn after(self, reasoning: Option<ReasoningStart>, budget: Option<AskedBudget>) -> Self {
        let budget = budget.map(|budget| budget.num_tokens);
        Self { reasoning: reasoning.map(begins), budget, ..self }
    }

    /// Returns the same grammar for an output that also avoids texts.
    pub fn avoiding(self, avoided: Arc<Avoided>) -> Self {
        Self { avoided: Some(avoided), ..self }
    }

    /// Returns a constraint for one sequence with this prompt.
    pub fn constraint(&self, prompt_token_ids: &[u32]) -> Constraint {
        // Forking changes nothing, so a panic in it leaves the state whole.
        let mut constraint = self.beginning.lock().unwrap_or_else(PoisonError::into_inner).fork();
        if let Some(reasoning) = self.reasoning {
            constraint.begin_after(reasoning, self.budget);
        }
        if let Some(avoided) = &self.avoided {
            constraint.avoid(avoided.clone(), prompt_token_ids);
        }
        constraint
    }
}

impl fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompiledGrammar")
    }
}

/// Compares identities: two compilations of one grammar differ.
impl PartialEq for CompiledGrammar {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.beginning, &other.beginning)
            && (self.reasoning, self.budget, &self.avoided) == (other.reasoning, other.budget, &other.avoided)
    }
}

fn begins(start: ReasoningStart) -> Reasoning {
    match start {
        ReasoningStart::InPrompt => Reasoning::Begun,
        ReasoningStart::InReply => Reasoning::Possible,
    }
}

pub struct Grammars {
    model: Arc<Model>,
    limits: GrammarLimits,
    /// Created by the first request that needs it, because building the vocabulary's trie takes tens of milliseconds.
    compiler: OnceLock<Result<GrammarCompiler, GrammarError>>,
    /// The permits to compile, which return when the compiling threads end.
    permits: TenantPermits,
    cache: Mutex<GrammarCache<CompiledGrammar>>,
    metrics: Arc<ModelMetrics>,
}

impl Grammars {
    pub fn new(model: Arc<Model>, limits: GrammarLimits, metrics: Arc<ModelMetrics>) -> Self {
        let permits = TenantPermits::new(MAX_COMPILING_GRAMMARS, MAX_COMPILING_OF_TENANT);
        let cache = Mutex::new(GrammarCache::default());
        Self { model, limits, compiler: OnceLock::new(), permits, cache, metrics }
    }

    /// Returns a grammar from the caller's cached ones, or compiles it.
    pub async fn get(
        self: &Arc<Self>,
        caller: &Caller,
        KeyedGrammar { key, asked }: KeyedGrammar,
    ) -> Result<CompiledGrammar, ApiError> {
        // No panic can leave the cache half changed.
        if let Some(compiled) = self.cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            self.metrics.grammar_hits.inc();
            return Ok(compiled);
        }
        let compiled = self.compile(caller, asked).await?;
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).put(key, compiled.clone());
        Ok(compiled)
    }

    /// Returns what constrains a reply without a grammar whose reasoning has a budget.
    pub async fn budgeted(
        self: &Arc<Self>,
        asked: AskedBudget,
        start: ReasoningStart,
    ) -> Result<CompiledGrammar, ApiError> {
        self.uncompiled(asked.field, move |compiler| compiler.budgeted(begins(start), asked.num_tokens)).await
    }

    /// Returns the beginning of a reply without a grammar.
    pub async fn free(self: &Arc<Self>, field: &'static str) -> Result<CompiledGrammar, ApiError> {
        self.uncompiled(field, GrammarCompiler::free).await
    }

    /// Returns a constraint that needs no compiling.
    async fn uncompiled(
        self: &Arc<Self>,
        field: &'static str,
        make: impl FnOnce(&GrammarCompiler) -> Constraint + Send + 'static,
    ) -> Result<CompiledGrammar, ApiError> {
        let grammars = self.clone();
        let constraint = tokio::task::spawn_blocking(move || Ok(make(grammars.compiler()?)));
        match constraint.await {
            Ok(constraint) => {
                constraint.map(CompiledGrammar::new).map_err(|error| ApiError::Grammar { field, error })
            }
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Compiles a grammar on the blocking pool, after waiting for a permit.
    async fn compile(
        self: &Arc<Self>,
        caller: &Caller,
        AskedGrammar { field, grammar }: AskedGrammar,
    ) -> Result<CompiledGrammar, ApiError> {
        let refused = |error| ApiError::Grammar { field, error };
        let deadline = Instant::now() + GRAMMAR_TIMEOUT;
        let permit = self.permits.take(caller.name(), Some(deadline)).await;
        let permit = permit.map_err(|count| refused(GrammarError::Busy { count }))?;
        let grammars = self.clone();
        let compiled = tokio::task::spawn_blocking(move || {
            let begin = Instant::now();
            let compiled = grammars.compiler()?.compile_holding(&grammar, permit);
            grammars.metrics.grammar_compile_seconds.observe(begin.elapsed().as_secs_f64());
            compiled
        });
        match compiled.await {
            Ok(Ok(constraint)) => Ok(CompiledGrammar::new(constraint)),
            Ok(Err(error)) => Err(refused(error)),
            // A panic in the parser is handled like a panic in a handler.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    fn compiler(&self) -> Result<&GrammarCompiler, GrammarError> {
        let (text, marks) = (&self.model.text, self.model.reply.marks);
        let make = || GrammarCompiler::new(&text.tokenizer, &text.end_token_ids, marks, self.limits);
        self.compiler.get_or_init(make).as_ref().map_err(Clone::clone)
    }
}
