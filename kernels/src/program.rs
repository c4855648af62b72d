//! What one step of a model does: recorded once as a list of operations, lowered to instructions over static memory.
//!
//! A [`ProgramBuilder`] is told each operation with its operands, as the model's Python definition runs once against
//! it. [`ProgramBuilder::build`] drops what nothing needs, lets work on rows that do not sample end as early as
//! possible, quantises each value once for all products that read it, joins products that share their input, works in
//! place where a value ends, packs the weights and lays out all memory ([`lower`], [`memory`]).

mod graph;
mod instruction;
mod lower;
#[doc(hidden)]
pub mod memory;
mod weights;

pub use graph::{Op, ProgramBuilder, ValueId, WeightId};
pub use instruction::{Buffer, BufferKind, Instruction, Kernel, LinearSource, Program, RowSet, View};
pub(crate) use weights::{Entry, EntryKind, ImageTable, WeightImage};

use crate::kv_pool::{KvGeometry, KvPoolError};
use crate::pack::PackError;

/// Sizes that every step keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramConfig {
    /// Most tokens of one step.
    pub max_step_tokens: usize,
    /// Most chunks of one step, thereby most rows that sample.
    pub max_step_sequences: usize,
    /// Blocks of the KV pool.
    pub num_blocks: usize,
    /// Sizes of the KV pool.
    pub geometry: KvGeometry,
}

impl ProgramConfig {
    /// Largest `max_step_tokens` and `max_step_sequences`.
    pub const MAX_LIMIT: usize = 1 << 20;

    /// Names the first size that cannot be.
    pub fn check(&self) -> Result<(), ProgramError> {
        for (name, value) in
            [("max_step_tokens", self.max_step_tokens), ("max_step_sequences", self.max_step_sequences)]
        {
            if value == 0 || value > Self::MAX_LIMIT {
                return Err(ProgramError::Limit { name, value, most: Self::MAX_LIMIT });
            }
        }
        Ok(self.geometry.check()?)
    }
}

/// Why a program cannot be recorded or built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A limit of the step is out of range.
    #[error("`{name}` is {value}, expected 1 to {most}")]
    Limit {
        /// Name of the parameter.
        name: &'static str,
        value: usize,
        most: usize,
    },
    /// An operand is not the result of an earlier operation.
    #[error("`{op}`: there is no value {value}")]
    UnknownValue { op: &'static str, value: usize },
    /// A weight was not given.
    #[error("`{op}`: there is no weight {weight}")]
    UnknownWeight { op: &'static str, weight: usize },
    /// Sizes do not fit.
    #[error("`{op}`: {what} is {actual}, expected {expected}")]
    Shape { op: &'static str, what: &'static str, actual: String, expected: String },
    /// The list of operations is not a model's step.
    #[error("the program {what}")]
    Structure {
        /// What is wrong with it.
        what: String,
    },
    /// A weight's bytes are not what its format and shape say.
    #[error("weight {weight}: {source}")]
    Weight {
        /// Id of the weight.
        weight: usize,
        /// What is wrong with it.
        source: PackError,
    },
    /// The KV pool cannot be made.
    #[error(transparent)]
    KvPool(#[from] KvPoolError),
    /// The working memory cannot be mapped.
    #[error(
        "cannot map {bytes} bytes of working memory: {source}; hint: lower the number of tokens per step"
    )]
    Map {
        /// Bytes asked for.
        bytes: usize,
        source: std::io::Error,
    },
    /// The system refuses a thread.
    #[error("cannot start {threads} threads: {source}")]
    Threads { threads: usize, source: std::io::Error },
    /// The forced instruction set is not there.
    #[error(transparent)]
    Isa(#[from] crate::isa::IsaError),
}
