//! Places the buffers in the working memory.

use super::Lowering;
use crate::program::instruction::{Buffer, BufferKind};
use crate::program::memory::{Demand, lay_out};

impl Lowering<'_> {
    /// Assigns an offset to every buffer. The buffers `results` outlive the last phase. Returns the number of f32
    /// elements and the number of bytes for quantised rows.
    pub(super) fn place_buffers(&mut self, results: &[usize]) -> (usize, usize) {
        let mut lifetimes = vec![(usize::MAX, 0); self.buffers.len()];
        let mut phase = 0;
        for instruction in &self.instructions {
            phase += usize::from(instruction.barrier_before);
            for buffer in instruction.kernel.buffers() {
                let (first, last) = lifetimes[buffer];
                lifetimes[buffer] = (phase.min(first), phase.max(last));
            }
        }
        results.iter().for_each(|result| lifetimes[*result].1 = phase + 1);
        let mut place = |is_float: bool| {
            let of_kind = |buffer: &Buffer| matches!(buffer.kind, BufferKind::Float { .. }) == is_float;
            let members: Vec<usize> =
                (0..self.buffers.len()).filter(|i| of_kind(&self.buffers[*i])).collect();
            let demand = |i: &usize| Demand {
                num_elements: self.buffers[*i].num_elements,
                first_phase: lifetimes[*i].0,
                last_phase: lifetimes[*i].1,
            };
            let (offsets, total) = lay_out(&members.iter().map(demand).collect::<Vec<_>>());
            for (i, offset) in members.into_iter().zip(offsets) {
                self.buffers[i].offset = offset;
            }
            total
        };
        (place(true), place(false))
    }
}
