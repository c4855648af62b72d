//! Lowers a layer of experts.

use super::Lowering;
use crate::pack::Format;
use crate::program::graph::{Experts, ValueId, WeightId};
use crate::program::instruction::{ExpertsKernel, Kernel, LinearSource, RowSet, View};

impl Lowering<'_> {
    /// Sorts rows by the experts that they use, computes their MLPs and adds the outputs up.
    pub(super) fn lower_experts(
        &mut self,
        (x, logits): (ValueId, ValueId),
        experts: &Experts,
        rows: RowSet,
        width: usize,
    ) -> View {
        let Experts { gate, up, down, num_used, rule, choice_bias, biases, clamp } = experts;
        let (sorted, num_experts) = (rows.routes(*num_used), gate.len());
        let logits = self.operand(logits, rows);
        let routes = self.new_view(2 * num_used, rows);
        let choice_bias = choice_bias.map(|bias| self.plan.vector(&[bias]));
        self.emit(Kernel::Route { logits, rule: *rule, bias: choice_bias, out: routes }, rows);
        let (gate_format, up_format) = (self.raw(gate[0]).format, self.raw(up[0]).format);
        let inner = self.raw(gate[0]).shape[0];
        let bias = |projection: usize| biases.as_ref().map(|biases| &biases[projection][..]);
        let (gate, up) = if gate_format == up_format {
            let x = self.dispatch(x, rows, sorted, (routes, num_experts), gate_format);
            let both_biases = bias(0).zip(bias(1)).map(|(gate, up)| pairs(gate, up).concat());
            let both = self.multiply_experts(x, pairs(gate, up), both_biases.as_deref(), 2 * inner, sorted);
            (View { width: inner, ..both }, View { column: inner, width: inner, ..both })
        } else {
            let mut product = |weights: &[WeightId], biases, format| {
                let x = self.dispatch(x, rows, sorted, (routes, num_experts), format);
                self.multiply_experts(x, single(weights), biases, inner, sorted)
            };
            (product(gate, bias(0), gate_format), product(up, bias(1), up_format))
        };
        match *clamp {
            Some(clamp) => self.emit(Kernel::ClampedSwiglu { gate, up, clamp }, sorted),
            None => self.emit(Kernel::SiluMul { gate, up }, sorted),
        }
        let hidden = self.prepared(gate, sorted, self.raw(down[0]).format);
        let x = self.multiply_experts(hidden, single(down), bias(2), width, sorted);
        let out = self.new_view(width, rows);
        self.emit(Kernel::Combine { x, routes, out }, rows);
        out
    }

    /// Copies the rows of `x` for each expert that they use.
    fn dispatch(
        &mut self,
        x: ValueId,
        rows: RowSet,
        sorted: RowSet,
        (routes, num_experts): (View, usize),
        format: Format,
    ) -> LinearSource {
        let x = self.source(x, rows, format);
        let out = match x {
            LinearSource::Float(view) => LinearSource::Float(self.new_view(view.width, sorted)),
            LinearSource::Rounded(view) => LinearSource::Rounded(self.new_rounded_view(view.width, sorted)),
            LinearSource::Quantized(buffer) => {
                LinearSource::Quantized(self.new_buffer(self.buffers[buffer].kind, sorted))
            }
        };
        self.emit(Kernel::Dispatch { x, routes, num_experts, out }, sorted);
        out
    }

    /// Multiplies sorted rows with their experts' matrices, each of which joins some weights, and adds their biases.
    fn multiply_experts(
        &mut self,
        x: LinearSource,
        matrices: Vec<Vec<WeightId>>,
        biases: Option<&[WeightId]>,
        width: usize,
        sorted: RowSet,
    ) -> View {
        let first_weight = self.plan.matrices(matrices);
        let biases = biases.map(|biases| self.plan.vector(biases));
        let out = self.new_view(width, sorted);
        self.emit(Kernel::Experts(ExpertsKernel { x, first_weight, biases, out }), sorted);
        out
    }
}

/// Joins the weights of gate and up of each expert.
fn pairs(gate: &[WeightId], up: &[WeightId]) -> Vec<Vec<WeightId>> {
    gate.iter().zip(up).map(|(gate, up)| vec![*gate, *up]).collect()
}

fn single(weights: &[WeightId]) -> Vec<Vec<WeightId>> {
    weights.iter().map(|weight| vec![*weight]).collect()
}
