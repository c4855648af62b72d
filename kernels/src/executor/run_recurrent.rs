//! Recurrent layers: each thread computes some channels or heads of all sequences, position by position.

use std::ops::Range;

use super::rows::StateRows;
use super::run::Step;
use crate::ops::recurrence::{HeadRows, HeadRun, recur};
use crate::ops::short_conv::{ConvRun, short_conv};
use crate::program::{RecurKernel, ShortConvKernel, View};
use crate::threads::split;
use trunkline_kernels_core::vector::LANES;

// The blocks of a step are written by one chunk each, so the states that threads read and write here differ by chunk
// and, within a chunk, by channel or head. Rows are as in `run`.
#[allow(clippy::undocumented_unsafe_blocks, reason = "all rest on the rule above")]
impl Step<'_> {
    pub(super) fn convolve(&self, kernel: &ShortConvKernel, thread_idx: usize) {
        let ShortConvKernel { x, weight, bias, state, out } = *kernel;
        let num_channels = x.width;
        let vectors = split(0..num_channels.div_ceil(LANES), self.num_threads, thread_idx);
        let channels = vectors.start * LANES..(vectors.end * LANES).min(num_channels);
        if channels.is_empty() {
            return;
        }
        let weight = &self.program.vectors[weight][..];
        for run in &self.rows.states {
            for before in 0..weight.len() / num_channels - 1 {
                let first = state + before * num_channels;
                self.begin_state(run, first + channels.start..first + channels.end);
            }
            let conv = ConvRun {
                x: self.first_element(x, run),
                x_stride: self.stride(x),
                out: self.first_element(out, run).cast_mut(),
                out_stride: self.stride(out),
                num_rows: run.rows.len(),
                weight,
                bias: bias.map(|bias| &self.program.vectors[bias][..]),
                state: self.kv.state(run.destination).wrapping_add(state),
                num_channels,
            };
            unsafe { short_conv(self.isa, conv, channels.clone()) };
        }
    }

    pub(super) fn recur(&self, kernel: &RecurKernel, thread_idx: usize) {
        let RecurKernel { value, key, num_heads, key_size, .. } = *kernel;
        let value_size = value.width / num_heads;
        let heads_per_key = num_heads * key_size / key.width;
        let skip = kernel.skip.map(|skip| &self.program.vectors[skip][..]);
        let rows = |view: View, run: &StateRows, column: usize| HeadRows {
            first: self.first_element(view, run).wrapping_add(column),
            stride: self.stride(view),
        };
        for head in split(0..num_heads, self.num_threads, thread_idx) {
            let state = kernel.state + head * value_size * key_size;
            let shared = head / heads_per_key * key_size;
            for run in &self.rows.states {
                self.begin_state(run, state..state + value_size * key_size);
                let out = rows(kernel.out, run, head * value_size);
                let head_run = HeadRun {
                    rule: kernel.rule,
                    num_rows: run.rows.len(),
                    value: rows(value, run, head * value_size),
                    key: rows(key, run, shared),
                    query: rows(kernel.query, run, shared),
                    decay: rows(kernel.decay, run, head),
                    strength: rows(kernel.strength, run, head),
                    skip: skip.map_or(0.0, |skip| skip[head]),
                    out: out.first.cast_mut(),
                    out_stride: out.stride,
                    state: self.kv.state(run.destination).wrapping_add(state),
                    value_size,
                    key_size,
                };
                unsafe { recur(self.isa, head_run) };
            }
        }
    }

    /// A pointer to the first element of a run's first row.
    fn first_element(&self, view: View, run: &StateRows) -> *const f32 {
        let first = self.range(view, run.rows.start).start;
        let end = self.range(view, run.rows.end - 1).end;
        self.floats.part(first..end).as_mut_ptr()
    }

    /// Makes these elements of the destination's state those before the run.
    fn begin_state(&self, run: &StateRows, elements: Range<usize>) {
        let destination = self.kv.state(run.destination).wrapping_add(elements.start);
        unsafe {
            match run.source {
                None => destination.write_bytes(0, elements.len()),
                Some(source) if source != run.destination => {
                    let source = self.kv.state(source).wrapping_add(elements.start);
                    source.copy_to_nonoverlapping(destination, elements.len());
                }
                Some(_) => {}
            }
        }
    }
}
