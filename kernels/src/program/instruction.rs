//! What a program is made of: instructions over buffers of static memory.

use super::ProgramConfig;
use super::weights::WeightImage;
use crate::kv_pool::{KeyMean, KeyTurns, WindowLimits};
use crate::ops::attention::Window;
use crate::ops::rope::RopeFrequencies;
use crate::pack::PackedWeight;

/// Which rows a buffer or an instruction has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSet {
    /// All tokens of the step, T.
    Tokens,
    /// The rows that sample, S.
    Samples,
}

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// f32 rows of this width.
    Float { width: usize },
    /// Rows quantised for products.
    Quantized { width: usize },
}

/// A piece of the working memory.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub kind: BufferKind,
    pub rows: RowSet,
    /// First element in the working memory of its kind: f32 or bytes.
    pub offset: usize,
    /// Elements for the most rows.
    pub num_elements: usize,
}

/// Columns `column..column + width` of a float buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Index of the buffer.
    pub buffer: usize,
    pub column: usize,
    pub width: usize,
}

/// Where a product reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearSource {
    /// f32 rows.
    Float(View),
    Quantized(usize),
}

/// One operation on buffers. Weights, vectors and frequencies are indices into the [`Program`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "operands of the operations that `crate::ops` and `crate::linear` define")]
pub enum Kernel {
    Embedding {
        weight: usize,
        out: View,
    },
    RopeTable {
        frequencies: usize,
        out: View,
    },
    /// The rows that sample, from a buffer of all tokens.
    Gather {
        x: View,
        out: View,
    },
    Copy {
        x: View,
        out: View,
    },
    RmsNorm {
        x: View,
        weight: usize,
        eps: f32,
        out: View,
    },
    HeadRmsNorm {
        x: View,
        weight: usize,
        eps: f32,
    },
    Quantize {
        x: View,
        out: usize,
    },
    Linear {
        x: LinearSource,
        weight: usize,
        bias: Option<usize>,
        out: View,
    },
    Rope {
        x: View,
        table: View,
        head_size: usize,
    },
    WriteKv {
        layer: usize,
        key: View,
        value: View,
    },
    Attention {
        layer: usize,
        query: View,
        scale: f32,
        soft_cap: Option<f32>,
        /// Index into the program's windows.
        window: usize,
        out: View,
        counter: usize,
    },
    SiluMul {
        gate: View,
        up: View,
    },
    GeluMul {
        gate: View,
        up: View,
    },
    Add {
        x: View,
        y: View,
    },
    Scale {
        x: View,
        factor: f32,
    },
    SoftCap {
        x: View,
        cap: f32,
    },
}

impl Kernel {
    /// For people: what it does.
    pub fn name(&self) -> &'static str {
        match self {
            Kernel::Embedding { .. } => "embedding",
            Kernel::RopeTable { .. } => "rope table",
            Kernel::Gather { .. } => "gather",
            Kernel::Copy { .. } => "copy",
            Kernel::RmsNorm { .. } => "norm",
            Kernel::HeadRmsNorm { .. } => "head norm",
            Kernel::Quantize { .. } => "quantise",
            Kernel::Linear { .. } => "linear",
            Kernel::Rope { .. } => "rope",
            Kernel::WriteKv { .. } => "write kv",
            Kernel::Attention { .. } => "attention",
            Kernel::SiluMul { .. } => "silu mul",
            Kernel::GeluMul { .. } => "gelu mul",
            Kernel::Add { .. } => "add",
            Kernel::Scale { .. } => "scale",
            Kernel::SoftCap { .. } => "soft cap",
        }
    }

    /// True if row i of every operand is touched by the thread that owns row i alone, so that a following such kernel
    /// needs no barrier.
    pub(super) fn is_row_wise(&self) -> bool {
        !matches!(self, Kernel::Gather { .. } | Kernel::Linear { .. } | Kernel::Attention { .. })
    }

    /// Buffers that it reads or writes.
    pub(super) fn buffers(&self) -> Vec<usize> {
        match *self {
            Kernel::Embedding { out, .. } | Kernel::RopeTable { out, .. } => vec![out.buffer],
            Kernel::Gather { x, out } | Kernel::Copy { x, out } | Kernel::RmsNorm { x, out, .. } => {
                vec![x.buffer, out.buffer]
            }
            Kernel::HeadRmsNorm { x, .. } | Kernel::Scale { x, .. } | Kernel::SoftCap { x, .. } => {
                vec![x.buffer]
            }
            Kernel::Quantize { x, out, .. } => vec![x.buffer, out],
            Kernel::Linear { x: LinearSource::Float(x), out, .. } => vec![x.buffer, out.buffer],
            Kernel::Linear { x: LinearSource::Quantized(x), out, .. } => vec![x, out.buffer],
            Kernel::Rope { x, table, .. } => vec![x.buffer, table.buffer],
            Kernel::WriteKv { key, value, .. } => vec![key.buffer, value.buffer],
            Kernel::Attention { query, out, .. } => vec![query.buffer, out.buffer],
            Kernel::SiluMul { gate, up } | Kernel::GeluMul { gate, up } => vec![gate.buffer, up.buffer],
            Kernel::Add { x, y } => vec![x.buffer, y.buffer],
        }
    }
}

/// A kernel, its rows, and whether all threads must have finished what comes before.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    pub kernel: Kernel,
    pub rows: RowSet,
    /// Wait at the barrier first.
    pub barrier_before: bool,
}

/// Everything of a step that does not change from step to step.
#[derive(Debug)]
pub struct Program {
    pub config: ProgramConfig,
    pub instructions: Vec<Instruction>,
    /// Pieces of the working memory.
    pub buffers: Vec<Buffer>,
    /// f32 of the working memory.
    pub num_floats: usize,
    /// Bytes of the working memory for quantised rows.
    pub num_quantized_bytes: usize,
    /// Matrices in kernel layout.
    pub weights: Vec<PackedWeight>,
    /// Norm weights and biases.
    pub vectors: Vec<Vec<f32>>,
    /// What `weights` lie in and `vectors` were read from.
    pub(crate) image: WeightImage,
    pub frequencies: Vec<RopeFrequencies>,
    /// The windows of the attention kernels, each once.
    pub windows: Vec<Window>,
    /// The window of each layer.
    pub layer_windows: Vec<Window>,
    /// What the keys of each layer have in common.
    pub layer_means: Vec<KeyMean>,
    /// Blocks that may have K and V of layers with a window at a time; None: all, in one piece with the others.
    pub num_window_parts: Option<usize>,
    /// The result of a step.
    pub logits: View,
    /// Rows of the output head.
    pub vocab_size: usize,
    /// Rows of the embedding: token ids are below it.
    pub num_embeddings: usize,
    /// H / G.
    pub heads_per_kv_head: usize,
    /// Number of attention kernels.
    pub num_attentions: usize,
}

impl Program {
    /// How the means of keys turn, for sequences of up to `num_blocks` blocks.
    pub(crate) fn key_turns(&self, num_blocks: usize) -> KeyTurns {
        KeyTurns::new(&self.layer_means, &self.frequencies, self.config.geometry.block_size, num_blocks)
    }

    /// Bytes of weights held in memory.
    pub fn weight_bytes(&self) -> usize {
        let vectors: usize = self.vectors.iter().map(|vector| size_of_val(&vector[..])).sum();
        vectors + self.weights.iter().map(PackedWeight::num_bytes).sum::<usize>()
    }

    /// How the KV pool keeps layers with a window apart; None if it does not.
    pub(crate) fn window_limits(&self) -> Option<WindowLimits> {
        let num_parts = self.num_window_parts?;
        let is_windowed: Vec<bool> =
            self.layer_windows.iter().map(|window| *window != Window::NONE).collect();
        is_windowed.contains(&true).then_some(WindowLimits { is_windowed, num_parts })
    }

    /// The largest window of a layer that has one.
    pub(crate) fn largest_window(&self) -> Option<Window> {
        self.layer_windows.iter().copied().filter(|window| *window != Window::NONE).max()
    }
}
