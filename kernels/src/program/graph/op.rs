//! The operations of a graph.

use super::{ValueId, WeightId};
use crate::attention::Window;
use crate::ops::recurrence::Recurrence;
use crate::ops::route::Rule;
use crate::ops::silu_mul::SwigluClamp;
use crate::program::elementwise::{Binary, Unary};
use crate::program::rows::{PooledRows, RowIndex};

/// The experts of a layer: gated MLPs, of which each row uses a few.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// The weights of each expert: `[I, N]`, `[I, N]` and `[N, I]`.
    pub gate: Vec<WeightId>,
    pub up: Vec<WeightId>,
    pub down: Vec<WeightId>,
    /// The number of experts that a row uses.
    pub num_used: usize,
    pub rule: Rule,
    /// Numbers that are added to the scores of experts for the choice alone.
    pub choice_bias: Option<WeightId>,
    /// The biases of each expert's gate, up and down.
    pub biases: Option<[Vec<WeightId>; 3]>,
    /// The limits of the activation; `None` for plain SwiGLU.
    pub clamp: Option<SwigluClamp>,
}

/// A causal depthwise convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConv {
    pub x: ValueId,
    /// The taps of each channel, `[channels * width]`.
    pub weight: WeightId,
    pub bias: Option<WeightId>,
    /// The first element of its state.
    pub state: usize,
}

/// A linear recurrence with a state for each head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recur {
    pub rule: Recurrence,
    pub value: ValueId,
    pub key: ValueId,
    pub query: ValueId,
    pub decay: ValueId,
    pub strength: ValueId,
    pub skip: Option<WeightId>,
    pub num_heads: usize,
    /// Elements of a head's key.
    pub key_size: usize,
    /// The first element of its state.
    pub state: usize,
}

/// Attention of a query over the keys and values of its sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::program) struct Attention {
    pub(in crate::program) layer: usize,
    pub(in crate::program) query: ValueId,
    pub(in crate::program) scale: f32,
    pub(in crate::program) soft_cap: Option<f32>,
    pub(in crate::program) window: Window,
    pub(in crate::program) sinks: Option<WeightId>,
}

/// An operation; `Ops` in `server/trunkline_server/models/ops.py` defines each of them.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::program) enum Op {
    Embedding { weight: WeightId, index: RowIndex },
    RmsNorm { x: ValueId, weight: WeightId, eps: f32 },
    LayerNorm { x: ValueId, weight: WeightId, bias: Option<WeightId>, eps: f32 },
    HeadRmsNorm { x: ValueId, weight: WeightId, eps: f32 },
    Linear { x: ValueId, weight: WeightId, bias: Option<WeightId> },
    HeadLinear { x: ValueId, weights: Vec<WeightId> },
    JoinHeads { x: ValueId, y: ValueId, num_heads: usize },
    Rope { x: ValueId, frequencies: usize, head_size: usize },
    WriteKv { layer: usize, key: ValueId, value: Option<ValueId> },
    Attention(Attention),
    Unary { x: ValueId, f: Unary },
    Binary { x: ValueId, y: ValueId, f: Binary },
    SigmoidScale { x: ValueId, gate: ValueId },
    Mean { x: ValueId },
    Columns { x: ValueId, begin: usize },
    HeadL2Norm { x: ValueId, head_size: usize, eps: f32 },
    Softplus { x: ValueId, bias: WeightId },
    Decay { x: ValueId, log_rate: WeightId },
    ShortConv(ShortConv),
    Recur(Recur),
    Experts { x: ValueId, logits: ValueId, experts: Experts },
    Logits { x: ValueId, weight: WeightId, soft_cap: Option<f32> },
    Pooled { x: ValueId, rows: PooledRows },
}

impl Op {
    /// The values that the operation reads.
    pub(in crate::program) fn operands(&self) -> Vec<ValueId> {
        match *self {
            Op::Embedding { .. } => vec![],
            Op::RmsNorm { x, .. }
            | Op::LayerNorm { x, .. }
            | Op::HeadRmsNorm { x, .. }
            | Op::Linear { x, .. }
            | Op::HeadLinear { x, .. }
            | Op::Rope { x, .. }
            | Op::Attention(Attention { query: x, .. })
            | Op::Unary { x, .. }
            | Op::Mean { x }
            | Op::Columns { x, .. }
            | Op::HeadL2Norm { x, .. }
            | Op::Softplus { x, .. }
            | Op::Decay { x, .. }
            | Op::ShortConv(ShortConv { x, .. })
            | Op::Logits { x, .. }
            | Op::Pooled { x, .. } => vec![x],
            Op::Binary { x, y, .. }
            | Op::JoinHeads { x, y, .. }
            | Op::SigmoidScale { x, gate: y }
            | Op::Experts { x, logits: y, .. } => vec![x, y],
            Op::WriteKv { key, value, .. } => std::iter::once(key).chain(value).collect(),
            Op::Recur(Recur { value, key, query, decay, strength, .. }) => {
                vec![value, key, query, decay, strength]
            }
        }
    }
}

/// An operation and the number of features of its result.
#[derive(Clone, Debug)]
pub(in crate::program) struct Node {
    pub(in crate::program) op: Op,
    pub(in crate::program) width: usize,
}
