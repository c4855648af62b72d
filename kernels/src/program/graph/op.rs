//! The operations of a graph.

use super::{ValueId, WeightId};
use crate::attention::Window;
use crate::ops::recurrence::Recurrence;
use crate::ops::route::Rule;
use crate::ops::silu_mul::SwigluClamp;
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

/// An operation; `Ops` in `server/trunkline_server/models/ops.py` defines each of them.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::program) enum Op {
    Embedding {
        weight: WeightId,
        index: RowIndex,
    },
    RmsNorm {
        x: ValueId,
        weight: WeightId,
        eps: f32,
    },
    LayerNorm {
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        eps: f32,
    },
    HeadRmsNorm {
        x: ValueId,
        weight: WeightId,
        eps: f32,
    },
    Linear {
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
    },
    HeadLinear {
        x: ValueId,
        weights: Vec<WeightId>,
    },
    JoinHeads {
        x: ValueId,
        y: ValueId,
        num_heads: usize,
    },
    Rope {
        x: ValueId,
        frequencies: usize,
        head_size: usize,
    },
    WriteKv {
        layer: usize,
        key: ValueId,
        value: Option<ValueId>,
    },
    Attention {
        layer: usize,
        query: ValueId,
        scale: f32,
        soft_cap: Option<f32>,
        window: Window,
        sinks: Option<WeightId>,
    },
    SiluMul {
        gate: ValueId,
        up: ValueId,
    },
    GeluMul {
        gate: ValueId,
        up: ValueId,
    },
    Gelu {
        x: ValueId,
    },
    GeluErf {
        x: ValueId,
    },
    Tanh {
        x: ValueId,
    },
    ReluSquared {
        x: ValueId,
    },
    Add {
        x: ValueId,
        y: ValueId,
    },
    Scale {
        x: ValueId,
        factor: f32,
    },
    SigmoidScale {
        x: ValueId,
        gate: ValueId,
    },
    Mul {
        x: ValueId,
        y: ValueId,
    },
    Mean {
        x: ValueId,
    },
    Columns {
        x: ValueId,
        begin: usize,
    },
    Silu {
        x: ValueId,
    },
    Sigmoid {
        x: ValueId,
    },
    HeadL2Norm {
        x: ValueId,
        head_size: usize,
        eps: f32,
    },
    Softplus {
        x: ValueId,
        bias: WeightId,
    },
    Decay {
        x: ValueId,
        log_rate: WeightId,
    },
    ShortConv(ShortConv),
    Recur(Recur),
    Experts {
        x: ValueId,
        logits: ValueId,
        experts: Experts,
    },
    Logits {
        x: ValueId,
        weight: WeightId,
        soft_cap: Option<f32>,
    },
    Pooled {
        x: ValueId,
        rows: PooledRows,
    },
}

impl Op {
    /// The values that the operation reads.
    pub(in crate::program) fn operands(&self) -> Vec<ValueId> {
        match *self {
            Op::Embedding { .. } => vec![],
            Op::RmsNorm { x, .. } | Op::LayerNorm { x, .. } | Op::HeadRmsNorm { x, .. } => vec![x],
            Op::Gelu { x } | Op::ReluSquared { x } | Op::Linear { x, .. } => vec![x],
            Op::GeluErf { x } | Op::Tanh { x } | Op::Mean { x } | Op::Pooled { x, .. } => vec![x],
            Op::Rope { x, .. } | Op::Scale { x, .. } | Op::Logits { x, .. } => vec![x],
            Op::HeadLinear { x, .. } => vec![x],
            Op::Attention { query, .. } => vec![query],
            Op::WriteKv { key, value, .. } => std::iter::once(key).chain(value).collect(),
            Op::SiluMul { gate, up } | Op::GeluMul { gate, up } => vec![gate, up],
            Op::Add { x, y } | Op::Mul { x, y } | Op::JoinHeads { x, y, .. } => vec![x, y],
            Op::Columns { x, .. } => vec![x],
            Op::Silu { x } | Op::Sigmoid { x } | Op::HeadL2Norm { x, .. } => vec![x],
            Op::Softplus { x, .. } | Op::Decay { x, .. } => vec![x],
            Op::ShortConv(ShortConv { x, .. }) => vec![x],
            Op::Recur(Recur { value, key, query, decay, strength, .. }) => {
                vec![value, key, query, decay, strength]
            }
            Op::SigmoidScale { x, gate } => vec![x, gate],
            Op::Experts { x, logits, .. } => vec![x, logits],
        }
    }
}

/// An operation and the number of features of its result.
#[derive(Clone, Debug)]
pub(in crate::program) struct Node {
    pub(in crate::program) op: Op,
    pub(in crate::program) width: usize,
}
