//! The instructions of one step, as each thread executes its share of them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::attention_plan::{PlanItem, PlanLimits, Plans};
use super::calibrate::Probe;
use super::profile::{Stopwatch, ThreadProfile};
use super::routing::Routing;
use super::rows::StepRows;
use super::sequence::SequenceTable;
use super::shares::{Cursors, Units};
use crate::adapter::Adapter;
use crate::attention::{Item, Rows, SEGMENT_SIZE, Scratch, Target, Window, attend, finish_states};
use crate::isa::Isa;
use crate::kv_pool::KvView;
use crate::kv_spill::KvSpill;
use crate::linear::{
    FloatRows, LinearInput, LinearOutput, PANEL, QuantizedRows, QuantizedShape, linear, quantize_rows,
    round_row,
};
use crate::ops::add::{add_in_place, mul_in_place};
use crate::ops::gelu::{gelu_erf_in_place, gelu_in_place, gelu_mul_in_place};
use crate::ops::join_heads::join_heads;
use crate::ops::layer_norm::layer_norm;
use crate::ops::relu_squared::relu_squared_in_place;
use crate::ops::rms_norm::{head_l2_norm_in_place, head_rms_norm_in_place, rms_norm};
use crate::ops::rope::rope_in_place;
use crate::ops::route::route;
use crate::ops::scale::scale_in_place;
use crate::ops::scaled_sum::sigmoid_scale_in_place;
use crate::ops::silu_mul::{clamped_swiglu_in_place, sigmoid_in_place, silu_in_place, silu_mul_in_place};
use crate::ops::softplus::{decay_in_place, softplus_in_place};
use crate::ops::tanh::soft_cap_in_place;
use crate::pack::TILE;
use crate::program::{
    AttentionKernel, BufferKind, Instruction, Kernel, LinearSource, Program, RowIndex, RowSet, View,
    WeightGate,
};
use crate::shared_mut::SharedMut;
use crate::threads::{Barrier, split};

/// With at least this many rows per thread, the shares of threads are whole panels of quantised rows.
const PANEL_SHARES_FROM: usize = 2 * PANEL;

/// Rows that consecutive row-wise instructions process before moving on to the next rows: enough to quantise many
/// groups at once, few enough to stay in the caches.
const ROWS_AT_ONCE: usize = 8;

/// The state of a step that its threads share.
pub(super) struct Step<'a> {
    pub(super) isa: Isa,
    pub(super) program: &'a Program,
    pub(super) floats: SharedMut<'a, f32>,
    pub(super) quantized: SharedMut<'a, u8>,
    pub(super) kv: KvView<'a>,
    pub(super) sequences: &'a SequenceTable,
    pub(super) adapters: &'a [Option<Arc<Adapter>>],
    pub(super) rows: &'a StepRows,
    pub(super) plans: &'a Plans,
    pub(super) limits: &'a PlanLimits,
    /// Partial states of split attention items.
    pub(super) states: SharedMut<'a, f32>,
    /// The number of items taken, for each attention instruction; 0 at the start of the step.
    pub(super) counters: &'a [AtomicUsize],
    pub(super) cursors: &'a Cursors,
    pub(super) probe: Option<&'a Probe<'a>>,
    pub(super) num_threads: usize,
    /// Fills the memory of weights that exceed it.
    pub(super) gate: Option<&'a dyn WeightGate>,
    /// Fills that of K and V.
    pub(super) spill: Option<&'a KvSpill>,
}

// Two rules make the unsafe blocks of this file sound. First, between two barriers a row-wise instruction touches only
// rows of its thread's share, and consecutive row-wise instructions without a barrier have equal shares. Second, any
// other instruction writes only elements that no other thread reads or writes between the same barriers, and buffers
// that live in the same phase do not overlap (`program::memory`).
#[allow(clippy::undocumented_unsafe_blocks, reason = "all rest on the two rules above")]
impl Step<'_> {
    /// Executes all instructions. There is no barrier after the last one. Returns false, on all threads alike, if
    /// weights, or K and V, cannot be read.
    pub(super) fn run(
        &self,
        thread_idx: usize,
        barrier: &Barrier,
        (scratch, routing): (&mut Scratch, &mut Routing),
        profile: Option<&mut ThreadProfile>,
    ) -> bool {
        let mut stopwatch = Stopwatch::start(profile);
        let mut num_products = 0;
        let instructions = &self.program.instructions;
        let mut index = 0;
        while index < instructions.len() {
            let instruction = &instructions[index];
            if matches!(instruction.kernel, Kernel::LoraUp { .. }) && !self.has_adapters() {
                // The next instruction has a barrier before it.
                index += 1;
                continue;
            }
            if instruction.barrier_before {
                barrier.wait();
                stopwatch.waited(index);
            }
            let is_leader = thread_idx == 0;
            if self.gate.is_some_and(|gate| !gate.enter(index, is_leader))
                || self.spill.is_some_and(|spill| !spill.enter(index, is_leader))
            {
                return false;
            }
            match instruction.kernel {
                Kernel::Linear { .. } => {
                    self.run_linear(instruction, num_products, thread_idx);
                    num_products += 1;
                }
                Kernel::Attention(kernel) => {
                    self.run_attention(&kernel, instruction.rows, scratch);
                }
                Kernel::HeadLinear(kernel) => {
                    self.multiply_heads(&kernel, instruction.rows, (num_products, thread_idx));
                    num_products += 1;
                }
                Kernel::LoraDown { x, product, out } => {
                    self.lora_down((x, product, out), instruction.rows, thread_idx);
                }
                Kernel::LoraUp { x, product, out } => {
                    self.lora_up((x, product, out), instruction.rows, (num_products, thread_idx));
                    num_products += 1;
                }
                Kernel::Experts(kernel) => {
                    self.multiply_experts(&kernel, instruction.rows, (num_products, thread_idx), routing);
                    num_products += 1;
                }
                Kernel::ShortConv(kernel) => {
                    self.convolve(&kernel, thread_idx);
                }
                Kernel::Recur(kernel) => {
                    self.recur(&kernel, thread_idx);
                }
                Kernel::Dispatch { .. } | Kernel::Combine { .. } => {
                    self.run_experts(instruction, thread_idx, routing);
                }
                _ => {
                    // Row-wise instructions without a barrier between them have the same rows.
                    let rest = &instructions[index + 1..];
                    let num_joined = rest.iter().take_while(|next| !next.barrier_before).count();
                    let joined = index..index + 1 + num_joined;
                    self.run_row_wise(joined.clone(), thread_idx, &mut stopwatch);
                    index = joined.end;
                    continue;
                }
            }
            stopwatch.worked(index);
            index += 1;
        }
        true
    }

    /// Executes the instructions `joined`, which have no barrier between them, on a few rows at a time, so that the
    /// results of one instruction are still in a near cache when the next one reads them.
    fn run_row_wise(&self, joined: Range<usize>, thread_idx: usize, stopwatch: &mut Stopwatch<'_>) {
        let share = self.row_share(self.num_rows(self.program.instructions[joined.start].rows), thread_idx);
        for first in share.clone().step_by(ROWS_AT_ONCE) {
            let rows = first..share.end.min(first + ROWS_AT_ONCE);
            self.prefetch_slots(&self.program.instructions[joined.clone()], rows.clone());
            for index in joined.clone() {
                let Instruction { kernel, rows: row_set, .. } = &self.program.instructions[index];
                match *kernel {
                    Kernel::Quantize { x, out } => self.quantize(x, out, *row_set, rows.clone()),
                    _ => rows.clone().for_each(|row| self.run_row(kernel, row)),
                }
                stopwatch.worked(index);
            }
        }
    }

    /// Prefetches the KV slots that the instructions will write for these rows. A slot that directly follows the
    /// previous one, as in a prefill, lies in cache lines that are already prefetched.
    fn prefetch_slots(&self, joined: &[Instruction], rows: Range<usize>) {
        for instruction in joined {
            let Kernel::WriteKv { layer, .. } = instruction.kernel else { continue };
            let mut before = None;
            for &(block_id, offset) in &self.rows.slots[rows.clone()] {
                if before != Some((block_id, offset.wrapping_sub(1))) {
                    self.kv.prefetch_slot(layer, block_id, offset as usize);
                }
                before = Some((block_id, offset));
            }
        }
    }

    pub(super) fn num_rows(&self, rows: RowSet) -> usize {
        rows.count(self.rows.token_ids.len(), self.rows.samples.len())
    }

    /// The rows that one thread processes in row-wise instructions.
    pub(super) fn row_share(&self, num_rows: usize, thread_idx: usize) -> Range<usize> {
        if num_rows < PANEL_SHARES_FROM * self.num_threads {
            return split(0..num_rows, self.num_threads, thread_idx);
        }
        let panels = split(0..num_rows.div_ceil(PANEL), self.num_threads, thread_idx);
        panels.start * PANEL..(panels.end * PANEL).min(num_rows)
    }

    /// The distance between rows of a float buffer, in elements.
    pub(super) fn stride(&self, view: View) -> usize {
        match self.program.buffers[view.buffer].kind {
            BufferKind::Float { width } => width,
            BufferKind::Quantized { .. } => unreachable!("views are of float buffers"),
        }
    }

    pub(super) fn range(&self, view: View, row: usize) -> Range<usize> {
        let start = self.program.buffers[view.buffer].offset + row * self.stride(view) + view.column;
        start..start + view.width
    }

    pub(super) fn row(&self, view: View, row: usize) -> &[f32] {
        unsafe { self.floats.slice(self.range(view, row)) }
    }

    #[allow(clippy::mut_from_ref, reason = "the rules above rule out aliases")]
    pub(super) fn row_mut(&self, view: View, row: usize) -> &mut [f32] {
        unsafe { self.floats.slice_mut(self.range(view, row)) }
    }

    /// The logits of sampled row `sample`. Valid after the last instruction and a barrier.
    ///
    /// # Safety
    /// No other thread may use the same row.
    #[allow(clippy::mut_from_ref, reason = "the caller takes each row once")]
    pub(super) unsafe fn logits_row(&self, sample: usize) -> &mut [f32] {
        // Without logits nothing is sampled or scored.
        self.program.logits.map_or(&mut [], |logits| self.row_mut(logits, sample))
    }

    fn quantize(&self, x: View, out: usize, row_set: RowSet, rows: Range<usize>) {
        let shape = QuantizedShape::new(self.num_rows(row_set), x.width);
        let buffer = &self.program.buffers[out];
        let (start, end) = (self.range(x, rows.start).start, self.range(x, rows.end - 1).end);
        unsafe {
            let target = self.quantized.part(buffer.offset..buffer.offset + buffer.num_elements);
            quantize_rows(self.isa, shape, self.floats.slice(start..end), self.stride(x), rows, target);
        }
    }

    fn run_row(&self, kernel: &Kernel, row: usize) {
        let (isa, program) = (self.isa, self.program);
        match *kernel {
            Kernel::Embedding { weight, index, out } => {
                let weight = &program.weights[weight];
                let index = match index {
                    RowIndex::Token => self.rows.token_ids[row] as usize,
                    RowIndex::Position { offset } => self.rows.positions[row] as usize + offset,
                    RowIndex::Text => self.rows.texts[row].min(weight.out_features() - 1),
                };
                weight.dequantize_row(index, self.row_mut(out, row));
            }
            Kernel::RopeTable { frequencies, out } => {
                program.frequencies[frequencies].fill(self.rows.positions[row], self.row_mut(out, row));
            }
            Kernel::Gather { x, out } => {
                self.row_mut(out, row).copy_from_slice(self.row(x, self.rows.samples[row]));
            }
            Kernel::Round { x, width, out } => {
                let (x, out) = (self.row(x, row), self.row_mut(out, row));
                for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                    round_row(isa, x, out);
                }
            }
            Kernel::Copy { x, out } => self.row_mut(out, row).copy_from_slice(self.row(x, row)),
            Kernel::RmsNorm { x, weight, eps, out } => {
                rms_norm(isa, self.row(x, row), &program.vectors[weight], eps, self.row_mut(out, row));
            }
            Kernel::LayerNorm { x, weight, bias, eps, out } => {
                let bias = bias.map(|bias| &program.vectors[bias][..]);
                layer_norm(
                    isa,
                    self.row(x, row),
                    &program.vectors[weight],
                    bias,
                    eps,
                    self.row_mut(out, row),
                );
            }
            Kernel::HeadRmsNorm { x, weight, eps } => {
                head_rms_norm_in_place(isa, self.row_mut(x, row), &program.vectors[weight], eps);
            }
            Kernel::Rope { x, table, head_size } => {
                rope_in_place(isa, self.row_mut(x, row), self.row(table, row), head_size);
            }
            Kernel::WriteKv { layer, key, value } => {
                let (block_id, position) = (self.rows.slots[row].0, self.rows.positions[row] as usize);
                let key = self.row(key, row);
                if let Some(probe) = self.probe {
                    unsafe { probe.note_key(layer, row, key) };
                }
                // Chunks of a step never write the same block, so each slot is written by one row.
                unsafe {
                    match value {
                        Some(value) => {
                            self.kv.write(isa, layer, block_id, position, key, self.row(value, row));
                        }
                        None => self.kv.write_latent(isa, layer, block_id, position, key),
                    }
                }
            }
            Kernel::SiluMul { gate, up } => {
                silu_mul_in_place(isa, self.row_mut(gate, row), self.row(up, row))
            }
            Kernel::ClampedSwiglu { gate, up, clamp } => {
                clamped_swiglu_in_place(isa, self.row_mut(gate, row), self.row(up, row), clamp)
            }
            Kernel::GeluMul { gate, up } => {
                gelu_mul_in_place(isa, self.row_mut(gate, row), self.row(up, row))
            }
            Kernel::Gelu { x } => gelu_in_place(isa, self.row_mut(x, row)),
            Kernel::GeluErf { x } => gelu_erf_in_place(isa, self.row_mut(x, row)),
            Kernel::ReluSquared { x } => relu_squared_in_place(isa, self.row_mut(x, row)),
            Kernel::Scale { x, factor } => scale_in_place(isa, self.row_mut(x, row), factor),
            Kernel::SoftCap { x, cap } => soft_cap_in_place(isa, self.row_mut(x, row), cap),
            Kernel::Mul { x, y } => mul_in_place(isa, self.row_mut(x, row), self.row(y, row)),
            Kernel::Silu { x } => silu_in_place(isa, self.row_mut(x, row)),
            Kernel::Sigmoid { x } => sigmoid_in_place(isa, self.row_mut(x, row)),
            Kernel::HeadL2Norm { x, head_size, eps } => {
                head_l2_norm_in_place(isa, self.row_mut(x, row), head_size, eps);
            }
            Kernel::Softplus { x, bias } => {
                softplus_in_place(isa, self.row_mut(x, row), &program.vectors[bias]);
            }
            Kernel::Decay { x, log_rate } => {
                decay_in_place(isa, self.row_mut(x, row), &program.vectors[log_rate]);
            }
            Kernel::Mean { x, out } => self.mean(x, row, out),
            Kernel::Add { x, y } => add_in_place(isa, self.row_mut(x, row), self.row(y, row)),
            Kernel::SigmoidScale { x, gate } => {
                sigmoid_scale_in_place(isa, self.row_mut(x, row), self.row(gate, row)[0]);
            }
            Kernel::JoinHeads { x, y, num_heads, out } => {
                join_heads([self.row(x, row), self.row(y, row)], num_heads, self.row_mut(out, row));
            }
            Kernel::Route { logits, rule, bias, out } => {
                let bias = bias.map(|bias| &program.vectors[bias][..]);
                route(isa, self.row(logits, row), rule, bias, self.row_mut(out, row));
            }
            Kernel::Quantize { .. }
            | Kernel::Linear { .. }
            | Kernel::HeadLinear(_)
            | Kernel::LoraDown { .. }
            | Kernel::LoraUp { .. }
            | Kernel::Attention { .. }
            | Kernel::Dispatch { .. }
            | Kernel::Experts(_)
            | Kernel::ShortConv(_)
            | Kernel::Recur(_)
            | Kernel::Combine { .. } => unreachable!("not one row at a time"),
        }
    }

    fn run_linear(&self, instruction: &Instruction, ordinal: usize, thread_idx: usize) {
        let Kernel::Linear { x, weight, bias, out } = instruction.kernel else { unreachable!("a product") };
        let num_rows = self.num_rows(instruction.rows);
        if num_rows == 0 {
            return self.cursors.skip(ordinal, thread_idx);
        }
        let weight = &self.program.weights[weight];
        let bias = bias.map(|bias| &self.program.vectors[bias][..]);
        let num_tiles = weight.num_tiles();
        let tile = (num_tiles, weight.num_bytes() / num_tiles, TILE * weight.in_features());
        let element_bytes = if weight.needs_quantized_input() { 1 } else { size_of::<f32>() };
        let units = Units::new(num_rows, weight.in_features() * element_bytes, tile, self.num_threads);
        let stride = self.stride(out);
        let start = self.range(out, 0).start;
        let values = self.floats.part(start..start + (num_rows - 1) * stride + out.width);
        let output = LinearOutput { values, row_stride: stride };
        unsafe {
            let input = self.linear_input(x, 0..num_rows, num_rows);
            self.cursors.share(ordinal, thread_idx, &units, |unit| {
                linear(self.isa, weight, input, unit.rows, unit.tiles, output, bias);
            });
        }
    }

    /// Rows of a product's input, which has `num_rows` rows in this step.
    ///
    /// # Safety
    /// No thread may write the rows while the result lives.
    pub(super) unsafe fn linear_input(
        &self,
        x: LinearSource,
        rows: Range<usize>,
        num_rows: usize,
    ) -> LinearInput<'_> {
        match x {
            LinearSource::Float(view) | LinearSource::Rounded(view) => {
                let row_stride = self.stride(view);
                let values = unsafe {
                    self.floats.slice(self.range(view, rows.start).start..self.range(view, rows.end - 1).end)
                };
                let rows = FloatRows { values, row_stride };
                if matches!(x, LinearSource::Rounded(_)) {
                    LinearInput::Rounded(rows)
                } else {
                    LinearInput::Float(rows)
                }
            }
            LinearSource::Quantized(index) => {
                let buffer = &self.program.buffers[index];
                let BufferKind::Quantized { width } = buffer.kind else { unreachable!("quantised") };
                let shape = QuantizedShape::new(num_rows, width);
                let bytes =
                    unsafe { self.quantized.slice(buffer.offset..buffer.offset + buffer.num_elements) };
                LinearInput::Quantized(QuantizedRows::new(shape, bytes).rows(rows))
            }
        }
    }

    fn run_attention(&self, kernel: &AttentionKernel, rows: RowSet, scratch: &mut Scratch) {
        let AttentionKernel { layer, query, out, .. } = *kernel;
        let counter = &self.counters[kernel.counter];
        let plan = self.plans.of(rows, kernel.window);
        loop {
            let index = counter.fetch_add(1, Ordering::Relaxed);
            let Some(planned) = plan.items.get(index) else { return };
            let mut item = self.attention_item(planned, kernel);
            if let Some(probe) = self.probe
                && planned.first_segment == plan.window.first_visible(planned.first_position) / SEGMENT_SIZE
            {
                self.note_queries(probe, planned, layer, query);
            }
            // Most likely this thread's next item.
            item.next =
                plan.items.get(index + self.num_threads).map(|next| self.first_block(next, plan.window));
            let queries =
                Rows { pointer: self.row(query, planned.first_row).as_ptr(), stride: self.stride(query) };
            let rows = Rows {
                pointer: self.floats.part(self.range(out, planned.first_row)).as_mut_ptr(),
                stride: self.stride(out),
            };
            let Some(split) = planned.split else {
                unsafe { attend(self.isa, &self.kv, &item, queries, scratch, Target::Rows(rows)) };
                continue;
            };
            let offset = plan.state_offset(planned, split, self.limits);
            let split = &plan.splits[split];
            unsafe {
                let states = self.states.as_mut_ptr();
                let target = Target::States(states.add(offset));
                attend(self.isa, &self.kv, &item, queries, scratch, target);
                if split.finish_part() {
                    let whole = self.attention_item(&split.item, kernel);
                    let states = states.add(split.first_state);
                    finish_states(self.isa, &self.limits.geometry, &whole, states, scratch, rows);
                }
            }
        }
    }

    /// Records an item's queries in the probe. Each row and KV head has exactly one item with the first segment.
    fn note_queries(&self, probe: &Probe<'_>, planned: &PlanItem, layer: usize, query: View) {
        let width = self.limits.heads_per_kv_head * self.limits.geometry.head_size;
        let first = planned.kv_head * width;
        for row in planned.first_row..planned.first_row + planned.num_rows {
            let part = &self.row(query, row)[first..first + width];
            unsafe { probe.note_query(layer, row, (first, query.width), part) };
        }
    }

    /// The block and KV head that an attention item reads first.
    fn first_block(&self, planned: &PlanItem, window: Window) -> (u32, usize) {
        let first = (planned.first_segment * SEGMENT_SIZE).max(window.first_visible(planned.first_position));
        let block = first / self.limits.geometry.block_size;
        let chunk = &self.rows.chunks[planned.chunk];
        (self.sequences.at(chunk.slot).block_table[block], planned.kv_head)
    }

    fn attention_item(&self, planned: &PlanItem, kernel: &AttentionKernel) -> Item<'_> {
        let chunk = &self.rows.chunks[planned.chunk];
        Item {
            block_table: &self.sequences.at(chunk.slot).block_table,
            layer: kernel.layer,
            kv_head: planned.kv_head,
            heads_per_kv_head: planned.num_heads,
            first_position: planned.first_position,
            last_position: chunk.first_position + chunk.num_tokens - 1,
            num_rows: planned.num_rows,
            scale: kernel.scale,
            soft_cap: kernel.soft_cap,
            window: self.program.windows[kernel.window],
            sinks: kernel.sinks.map(|sinks| &self.program.vectors[sinks][..]),
            first_segment: planned.first_segment,
            end_segment: planned.end_segment,
            next: None,
        }
    }
}
