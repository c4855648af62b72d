//! Lowers the recorded graph to instructions over static memory.

mod adapters;
mod buffers;
mod experts;
mod heads;
mod inputs;
mod recurrent;
mod structure;

use std::collections::HashMap;
use std::sync::Arc;

use super::graph::{Node, Op, ValueId, WeightId, index_of};
use super::instruction::{
    AdaptedProduct, AttentionKernel, Buffer, BufferKind, Instruction, Kernel, LinearSource, PooledOutput,
    Program, RowSet, View,
};
use super::raw_weight::RawWeight;
use super::rows::PooledRows;
use super::uses::matrix_uses;
use super::weights::{Packing, WeightImage, WeightPlan};
use super::{ProgramBuilder, ProgramConfig, ProgramError};
use crate::attention::Window;
use crate::linear::QuantizedShape;
use crate::ops::rope::RopeFrequencies;
use crate::threads::ThreadPool;

impl ProgramBuilder {
    /// Checks the program, packs the weights on one thread and lays out the memory.
    pub fn lower(self) -> Result<Program, ProgramError> {
        let mut pool = ThreadPool::new(1).map_err(|source| ProgramError::Threads { threads: 1, source })?;
        self.lower_on(&mut pool, &mut |packing, pool| packing.pack(pool))
    }

    /// Like [`ProgramBuilder::lower`], with the pool's threads. `image` packs the weights or finds packed ones.
    pub(crate) fn lower_on(
        mut self,
        pool: &mut ThreadPool,
        image: &mut dyn FnMut(&mut Packing<'_>, &mut ThreadPool) -> Result<WeightImage, ProgramError>,
    ) -> Result<Program, ProgramError> {
        let (num_embeddings, heads_per_kv_head) = self.check_structure()?;
        let find = |is_it: fn(&Op) -> bool| self.nodes.iter().position(|node| is_it(&node.op));
        let logits = find(|op| matches!(op, Op::Logits { .. }));
        let pooled = find(|op| matches!(op, Op::Pooled { .. }));
        let analysis = Analysis::new(&self.nodes);
        analysis.check_means(&self.nodes)?;
        let mut lowering = Lowering {
            plan: WeightPlan::default(),
            raw: &self.weights,
            nodes: &self.nodes,
            frequencies: &self.frequencies,
            analysis,
            config: self.config,
            instructions: Vec::new(),
            buffers: Vec::new(),
            values: HashMap::new(),
            sources: HashMap::new(),
            tables: HashMap::new(),
            windows: Vec::new(),
            num_counters: 0,
            adapted: Vec::new(),
            max_adapter_rank: self.max_adapter_rank,
        };
        for index in 0..self.nodes.len() {
            lowering.lower_node(index);
        }
        let vocab_size = logits.map_or(num_embeddings, |index| self.nodes[index].width);
        let logits = logits.map(|index| lowering.values[&(ValueId(index), RowSet::Samples)]);
        let pooled = pooled.map(|index| lowering.pooled(index));
        let results = logits.into_iter().chain(pooled.map(|pooled| pooled.view)).map(|view| view.buffer);
        let (num_floats, num_quantized_bytes) = lowering.place_buffers(&results.collect::<Vec<_>>());
        let Lowering { instructions, buffers, plan, windows, num_counters, adapted, .. } = lowering;
        let (layer_windows, layer_means) = (self.layer_windows(), self.layer_means());
        let mut packing = Packing {
            table: Arc::new(plan.lay_out(&self.weights)?),
            uses: matrix_uses(&instructions),
            num_layers: self.config.geometry.num_layers,
            raw: &mut self.weights,
            progress: self.progress.as_ref(),
        };
        let image = image(&mut packing, pool)?;
        Ok(Program {
            config: self.config,
            instructions,
            buffers,
            num_floats,
            num_quantized_bytes,
            weights: image.weights(),
            vectors: image.vectors(),
            image,
            frequencies: self.frequencies,
            adapted,
            max_adapter_rank: self.max_adapter_rank,
            windows,
            layer_windows,
            layer_means,
            num_window_parts: self.num_window_parts,
            spill: self.spill,
            state_size: self.state_size,
            logits,
            pooled,
            max_positions: self.max_positions,
            sees_all: self.sees_all,
            vocab_size,
            num_embeddings,
            heads_per_kv_head,
            num_counters,
        })
    }
}

/// Liveness and required rows of each node.
struct Analysis {
    is_live: Vec<bool>,
    /// Index of the last node that reads each node.
    last_use: Vec<usize>,
    /// The rows of each node that are needed.
    rows: Vec<RowSet>,
}

impl Analysis {
    fn new(nodes: &[Node]) -> Self {
        let n = nodes.len();
        let mut analysis =
            Self { is_live: vec![false; n], last_use: vec![0; n], rows: vec![RowSet::Samples; n] };
        for index in (0..n).rev() {
            let node = &nodes[index];
            // Readers have higher indices and are already analysed: `rows` is Samples unless one of them needs all
            // tokens.
            if matches!(
                node.op,
                Op::Embedding { .. }
                    | Op::WriteKv { .. }
                    | Op::ShortConv(_)
                    | Op::Recur(_)
                    | Op::Pooled { rows: PooledRows::All, .. }
            ) {
                analysis.rows[index] = RowSet::Tokens;
            }
            analysis.is_live[index] |=
                matches!(node.op, Op::Logits { .. } | Op::Pooled { .. } | Op::WriteKv { .. })
                    || matches!(node.op, Op::ShortConv(_) | Op::Recur(_));
            if !analysis.is_live[index] {
                continue;
            }
            let reads_all = analysis.rows[index] == RowSet::Tokens || matches!(node.op, Op::Mean { .. });
            for operand in node.op.operands() {
                analysis.is_live[operand.0] = true;
                analysis.last_use[operand.0] = analysis.last_use[operand.0].max(index);
                if reads_all {
                    analysis.rows[operand.0] = RowSet::Tokens;
                }
            }
        }
        analysis
    }

    /// Checks that means are computed only once for each sequence, for the position that it samples from.
    fn check_means(&self, nodes: &[Node]) -> Result<(), ProgramError> {
        let is_wrong = |(node, rows): (&Node, &RowSet)| {
            matches!(node.op, Op::Mean { .. }) && matches!(rows, RowSet::Tokens)
        };
        if nodes.iter().zip(&self.rows).any(is_wrong) {
            let what = "needs the mean over all positions at every position".to_owned();
            return Err(ProgramError::Structure { what });
        }
        Ok(())
    }
}

struct Lowering<'a> {
    nodes: &'a [Node],
    frequencies: &'a [RopeFrequencies],
    analysis: Analysis,
    plan: WeightPlan,
    raw: &'a [RawWeight],
    config: ProgramConfig,
    instructions: Vec<Instruction>,
    buffers: Vec<Buffer>,
    /// The view of each value, for each row set in which it is needed.
    values: HashMap<(ValueId, RowSet), View>,
    /// The inputs of products that are not f32, and whether they are rounded instead of quantised.
    sources: HashMap<(ValueId, RowSet, bool), LinearSource>,
    /// Tables of cos and sin of the step's positions, by index of the frequencies.
    tables: HashMap<(usize, RowSet), View>,
    windows: Vec<Window>,
    num_counters: usize,
    adapted: Vec<AdaptedProduct>,
    max_adapter_rank: usize,
}

impl Lowering<'_> {
    fn raw(&self, weight: WeightId) -> &RawWeight {
        &self.raw[weight.0]
    }

    /// The lowered output of the `pooled` node.
    fn pooled(&self, index: usize) -> PooledOutput {
        let Op::Pooled { rows, .. } = self.nodes[index].op else { unreachable!("the node is `pooled`") };
        PooledOutput { view: self.values[&(ValueId(index), self.analysis.rows[index])], rows }
    }

    fn max_rows(&self, rows: RowSet) -> usize {
        rows.count(self.config.max_step_tokens, self.config.max_step_sequences)
    }

    fn new_buffer(&mut self, kind: BufferKind, rows: RowSet) -> usize {
        let max_rows = self.max_rows(rows);
        let num_elements = match kind {
            BufferKind::Float { width } => max_rows * width,
            BufferKind::Quantized { width } => QuantizedShape::new(max_rows, width).num_bytes(),
        };
        self.buffers.push(Buffer { kind, rows, offset: 0, num_elements });
        self.buffers.len() - 1
    }

    fn new_view(&mut self, width: usize, rows: RowSet) -> View {
        View { buffer: self.new_buffer(BufferKind::Float { width }, rows), column: 0, width }
    }

    fn emit(&mut self, kernel: Kernel, rows: RowSet) {
        let barrier_before = match self.instructions.last().map(|last| (last.kernel, last.rows)) {
            // Both only read their common input.
            Some((Kernel::LoraDown { .. }, _)) => !matches!(kernel, Kernel::Linear { .. }),
            Some((last, of)) => !(last.is_row_wise() && kernel.is_row_wise() && of == rows),
            None => false,
        };
        self.instructions.push(Instruction { kernel, rows, barrier_before });
    }

    /// Returns the view of `rows` of `x`. The first use of sampled rows gathers them from the rows of all tokens.
    fn operand(&mut self, x: ValueId, rows: RowSet) -> View {
        if let Some(view) = self.values.get(&(x, rows)) {
            return *view;
        }
        let source = self.values[&(x, RowSet::Tokens)];
        let out = self.new_view(source.width, rows);
        self.emit(Kernel::Gather { x: source, out }, rows);
        self.values.insert((x, rows), out);
        out
    }

    /// Returns a view of `x` that node `index` may overwrite: `x` itself at its last use, otherwise a copy.
    fn writable(&mut self, x: ValueId, rows: RowSet, index: usize, other: Option<ValueId>) -> View {
        let view = self.operand(x, rows);
        if self.analysis.last_use[x.0] == index && other != Some(x) {
            return view;
        }
        let out = self.new_view(view.width, rows);
        self.emit(Kernel::Copy { x: view, out }, rows);
        out
    }

    fn lower_node(&mut self, index: usize) {
        let (id, rows) = (ValueId(index), self.analysis.rows[index]);
        if !self.analysis.is_live[index] || self.values.contains_key(&(id, rows)) {
            return;
        }
        let width = self.nodes[index].width;
        let out = match self.nodes[index].op.clone() {
            Op::Embedding { weight, index } => {
                let weight = self.plan.matrix(&[weight]);
                let out = self.new_view(width, rows);
                self.emit(Kernel::Embedding { weight, index, out }, rows);
                out
            }
            Op::RmsNorm { x, weight, eps } => {
                let weight = self.plan.vector(&[weight]);
                let x = self.operand(x, rows);
                let out = self.new_view(width, rows);
                self.emit(Kernel::RmsNorm { x, weight, eps, out }, rows);
                out
            }
            Op::LayerNorm { x, weight, bias, eps } => {
                let weight = self.plan.vector(&[weight]);
                let bias = bias.map(|bias| self.plan.vector(&[bias]));
                let x = self.operand(x, rows);
                let out = self.new_view(width, rows);
                self.emit(Kernel::LayerNorm { x, weight, bias, eps, out }, rows);
                out
            }
            Op::HeadRmsNorm { x, weight, eps } => {
                let weight = self.plan.vector(&[weight]);
                let x = self.writable(x, rows, index, None);
                self.emit(Kernel::HeadRmsNorm { x, weight, eps }, rows);
                x
            }
            Op::Linear { .. } => return self.lower_linear(index),
            Op::HeadLinear { x, weights } => self.lower_head_linear(x, weights, rows, width),
            Op::JoinHeads { x, y, num_heads } => {
                let (x, y) = (self.operand(x, rows), self.operand(y, rows));
                let out = self.new_view(width, rows);
                self.emit(Kernel::JoinHeads { x, y, num_heads, out }, rows);
                out
            }
            Op::Logits { x, weight, soft_cap } => {
                let x = self.source(x, rows, self.raw(weight).format);
                let weight = self.plan.matrix(&[weight]);
                let out = self.new_view(width, rows);
                self.emit(Kernel::Linear { x, weight, bias: None, out }, rows);
                if let Some(cap) = soft_cap {
                    self.emit(Kernel::SoftCap { x: out, cap }, rows);
                }
                out
            }
            // Its rows are kept until the step ends.
            Op::Pooled { x, .. } => self.operand(x, rows),
            Op::Rope { x, frequencies, head_size } => {
                let table = self.table(frequencies, rows);
                let x = self.writable(x, rows, index, None);
                self.emit(Kernel::Rope { x, table, head_size }, rows);
                x
            }
            Op::WriteKv { layer, key, value } => {
                let key = self.operand(key, rows);
                let value = value.map(|value| self.operand(value, rows));
                self.emit(Kernel::WriteKv { layer, key, value }, rows);
                return;
            }
            Op::Attention { layer, query, scale, soft_cap, window, sinks } => {
                let sinks = sinks.map(|sinks| self.plan.vector(&[sinks]));
                let query = self.operand(query, rows);
                let out = self.new_view(width, rows);
                let counter = self.new_counter();
                let window = index_of(&mut self.windows, window);
                let kernel = AttentionKernel { layer, query, scale, soft_cap, window, sinks, out, counter };
                self.emit(Kernel::Attention(kernel), rows);
                out
            }
            Op::SiluMul { gate, up } => {
                let y = self.operand(up, rows);
                let x = self.writable(gate, rows, index, Some(up));
                self.emit(Kernel::SiluMul { gate: x, up: y }, rows);
                x
            }
            Op::GeluMul { gate, up } => {
                let y = self.operand(up, rows);
                let x = self.writable(gate, rows, index, Some(up));
                self.emit(Kernel::GeluMul { gate: x, up: y }, rows);
                x
            }
            Op::Gelu { x } => {
                let x = self.writable(x, rows, index, None);
                self.emit(Kernel::Gelu { x }, rows);
                x
            }
            Op::GeluErf { x } => {
                let x = self.writable(x, rows, index, None);
                self.emit(Kernel::GeluErf { x }, rows);
                x
            }
            Op::Tanh { x } => {
                let x = self.writable(x, rows, index, None);
                self.emit(Kernel::SoftCap { x, cap: 1.0 }, rows);
                x
            }
            Op::ReluSquared { x } => {
                let x = self.writable(x, rows, index, None);
                self.emit(Kernel::ReluSquared { x }, rows);
                x
            }
            Op::Scale { x, factor } => {
                let x = self.writable(x, rows, index, None);
                self.emit(Kernel::Scale { x, factor }, rows);
                x
            }
            Op::SigmoidScale { x, gate } => {
                let gate = self.operand(gate, rows);
                let x = self.writable(x, rows, index, None);
                self.emit(Kernel::SigmoidScale { x, gate }, rows);
                x
            }
            op @ (Op::Silu { .. } | Op::Sigmoid { .. } | Op::HeadL2Norm { .. })
            | op @ (Op::Columns { .. }
            | Op::Softplus { .. }
            | Op::Decay { .. }
            | Op::ShortConv(_)
            | Op::Recur(_)) => self.lower_recurrent(&op, rows, index, width),
            Op::Experts { x, logits, experts } => self.lower_experts((x, logits), &experts, rows, width),
            Op::Mean { x } => {
                let x = self.operand(x, RowSet::Tokens);
                let out = self.new_view(width, rows);
                self.emit(Kernel::Mean { x, out }, rows);
                out
            }
            Op::Mul { x, y } => {
                let other = self.operand(y, rows);
                let into = self.writable(x, rows, index, Some(y));
                self.emit(Kernel::Mul { x: into, y: other }, rows);
                into
            }
            Op::Add { x, y } => {
                // Addition is commutative to the bit, so the operand that ends here is overwritten.
                let (x, y) = if self.analysis.last_use[x.0] == index { (x, y) } else { (y, x) };
                let other = self.operand(y, rows);
                let into = self.writable(x, rows, index, Some(y));
                self.emit(Kernel::Add { x: into, y: other }, rows);
                into
            }
        };
        self.values.insert((id, rows), out);
    }

    fn new_counter(&mut self) -> usize {
        self.num_counters += 1;
        self.num_counters - 1
    }

    /// Lowers a product together with all later products that read the same rows of the same value in the same format.
    fn lower_linear(&mut self, index: usize) {
        let rows = self.analysis.rows[index];
        let Op::Linear { x, weight, bias } = self.nodes[index].op else {
            unreachable!("called for products only")
        };
        let (format, has_bias) = (self.raw(weight).format, bias.is_some());
        let (mut members, mut weights, mut biases) = (vec![], vec![], vec![]);
        for (i, node) in self.nodes.iter().enumerate().skip(index) {
            let is_wanted = self.analysis.is_live[i] && self.analysis.rows[i] == rows;
            match node.op {
                Op::Linear { x: other_x, weight, bias }
                    if is_wanted
                        && other_x == x
                        && bias.is_some() == has_bias
                        && self.raw(weight).format == format =>
                {
                    members.push(i);
                    weights.push(weight);
                    biases.extend(bias);
                }
                _ => {}
            }
        }
        let width = weights.iter().map(|weight| self.raw(*weight).shape[0]).sum();
        let weight = self.plan.matrix(&weights);
        let bias = if has_bias { Some(self.plan.vector(&biases)) } else { None };
        let source = self.source(x, rows, format);
        let down = self.lower_lora_down(x, rows, &weights, bias);
        let out = self.new_view(width, rows);
        self.emit(Kernel::Linear { x: source, weight, bias, out }, rows);
        self.lower_lora_up(down, out, rows);
        let mut column = 0;
        for member in members {
            let width = self.nodes[member].width;
            self.values.insert((ValueId(member), rows), View { buffer: out.buffer, column, width });
            column += width;
        }
    }

    /// Returns the table of cos and sin, created at its first use. All layers share it.
    fn table(&mut self, frequencies: usize, rows: RowSet) -> View {
        if let Some(table) = self.tables.get(&(frequencies, rows)) {
            return *table;
        }
        let width = 2 * self.frequencies[frequencies].num_pairs();
        let out = match rows {
            RowSet::Tokens => {
                let out = self.new_view(width, rows);
                self.emit(Kernel::RopeTable { frequencies, out }, rows);
                out
            }
            RowSet::Samples => {
                let x = self.table(frequencies, RowSet::Tokens);
                let out = self.new_view(width, rows);
                self.emit(Kernel::Gather { x, out }, rows);
                out
            }
            RowSet::TokenRoutes { .. } | RowSet::SampleRoutes { .. } => unreachable!("experts do not rotate"),
        };
        self.tables.insert((frequencies, rows), out);
        out
    }
}
