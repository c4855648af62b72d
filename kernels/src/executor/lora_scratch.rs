//! The memory of a thread for the products of adapters.

use super::rows::MAX_ADAPTER_ROWS;
use crate::adapter::PART_ROWS;
use crate::program::Program;

/// Elements between rounded rows beyond their width: a cache line, as in `Lowering::new_rounded_view`.
pub(super) const ROUNDED_PADDING: usize = 16;

/// A thread's memory for the products of adapters; empty if the program takes none.
#[derive(Debug)]
pub(super) struct LoraScratch {
    /// Rows that are rounded for matrices of bfloat16.
    pub(super) rounded: Vec<f32>,
    /// Products of a block of rows with a part of B.
    pub(super) sums: Vec<f32>,
}

impl LoraScratch {
    pub(super) fn new(program: &Program) -> Self {
        let widths = program.adapted.iter().map(|product| product.num_inputs.max(program.max_adapter_rank));
        let rounded = widths.max().map_or(0, |width| MAX_ADAPTER_ROWS * (width + ROUNDED_PADDING));
        let sums = if program.adapted.is_empty() { 0 } else { MAX_ADAPTER_ROWS * PART_ROWS };
        Self { rounded: vec![0.0; rounded], sums: vec![0.0; sums] }
    }
}
