//! Rotation of the key means from block to block, for int4.
//!
//! Rotary embeddings rotate keys by their position, and with them the mean of the keys: if m is the mean over the
//! positions of a sequence's first block, the mean over another block is m rotated by that block's first position. So
//! `q . (k - m_b)` differs from `q . k` by `q . m_b`, a single number for all positions of the block, which is added
//! to their scores.

use crate::ops::rope::RopeFrequencies;

/// The position dependence of the mean of a layer's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyMean {
    /// No mean is subtracted: with a soft cap, adding a constant to all scores changes the probabilities.
    Zero,
    /// The mean is the same at all positions.
    Fixed,
    /// The mean rotates with the position, by the rotary frequencies with this index in the program.
    Turns(usize),
}

/// The rotations of one rotary embedding. A row has the cos, then the sin, of a block's first position.
#[derive(Clone, Debug)]
struct Table {
    width: usize,
    rows: Vec<f32>,
}

/// The rotations of all layers' key means, for every block of the longest sequence.
#[derive(Clone, Debug)]
pub struct KeyTurns {
    layers: Vec<KeyMean>,
    tables: Vec<Table>,
}

impl KeyTurns {
    /// Computes the rotations of `layers`, which index into `frequencies`. Takes 8 bytes per block and rotated pair.
    pub fn new(
        layers: &[KeyMean],
        frequencies: &[RopeFrequencies],
        block_size: usize,
        num_blocks: usize,
    ) -> Self {
        let table = |(index, frequencies): (usize, &RopeFrequencies)| {
            // Frequencies that rotate no mean need no rows.
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

    pub fn fixed(num_layers: usize) -> Self {
        Self { layers: vec![KeyMean::Fixed; num_layers], tables: Vec::new() }
    }

    pub(super) fn layer(&self, layer: usize) -> KeyMean {
        self.layers[layer]
    }

    /// The cos, then the sin, of the rotation to block `block` of a sequence; empty if the layer's mean does not
    /// rotate. Panics if there are fewer blocks.
    #[inline(always)]
    pub fn row(&self, layer: usize, block: usize) -> &[f32] {
        let KeyMean::Turns(table) = self.layers[layer] else { return &[] };
        let Table { width, rows } = &self.tables[table];
        &rows[block * width..][..*width]
    }
}
