//! Weights on their way from file bytes to kernel layout.

use std::collections::HashMap;

use super::ProgramError;
use super::graph::{Node, RawWeight, WeightId};
use crate::pack::{Format, PackedWeight, dequantize_row};

/// Weights on their way from file bytes to kernel layout.
pub(super) struct WeightStore {
    raw: Vec<RawWeight>,
    /// Live nodes that have yet to read each weight.
    num_uses: Vec<usize>,
    pub(super) packed: Vec<PackedWeight>,
    packed_by_parts: HashMap<Vec<WeightId>, usize>,
    pub(super) vectors: Vec<Vec<f32>>,
    vectors_by_parts: HashMap<Vec<WeightId>, usize>,
}

impl WeightStore {
    pub(super) fn new(raw: Vec<RawWeight>, nodes: &[Node], is_live: &[bool]) -> Self {
        let mut num_uses = vec![0; raw.len()];
        for (node, is_live) in nodes.iter().zip(is_live) {
            for weight in node.op.weights().iter().filter(|_| *is_live) {
                num_uses[weight.0] += 1;
            }
        }
        Self {
            raw,
            num_uses,
            packed: Vec::new(),
            packed_by_parts: HashMap::new(),
            vectors: Vec::new(),
            vectors_by_parts: HashMap::new(),
        }
    }

    /// Counts a use of each part, and drops the bytes of those that nobody will read again.
    fn release(&mut self, parts: &[WeightId]) {
        for part in parts {
            self.num_uses[part.0] -= 1;
            if self.num_uses[part.0] == 0 {
                self.raw[part.0].bytes = Vec::new();
            }
        }
    }

    pub(super) fn shape(&self, weight: WeightId) -> &[usize] {
        &self.raw[weight.0].shape
    }

    pub(super) fn format(&self, weight: WeightId) -> Format {
        self.raw[weight.0].format
    }

    /// The matrix that computes what `parts` compute, back to back.
    pub(super) fn matrix(&mut self, parts: &[WeightId]) -> Result<usize, ProgramError> {
        let index = match self.packed_by_parts.get(parts) {
            Some(index) => *index,
            None => {
                let fail = |weight: WeightId| move |source| ProgramError::Weight { weight: weight.0, source };
                let pack = |part: &WeightId| {
                    let raw = &self.raw[part.0];
                    PackedWeight::pack(raw.format, &raw.bytes, raw.shape[0], raw.shape[1])
                        .map_err(fail(*part))
                };
                let mut packed = parts.iter().map(pack).collect::<Result<Vec<_>, _>>()?;
                let whole = match packed.len() {
                    1 => packed.remove(0),
                    _ => PackedWeight::concat(&packed.iter().collect::<Vec<_>>()).map_err(fail(parts[0]))?,
                };
                self.packed.push(whole);
                self.packed_by_parts.insert(parts.to_vec(), self.packed.len() - 1);
                self.packed.len() - 1
            }
        };
        self.release(parts);
        Ok(index)
    }

    /// The vector that is `parts` back to back, as f32.
    pub(super) fn vector(&mut self, parts: &[WeightId]) -> Result<usize, ProgramError> {
        let index = match self.vectors_by_parts.get(parts) {
            Some(index) => *index,
            None => {
                let mut vector = Vec::new();
                for part in parts {
                    let raw = &self.raw[part.0];
                    let start = vector.len();
                    vector.resize(start + raw.shape[0], 0.0);
                    dequantize_row(raw.format, &raw.bytes, &mut vector[start..])
                        .map_err(|source| ProgramError::Weight { weight: part.0, source })?;
                }
                self.vectors.push(vector);
                self.vectors_by_parts.insert(parts.to_vec(), self.vectors.len() - 1);
                self.vectors.len() - 1
            }
        };
        self.release(parts);
        Ok(index)
    }
}
