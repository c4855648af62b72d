//! Lowered programs: instructions over buffers in static memory.

use super::graph::WeightId;
use super::rows::{PooledRows, RowIndex};
use super::weights::WeightImage;
use super::{ProgramConfig, SpillOptions};
use crate::attention::Window;
use crate::kv_pool::{KeyMean, KeyTurns, WindowLimits};
use crate::ops::recurrence::Recurrence;
use crate::ops::rope::RopeFrequencies;
use crate::ops::route::Rule;
use crate::ops::silu_mul::SwigluClamp;
use crate::pack::PackedWeight;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSet {
    /// All T tokens of the step.
    Tokens,
    /// The S rows whose logits are computed.
    Samples,
    /// `num_used` rows for each token, one for each expert that it uses, sorted by expert.
    TokenRoutes { num_used: usize },
    /// Likewise, for each row whose logits are computed.
    SampleRoutes { num_used: usize },
}

impl RowSet {
    /// The rows of the experts that these rows use.
    pub(super) fn routes(self, num_used: usize) -> Self {
        match self {
            RowSet::Tokens => RowSet::TokenRoutes { num_used },
            RowSet::Samples => RowSet::SampleRoutes { num_used },
            RowSet::TokenRoutes { .. } | RowSet::SampleRoutes { .. } => {
                unreachable!("experts are not nested")
            }
        }
    }

    /// Computes the number of rows in a step.
    pub fn count(self, num_tokens: usize, num_samples: usize) -> usize {
        match self {
            RowSet::Tokens => num_tokens,
            RowSet::Samples => num_samples,
            RowSet::TokenRoutes { num_used } => num_used * num_tokens,
            RowSet::SampleRoutes { num_used } => num_used * num_samples,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// f32 rows of `width` elements.
    Float { width: usize },
    /// Quantised rows of `width` elements, for products.
    Quantized { width: usize },
}

/// A buffer in the working memory.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub kind: BufferKind,
    pub rows: RowSet,
    /// Offset in the working memory of this kind, in f32 elements or bytes.
    pub offset: usize,
    /// Number of elements with the most rows.
    pub num_elements: usize,
}

/// Columns `column..column + width` of a float buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub buffer: usize,
    pub column: usize,
    pub width: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearSource {
    Float(View),
    Rounded(View),
    Quantized(usize),
}

impl Buffer {
    /// The number of elements in a row.
    pub fn width(&self) -> usize {
        match self.kind {
            BufferKind::Float { width } | BufferKind::Quantized { width } => width,
        }
    }
}

impl LinearSource {
    fn buffer(self) -> usize {
        match self {
            LinearSource::Float(view) | LinearSource::Rounded(view) => view.buffer,
            LinearSource::Quantized(buffer) => buffer,
        }
    }
}

/// One operation on buffers. `crate::ops` and `crate::linear` define the operands. Weights, vectors and frequencies
/// are indices into the [`Program`]. `Gather` copies the sampled rows from a buffer of all tokens, and `Mean`
/// takes the mean over each sequence's rows. `Dispatch` sorts rows by the experts that they use, and `Combine` adds the
/// outputs of these up; `routes` has the results of `Route`. `Round` rounds each part of `width` elements by itself,
/// because the order of its pairs depends on where it begins. `LoraDown` and `LoraUp` are products with the matrices of
/// adapters, and touch only rows whose sequences have one; `product` is an index into [`Program::adapted`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    Embedding { weight: usize, index: RowIndex, out: View },
    RopeTable { frequencies: usize, out: View },
    Gather { x: View, out: View },
    Copy { x: View, out: View },
    RmsNorm { x: View, weight: usize, eps: f32, out: View },
    LayerNorm { x: View, weight: usize, bias: Option<usize>, eps: f32, out: View },
    HeadRmsNorm { x: View, weight: usize, eps: f32 },
    Quantize { x: View, out: usize },
    Round { x: View, width: usize, out: View },
    Linear { x: LinearSource, weight: usize, bias: Option<usize>, out: View },
    HeadLinear(HeadLinearKernel),
    LoraDown { x: View, product: usize, out: View },
    LoraUp { x: View, product: usize, out: View },
    JoinHeads { x: View, y: View, num_heads: usize, out: View },
    Rope { x: View, table: View, head_size: usize },
    WriteKv { layer: usize, key: View, value: Option<View> },
    Attention(AttentionKernel),
    SiluMul { gate: View, up: View },
    ClampedSwiglu { gate: View, up: View, clamp: SwigluClamp },
    GeluMul { gate: View, up: View },
    Gelu { x: View },
    GeluErf { x: View },
    ReluSquared { x: View },
    Add { x: View, y: View },
    Mul { x: View, y: View },
    Mean { x: View, out: View },
    Scale { x: View, factor: f32 },
    SoftCap { x: View, cap: f32 },
    SigmoidScale { x: View, gate: View },
    Route { logits: View, rule: Rule, bias: Option<usize>, out: View },
    Dispatch { x: LinearSource, routes: View, num_experts: usize, out: LinearSource },
    Experts(ExpertsKernel),
    Combine { x: View, routes: View, out: View },
    Silu { x: View },
    Sigmoid { x: View },
    HeadL2Norm { x: View, head_size: usize, eps: f32 },
    Softplus { x: View, bias: usize },
    Decay { x: View, log_rate: usize },
    ShortConv(ShortConvKernel),
    Recur(RecurKernel),
}

/// A product whose weights adapters may change.
#[derive(Clone, Debug)]
pub struct AdaptedProduct {
    pub num_inputs: usize,
    pub weights: Vec<AdaptedWeight>,
    /// The vector that the product adds.
    pub bias: Option<usize>,
}

/// One of the weights that a product joins.
#[derive(Clone, Copy, Debug)]
pub struct AdaptedWeight {
    pub weight: WeightId,
    /// The first column of its results in those of the product.
    pub column: usize,
    pub width: usize,
}

/// A convolution of each channel over the last positions of its sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConvKernel {
    pub x: View,
    pub weight: usize,
    pub bias: Option<usize>,
    /// The first element of its part of a block's state.
    pub state: usize,
    pub out: View,
}

/// The recurrence of each head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurKernel {
    pub rule: Recurrence,
    pub value: View,
    pub key: View,
    pub query: View,
    pub decay: View,
    pub strength: View,
    /// The vector of factors of values in the result.
    pub skip: Option<usize>,
    pub num_heads: usize,
    pub key_size: usize,
    /// The first element of its part of a block's state.
    pub state: usize,
    pub out: View,
}

/// The products of rows, sorted by expert, with their experts' matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsKernel {
    pub x: LinearSource,
    /// The matrix of the first expert. Those of the others follow.
    pub first_weight: usize,
    /// The vector of the biases of all experts, one behind the other.
    pub biases: Option<usize>,
    pub out: View,
}

/// The products of each head with a matrix of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadLinearKernel {
    /// The first head of the input. Those of the others follow: next to it in its rows, or in the next buffers if
    /// they are quantised.
    pub x: LinearSource,
    pub num_heads: usize,
    /// The matrix of the first head. Those of the others follow.
    pub first_weight: usize,
    /// The first head of the result. The others follow in its rows.
    pub out: View,
}

impl HeadLinearKernel {
    /// The input and the result of one head.
    pub fn head(&self, head: usize) -> (LinearSource, View) {
        let moved = |view: View| View { column: view.column + head * view.width, ..view };
        let x = match self.x {
            LinearSource::Float(view) => LinearSource::Float(moved(view)),
            LinearSource::Rounded(view) => LinearSource::Rounded(moved(view)),
            LinearSource::Quantized(buffer) => LinearSource::Quantized(buffer + head),
        };
        (x, moved(self.out))
    }
}

/// Causal attention of the rows of a query over their sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionKernel {
    pub layer: usize,
    pub query: View,
    pub scale: f32,
    pub soft_cap: Option<f32>,
    /// An index into [`Program::windows`].
    pub window: usize,
    /// The vector of sinks, one for each head.
    pub sinks: Option<usize>,
    pub out: View,
    /// Index among the kernels whose threads share a counter.
    pub counter: usize,
}

impl Kernel {
    /// A readable name for profiles.
    pub fn name(&self) -> &'static str {
        match self {
            Kernel::Embedding { .. } => "embedding",
            Kernel::RopeTable { .. } => "rope table",
            Kernel::Gather { .. } => "gather",
            Kernel::Copy { .. } => "copy",
            Kernel::RmsNorm { .. } | Kernel::LayerNorm { .. } => "norm",
            Kernel::HeadRmsNorm { .. } => "head norm",
            Kernel::Quantize { .. } => "quantise",
            Kernel::Round { .. } => "round",
            Kernel::Linear { .. } => "linear",
            Kernel::HeadLinear(_) => "head linear",
            Kernel::LoraDown { .. } => "lora down",
            Kernel::LoraUp { .. } => "lora up",
            Kernel::JoinHeads { .. } => "join heads",
            Kernel::Rope { .. } => "rope",
            Kernel::WriteKv { .. } => "write kv",
            Kernel::Attention { .. } => "attention",
            Kernel::SiluMul { .. } => "silu mul",
            Kernel::ClampedSwiglu { .. } => "clamped swiglu",
            Kernel::GeluMul { .. } => "gelu mul",
            Kernel::Gelu { .. } | Kernel::GeluErf { .. } => "gelu",
            Kernel::ReluSquared { .. } => "relu squared",
            Kernel::Add { .. } => "add",
            Kernel::Mul { .. } => "mul",
            Kernel::Mean { .. } => "mean",
            Kernel::Scale { .. } => "scale",
            Kernel::SoftCap { .. } => "soft cap",
            Kernel::SigmoidScale { .. } => "sigmoid scale",
            Kernel::Route { .. } => "route",
            Kernel::Dispatch { .. } => "dispatch",
            Kernel::Experts(_) => "experts",
            Kernel::Combine { .. } => "combine",
            Kernel::Silu { .. } => "silu",
            Kernel::Sigmoid { .. } => "sigmoid",
            Kernel::HeadL2Norm { .. } => "head l2 norm",
            Kernel::Softplus { .. } => "softplus",
            Kernel::Decay { .. } => "decay",
            Kernel::ShortConv(_) => "short conv",
            Kernel::Recur(_) => "recurrence",
        }
    }

    /// Returns true if row i of every operand is touched only by the thread that owns row i. Consecutive row-wise
    /// kernels need no barrier between them.
    pub(super) fn is_row_wise(&self) -> bool {
        !matches!(
            self,
            Kernel::Gather { .. }
                | Kernel::Mean { .. }
                | Kernel::Linear { .. }
                | Kernel::HeadLinear(_)
                | Kernel::LoraDown { .. }
                | Kernel::LoraUp { .. }
                | Kernel::Attention { .. }
                | Kernel::Dispatch { .. }
                | Kernel::Experts(_)
                | Kernel::Combine { .. }
                | Kernel::ShortConv(_)
                | Kernel::Recur(_)
        )
    }

    /// The buffers that the kernel reads or writes.
    pub(super) fn buffers(&self) -> Vec<usize> {
        match *self {
            Kernel::Embedding { out, .. } | Kernel::RopeTable { out, .. } => vec![out.buffer],
            Kernel::Gather { x, out } | Kernel::Copy { x, out } | Kernel::Round { x, out, .. } => {
                vec![x.buffer, out.buffer]
            }
            Kernel::RmsNorm { x, out, .. } | Kernel::LayerNorm { x, out, .. } => vec![x.buffer, out.buffer],
            Kernel::HeadRmsNorm { x, .. } | Kernel::Scale { x, .. } | Kernel::SoftCap { x, .. } => {
                vec![x.buffer]
            }
            Kernel::Gelu { x } | Kernel::GeluErf { x } | Kernel::ReluSquared { x } => vec![x.buffer],
            Kernel::Quantize { x, out, .. } => vec![x.buffer, out],
            Kernel::Linear { x, out, .. } | Kernel::Experts(ExpertsKernel { x, out, .. }) => {
                vec![x.buffer(), out.buffer]
            }
            Kernel::LoraDown { x, out, .. } | Kernel::LoraUp { x, out, .. } => vec![x.buffer, out.buffer],
            Kernel::HeadLinear(kernel) => {
                let heads = (0..kernel.num_heads).map(|head| kernel.head(head).0.buffer());
                heads.chain([kernel.out.buffer]).collect()
            }
            Kernel::JoinHeads { x, y, out, .. } => vec![x.buffer, y.buffer, out.buffer],
            Kernel::Dispatch { x, routes, out, .. } => vec![x.buffer(), routes.buffer, out.buffer()],
            Kernel::Combine { x, routes, out } => vec![x.buffer, routes.buffer, out.buffer],
            Kernel::Route { logits, out, .. } => vec![logits.buffer, out.buffer],
            Kernel::SigmoidScale { x, gate } => vec![x.buffer, gate.buffer],
            Kernel::Rope { x, table, .. } => vec![x.buffer, table.buffer],
            Kernel::WriteKv { key, value, .. } => {
                std::iter::once(key).chain(value).map(|view| view.buffer).collect()
            }
            Kernel::Attention(AttentionKernel { query, out, .. }) => vec![query.buffer, out.buffer],
            Kernel::SiluMul { gate, up }
            | Kernel::ClampedSwiglu { gate, up, .. }
            | Kernel::GeluMul { gate, up } => vec![gate.buffer, up.buffer],
            Kernel::Add { x, y } | Kernel::Mul { x, y } => vec![x.buffer, y.buffer],
            Kernel::Silu { x } | Kernel::Sigmoid { x } | Kernel::HeadL2Norm { x, .. } => vec![x.buffer],
            Kernel::Softplus { x, .. } | Kernel::Decay { x, .. } => vec![x.buffer],
            Kernel::ShortConv(ShortConvKernel { x, out, .. }) => vec![x.buffer, out.buffer],
            Kernel::Recur(RecurKernel { value, key, query, decay, strength, out, .. }) => {
                [value, key, query, decay, strength, out].map(|view| view.buffer).to_vec()
            }
            Kernel::Mean { x, out } => vec![x.buffer, out.buffer],
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    pub kernel: Kernel,
    pub rows: RowSet,
    /// If set, all threads must finish the earlier instructions before any thread starts this one.
    pub(crate) barrier_before: bool,
}

/// The output from which vectors are made: a row for each sampled position, or for each token with `All`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PooledOutput {
    pub view: View,
    pub rows: PooledRows,
}

/// A lowered program: everything that all steps of a model have in common.
#[derive(Debug)]
pub struct Program {
    pub config: ProgramConfig,
    pub instructions: Vec<Instruction>,
    pub buffers: Vec<Buffer>,
    pub(crate) num_floats: usize,
    pub(crate) num_quantized_bytes: usize,
    /// Matrices in packed layout.
    pub weights: Vec<PackedWeight>,
    /// Norm weights and biases.
    pub vectors: Vec<Vec<f32>>,
    /// The image that `weights` view and `vectors` were copied from.
    pub(crate) image: WeightImage,
    pub frequencies: Vec<RopeFrequencies>,
    /// The products whose weights adapters may change; empty if the program takes no adapters.
    pub adapted: Vec<AdaptedProduct>,
    /// The largest rank of an adapter's matrices.
    pub max_adapter_rank: usize,
    /// The distinct windows of the attention kernels.
    pub windows: Vec<Window>,
    pub(crate) layer_windows: Vec<Window>,
    /// The position dependence of the mean of each layer's keys.
    pub(crate) layer_means: Vec<KeyMean>,
    /// Number of window parts in the KV pool; `None` stores windowed layers with the others.
    pub(crate) num_window_parts: Option<usize>,
    /// The memory of the KV pool; `None` keeps all of it there.
    pub(crate) spill: Option<SpillOptions>,
    /// f32 elements of the state of all recurrent layers.
    pub(crate) state_size: usize,
    /// The logits; `None` for a program that only pools.
    pub logits: Option<View>,
    pub pooled: Option<PooledOutput>,
    /// Positions must be smaller.
    pub max_positions: usize,
    /// Every token sees all tokens of its sequence.
    pub sees_all: bool,
    /// The width of the logits, or the rows of the embedding without them.
    pub vocab_size: usize,
    /// Number of rows of the embedding. Token ids must be smaller.
    pub num_embeddings: usize,
    /// Query heads per KV head, H / G.
    pub heads_per_kv_head: usize,
    /// Number of kernels whose threads share a counter.
    pub(crate) num_counters: usize,
}

impl Program {
    /// The rotations of the key means, for sequences of up to `num_blocks` blocks.
    pub(crate) fn key_turns(&self, num_blocks: usize) -> KeyTurns {
        KeyTurns::new(&self.layer_means, &self.frequencies, self.config.geometry.block_size, num_blocks)
    }

    /// The most routes of rows to experts in a step, and the most experts of a layer. 0 without experts.
    pub(crate) fn max_routes(&self) -> (usize, usize) {
        let sizes = self.instructions.iter().filter_map(|instruction| match instruction.kernel {
            Kernel::Dispatch { num_experts, .. } => Some((
                instruction.rows.count(self.config.max_step_tokens, self.config.max_step_sequences),
                num_experts,
            )),
            _ => None,
        });
        sizes.fold((0, 0), |(routes, experts), (more, others)| (routes.max(more), experts.max(others)))
    }

    /// Bytes of packed weights and vectors in memory.
    pub fn weight_bytes(&self) -> usize {
        let vectors: usize = self.vectors.iter().map(|vector| size_of_val(&vector[..])).sum();
        vectors + self.weights.iter().map(PackedWeight::num_bytes).sum::<usize>()
    }

    /// The window parts of the KV pool; `None` if it has none.
    pub(crate) fn window_limits(&self) -> Option<WindowLimits> {
        let num_parts = self.num_window_parts?;
        let is_windowed: Vec<bool> = self.layer_windows.iter().map(|window| window.is_bounded()).collect();
        let state_bytes = self.state_size * size_of::<f32>();
        let has_parts = is_windowed.contains(&true) || state_bytes > 0;
        has_parts.then_some(WindowLimits { is_windowed, num_parts, state_bytes })
    }

    /// The largest window of any windowed layer.
    pub(crate) fn largest_window(&self) -> Option<Window> {
        self.layer_windows.iter().copied().filter(|window| window.is_bounded()).max()
    }
}
