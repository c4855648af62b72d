//! Programs: one step of a model, recorded as a list of operations and lowered to instructions over static memory.
//!
//! The model's Python definition runs once against a [`ProgramBuilder`], which records each operation with its
//! operands. [`ProgramBuilder::build`] then
//!
//! - removes dead operations, and drops the rows that are not sampled as early as possible;
//! - quantises each value once for all products that read it, and joins products that share their input;
//! - works in place at the last use of a value;
//! - packs the weights and lays out all memory ([`lower`], [`memory`]).

mod gate;
mod graph;
mod instruction;
mod kv_stages;
mod lower;
pub mod memory;
mod raw_weight;
mod rows;
mod uses;
mod weights;

use std::path::PathBuf;

pub use gate::StreamSizes;
pub(crate) use gate::WeightGate;
pub use graph::{Experts, ProgramBuilder, RecurOperands, ValueId, WeightId};
pub use instruction::{
    AdaptedProduct, AdaptedWeight, AttentionKernel, Buffer, BufferKind, ExpertsKernel, HeadLinearKernel,
    Instruction, Kernel, LinearSource, PooledOutput, Program, RecurKernel, RowSet, ShortConvKernel, View,
};
pub(crate) use kv_stages::KvStages;
pub use rows::{PooledRows, RowIndex};
pub(crate) use weights::{Entry, EntryKind, ImageTable, MatrixUse, Packing, WeightImage};

use crate::kv_pool::{KvGeometry, KvPoolError};
use crate::pack::PackError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramConfig {
    pub max_step_tokens: usize,
    /// The most chunks in one step, and the most rows whose logits are computed.
    pub max_step_sequences: usize,
    pub num_blocks: usize,
    pub geometry: KvGeometry,
}

impl ProgramConfig {
    /// The largest allowed `max_step_tokens` and `max_step_sequences`.
    const MAX_LIMIT: usize = 1 << 20;

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

/// The memory of a KV pool, and the place of what exceeds it.
#[derive(Clone, Debug)]
pub struct SpillOptions {
    pub memory_bytes: usize,
    /// The folder of the file, which has no name there.
    pub folder: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    #[error("`{name}` is {value}, expected 1 to {most}")]
    Limit { name: &'static str, value: usize, most: usize },
    #[error("`{op}`: there is no value {value}")]
    UnknownValue { op: &'static str, value: usize },
    #[error("`{op}`: there is no weight {weight}")]
    UnknownWeight { op: &'static str, weight: usize },
    #[error("`{op}`: {what} is {actual}, expected {expected}")]
    Shape { op: &'static str, what: &'static str, actual: String, expected: String },
    /// The list of operations is not a valid step.
    #[error("the program {what}")]
    Structure { what: String },
    /// The owner of a weight did not produce its bytes, and knows the reason.
    #[error("weight {weight} cannot be read")]
    Unread { weight: usize },
    #[error("weight {weight}: {source}")]
    Weight { weight: usize, source: PackError },
    #[error(transparent)]
    KvPool(#[from] KvPoolError),
    /// The KV pool cannot have a file, or not with so little memory.
    #[error(transparent)]
    Spill(Box<dyn std::error::Error + Send + Sync>),
    /// The working memory cannot be mapped.
    #[error(
        "cannot map {bytes} bytes of working memory: {source}; hint: lower the number of tokens per step"
    )]
    Map { bytes: usize, source: std::io::Error },
    #[error("cannot start {threads} threads: {source}")]
    Threads { threads: usize, source: std::io::Error },
    /// The cache of packed weights cannot hold, or the memory not stream, what the program needs.
    #[error(transparent)]
    Image(Box<dyn std::error::Error + Send + Sync>),
    /// Weights that are streamed cannot be read.
    #[error("the model's weights cannot be read: {what}")]
    Stream { what: String },
    #[error(transparent)]
    Isa(#[from] crate::isa::IsaError),
}
