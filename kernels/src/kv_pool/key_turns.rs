//! How the means of int4's keys turn from block to block.
//!
//! Rotary embeddings turn keys by their position, and what keys have in common with them: with m its mean over the
//! positions of a sequence's first block, m turned by the block's first position is its mean over any other one. So
//! `q . (k - m_b)` differs from `q . k` by `q . m_b`, which is one number for all positions of a block, and is added to
//! their scores.

use crate::ops::rope::RopeFrequencies;

/// What the keys of a layer have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyMean {
    /// Nothing that may be taken out: with a soft cap, scores are not relative to each other.
    Zero,
    /// The same at all positions.
    Fixed,
    /// Turns with the position, by these rotary frequencies of the program.
    Turns(usize),
}

/// Rotations of one rotary embedding: of each block `2 * half` numbers, cos then sin of its first position.
#[derive(Clone, Debug)]
struct Table {
    width: usize,
    rows: Vec<f32>,
}

/// By layer, how its mean turns, for as many blocks as a sequence may have.
#[derive(Clone, Debug)]
pub struct KeyTurns {
    layers: Vec<KeyMean>,
    tables: Vec<Table>,
}

impl KeyTurns {
    /// Of layers `layers`, whose turns are of `frequencies`. Memory: 8 bytes a block and rotated pair.
    pub fn new(
        layers: &[KeyMean],
        frequencies: &[RopeFrequencies],
        block_size: usize,
        num_blocks: usize,
    ) -> Self {
        let table = |(index, frequencies): (usize, &RopeFrequencies)| {
            // What no mean turns by is not needed.
            let num_rows = if layers.contains(&KeyMean::Turns(index)) { num_blocks } else { 0 };
            let width = 2 * frequencies.num_pairs();
            let mut rows = vec![0.0; num_rows * width];
            for (block, row) in rows.chunks_exact_mut(width).enumerate() {
                frequencies.fill_turn((block * block_size) as u32, row);
            }
            Table { width, rows }
        };
        Self { layers: layers.to_vec(), tables: frequencies.iter().enumerate().map(table).collect() }
    }

    /// Of `num_layers` layers none of which has a mean that turns.
    pub fn fixed(num_layers: usize) -> Self {
        Self { layers: vec![KeyMean::Fixed; num_layers], tables: Vec::new() }
    }

    /// What a layer's keys have in common.
    pub fn layer(&self, layer: usize) -> KeyMean {
        self.layers[layer]
    }

    /// Cos, then sin, of the turn to the `block`-th block of a sequence; empty if the layer's mean does not turn.
    /// Panics if there are fewer blocks.
    #[inline(always)]
    pub fn row(&self, layer: usize, block: usize) -> &[f32] {
        let KeyMean::Turns(table) = self.layers[layer] else { return &[] };
        let Table { width, rows } = &self.tables[table];
        &rows[block * width..][..*width]
    }
}
