//! Records operations and checks their sizes.

mod attention;
mod experts;
mod heads;
mod op;
mod recurrent;
mod vectors;

use std::time::Duration;

pub use op::Experts;
pub(super) use op::{Node, Op, Recur, ShortConv};
pub use recurrent::RecurOperands;

use super::raw_weight::RawWeight;
use super::rows::RowIndex;
use super::{ProgramConfig, ProgramError, SpillOptions};
use crate::ops::rope::RopeFrequencies;
use crate::pack::{Format, InterleavedHeads, SourceBytes, quantized_row_bytes};

/// The id of an operation's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub usize);

/// The id of a weight given to the builder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub usize);

/// Records the operations of a step; see [the module](super).
pub struct ProgramBuilder {
    pub(super) config: ProgramConfig,
    pub(super) nodes: Vec<Node>,
    pub(super) weights: Vec<RawWeight>,
    pub(super) frequencies: Vec<RopeFrequencies>,
    /// Number of window parts in the KV pool; `None` stores windowed layers with the others.
    pub(super) num_window_parts: Option<usize>,
    pub(super) spill: Option<SpillOptions>,
    /// f32 elements of the state of all recurrent layers.
    pub(super) state_size: usize,
    pub(super) max_positions: usize,
    pub(super) sees_all: bool,
    /// The largest rank of an adapter's matrices; 0 if the program takes none.
    pub(super) max_adapter_rank: usize,
    pub(super) progress: Option<Progress>,
}

/// Hears how far the packing of weights is.
pub(super) struct Progress {
    pub(super) interval: Duration,
    pub(super) report: Box<dyn Fn(f64) + Send + Sync>,
}

/// Returns the index of `wanted` in `all`, after adding it if it is not there.
pub(super) fn index_of<T: PartialEq>(all: &mut Vec<T>, wanted: T) -> usize {
    all.iter().position(|known| *known == wanted).unwrap_or_else(|| {
        all.push(wanted);
        all.len() - 1
    })
}

fn shape_error(
    op: &'static str,
    what: &'static str,
    actual: impl std::fmt::Debug,
    expected: impl std::fmt::Debug,
) -> ProgramError {
    // `Debug` prints numbers and shapes plainly, but puts texts in quotes.
    let plain = |text: String| text.trim_matches('"').to_owned();
    ProgramError::Shape {
        op,
        what,
        actual: plain(format!("{actual:?}")),
        expected: plain(format!("{expected:?}")),
    }
}

fn check_soft_cap(op: &'static str, soft_cap: Option<f32>) -> Result<(), ProgramError> {
    match soft_cap {
        Some(cap) if !(cap.is_normal() && cap > 0.0) => {
            Err(shape_error(op, "soft cap", cap, "a positive number"))
        }
        _ => Ok(()),
    }
}

impl ProgramBuilder {
    pub fn new(config: ProgramConfig) -> Result<Self, ProgramError> {
        config.check()?;
        Ok(Self {
            config,
            nodes: Vec::new(),
            weights: Vec::new(),
            frequencies: Vec::new(),
            num_window_parts: None,
            spill: None,
            state_size: 0,
            max_positions: usize::MAX,
            sees_all: false,
            max_adapter_rank: 0,
            progress: None,
        })
    }

    /// Calls `report` every `interval` while weights are packed, with the share that is done. The calls are made by the
    /// thread that builds the program.
    pub fn on_progress(&mut self, interval: Duration, report: impl Fn(f64) + Send + Sync + 'static) {
        self.progress = Some(Progress { interval, report: Box::new(report) });
    }

    /// Stores K and V of windowed layers, or the states of recurrent layers, in window parts, of which the pool has
    /// `num_window_parts`. The plans of steps say when a block's part is dropped. Has no effect on other models.
    pub fn keep_windows(&mut self, num_window_parts: usize) {
        self.num_window_parts = Some(num_window_parts);
    }

    /// Limits the memory of the KV pool, whose other parts are in a file.
    pub fn spill_kv(&mut self, options: SpillOptions) {
        self.spill = Some(options);
    }

    /// Lets adapters change the weights of [`ProgramBuilder::linear`], with matrices of up to this rank.
    pub fn take_adapters(&mut self, max_rank: usize) {
        self.max_adapter_rank = max_rank;
    }

    pub fn geometry(&self) -> crate::kv_pool::KvGeometry {
        self.config.geometry
    }

    /// Adds a weight of one or two dimensions, given as the bytes of its rows in the file's format.
    pub fn weight(
        &mut self,
        format: Format,
        bytes: Vec<u8>,
        shape: &[usize],
    ) -> Result<WeightId, ProgramError> {
        self.weight_from(format, SourceBytes::Owned(bytes), shape, None)
    }

    /// Like [`ProgramBuilder::weight`], from bytes that may be borrowed. `interleaved_heads` is the order of the rows
    /// (of the elements, with one dimension) in the file, if it is not the model's.
    pub fn weight_from(
        &mut self,
        format: Format,
        bytes: SourceBytes,
        shape: &[usize],
        interleaved_heads: Option<InterleavedHeads>,
    ) -> Result<WeightId, ProgramError> {
        let weight = self.weights.len();
        if !matches!(shape.len(), 1 | 2) {
            return Err(shape_error("weight", "number of dimensions", shape.len(), "1 or 2"));
        }
        let fail = |source| ProgramError::Weight { weight, source };
        let raw = RawWeight { format, stored: format, bytes, shape: shape.to_vec(), interleaved_heads };
        if !matches!(raw.bytes, SourceBytes::Later(_)) {
            raw.check().map_err(fail)?;
        }
        if let Some(heads) = interleaved_heads {
            heads.check(shape[0]).map_err(fail)?;
        }
        self.weights.push(raw);
        Ok(WeightId(weight))
    }

    /// Quantises a matrix of floats to Q8_0 or Q4_1 while it is packed. Must come before operations with the weight.
    pub fn quantize(&mut self, weight: WeightId, to: Format) -> Result<(), ProgramError> {
        let [_, columns] = self.matrix("quantize", weight)?;
        let fail = |source| ProgramError::Weight { weight: weight.0, source };
        let raw = &mut self.weights[weight.0];
        quantized_row_bytes(raw.stored, to, columns).map_err(fail)?;
        raw.format = to;
        Ok(())
    }

    /// The rows of `weight` `[V, N]` for the tokens of the step: `[T, N]`.
    pub fn embedding(&mut self, weight: WeightId) -> Result<ValueId, ProgramError> {
        self.embedding_by(weight, RowIndex::Token)
    }

    /// The rows of `weight` for the positions of the step's tokens, or for the text that they belong to.
    pub fn embedding_by(&mut self, weight: WeightId, index: RowIndex) -> Result<ValueId, ProgramError> {
        let [rows, width] = self.matrix("embedding", weight)?;
        if let RowIndex::Position { offset } = index {
            self.max_positions = self.max_positions.min(rows.saturating_sub(offset));
        }
        Ok(self.push(Op::Embedding { weight, index }, width))
    }

    /// RMS norm of each row: `x / sqrt(mean(x^2) + eps) * weight`.
    pub fn rms_norm(&mut self, x: ValueId, weight: WeightId, eps: f32) -> Result<ValueId, ProgramError> {
        let width = self.width("rms_norm", x)?;
        self.vector("rms_norm", weight, width)?;
        Ok(self.push(Op::RmsNorm { x, weight, eps }, width))
    }

    /// Layer norm of each row: `(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`.
    pub fn layer_norm(
        &mut self,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        eps: f32,
    ) -> Result<ValueId, ProgramError> {
        let width = self.width("layer_norm", x)?;
        for vector in std::iter::once(weight).chain(bias) {
            self.vector("layer_norm", vector, width)?;
        }
        Ok(self.push(Op::LayerNorm { x, weight, bias, eps }, width))
    }

    /// RMS norm of each head separately, with a weight of shape `[head_size]`.
    pub fn head_rms_norm(
        &mut self,
        x: ValueId,
        weight: WeightId,
        eps: f32,
        head_size: usize,
    ) -> Result<ValueId, ProgramError> {
        let width = self.heads("head_rms_norm", x, head_size)?;
        self.vector("head_rms_norm", weight, head_size)?;
        Ok(self.push(Op::HeadRmsNorm { x, weight, eps }, width))
    }

    /// The product of `x` `[T, K]` and the transpose of `weight` `[N, K]`, plus `bias` `[N]`: `[T, N]`.
    pub fn linear(
        &mut self,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> Result<ValueId, ProgramError> {
        let width = self.product("linear", x, weight)?;
        if let Some(bias) = bias {
            self.vector("linear", bias, width)?;
        }
        Ok(self.push(Op::Linear { x, weight, bias }, width))
    }

    /// Rotary embedding: rotates the first `2 * inv_freq.len()` elements of each head by the token's position.
    pub fn rope(
        &mut self,
        x: ValueId,
        inv_freq: &[f64],
        attention_factor: f64,
        head_size: usize,
    ) -> Result<ValueId, ProgramError> {
        let width = self.heads("rope", x, head_size)?;
        if inv_freq.is_empty() || 2 * inv_freq.len() > head_size {
            let expected = format!("1 to {}", head_size / 2);
            return Err(shape_error("rope", "number of frequencies", inv_freq.len(), expected));
        }
        let wanted = RopeFrequencies::new(inv_freq.to_vec(), attention_factor);
        let frequencies = index_of(&mut self.frequencies, wanted);
        Ok(self.push(Op::Rope { x, frequencies, head_size }, width))
    }

    pub fn silu_mul(&mut self, gate: ValueId, up: ValueId) -> Result<ValueId, ProgramError> {
        let width = self.same_width("silu_mul", gate, up)?;
        Ok(self.push(Op::SiluMul { gate, up }, width))
    }

    /// Computes `gelu(gate) * up` with the tanh approximation of GELU.
    pub fn gelu_mul(&mut self, gate: ValueId, up: ValueId) -> Result<ValueId, ProgramError> {
        let width = self.same_width("gelu_mul", gate, up)?;
        Ok(self.push(Op::GeluMul { gate, up }, width))
    }

    /// Computes `gelu(x)` with the tanh approximation.
    pub fn gelu(&mut self, x: ValueId) -> Result<ValueId, ProgramError> {
        let width = self.width("gelu", x)?;
        Ok(self.push(Op::Gelu { x }, width))
    }

    /// Squares the positive elements of `x` and sets the others to 0.
    pub fn relu_squared(&mut self, x: ValueId) -> Result<ValueId, ProgramError> {
        let width = self.width("relu_squared", x)?;
        Ok(self.push(Op::ReluSquared { x }, width))
    }

    pub fn scale(&mut self, x: ValueId, factor: f32) -> Result<ValueId, ProgramError> {
        let width = self.width("scale", x)?;
        Ok(self.push(Op::Scale { x, factor }, width))
    }

    pub fn add(&mut self, x: ValueId, y: ValueId) -> Result<ValueId, ProgramError> {
        let width = self.same_width("add", x, y)?;
        Ok(self.push(Op::Add { x, y }, width))
    }

    /// The product of the sampled rows of `x` and the transpose of `weight`: `[S, V]`. With a soft cap, each logit `l`
    /// becomes `soft_cap * tanh(l / soft_cap)`. Must be the last operation, unless `pooled` is.
    pub fn logits(
        &mut self,
        x: ValueId,
        weight: WeightId,
        soft_cap: Option<f32>,
    ) -> Result<ValueId, ProgramError> {
        let width = self.product("logits", x, weight)?;
        check_soft_cap("logits", soft_cap)?;
        Ok(self.push(Op::Logits { x, weight, soft_cap }, width))
    }

    fn push(&mut self, op: Op, width: usize) -> ValueId {
        self.nodes.push(Node { op, width });
        ValueId(self.nodes.len() - 1)
    }

    /// The width of an operand. Results of `write_kv`, `logits` and `pooled` cannot be operands.
    fn width(&self, op: &'static str, x: ValueId) -> Result<usize, ProgramError> {
        match self.nodes.get(x.0) {
            Some(node) if !matches!(node.op, Op::WriteKv { .. } | Op::Logits { .. } | Op::Pooled { .. }) => {
                Ok(node.width)
            }
            _ => Err(ProgramError::UnknownValue { op, value: x.0 }),
        }
    }

    fn same_width(&self, op: &'static str, x: ValueId, y: ValueId) -> Result<usize, ProgramError> {
        let (width, other) = (self.width(op, x)?, self.width(op, y)?);
        if width == other {
            Ok(width)
        } else {
            Err(shape_error(op, "width of the second operand", other, width))
        }
    }

    fn heads(&self, op: &'static str, x: ValueId, head_size: usize) -> Result<usize, ProgramError> {
        let width = self.width(op, x)?;
        if head_size == 0 || !width.is_multiple_of(head_size) {
            return Err(shape_error(op, "width", width, format!("a multiple of head size {head_size}")));
        }
        Ok(width)
    }

    fn shape(&self, op: &'static str, weight: WeightId) -> Result<&[usize], ProgramError> {
        let found = self.weights.get(weight.0);
        found.map(|raw| &raw.shape[..]).ok_or(ProgramError::UnknownWeight { op, weight: weight.0 })
    }

    fn matrix(&self, op: &'static str, weight: WeightId) -> Result<[usize; 2], ProgramError> {
        let shape = self.shape(op, weight)?;
        <[usize; 2]>::try_from(shape)
            .map_err(|_| shape_error(op, "shape of the weight", shape, "[rows, columns]"))
    }

    fn vector(&self, op: &'static str, weight: WeightId, width: usize) -> Result<(), ProgramError> {
        let shape = self.shape(op, weight)?;
        if shape == [width] { Ok(()) } else { Err(shape_error(op, "shape of the weight", shape, [width])) }
    }

    fn product(&self, op: &'static str, x: ValueId, weight: WeightId) -> Result<usize, ProgramError> {
        let width = self.width(op, x)?;
        let [rows, columns] = self.matrix(op, weight)?;
        if columns == width { Ok(rows) } else { Err(shape_error(op, "width of the input", width, columns)) }
    }

    fn check_layer(&self, op: &'static str, layer: usize) -> Result<(), ProgramError> {
        let num_layers = self.config.geometry.num_layers;
        if layer < num_layers {
            Ok(())
        } else {
            Err(shape_error(op, "layer", layer, format!("0 to {}", num_layers - 1)))
        }
    }
}
