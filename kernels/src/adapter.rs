//! Adapters: low-rank changes of a model's weights, packed for steps.
//!
//! A weight W `[N, K]` with an adapter of rank R is W + scale · B A, where A is `[R, K]` and B is `[N, R]`. A step
//! computes B (scale · A x) for the rows of the sequences that use the adapter and adds it to their products with W, so
//! the bits of a row depend on nothing but the row and its adapter.

mod narrow;

use std::collections::BTreeMap;

use crate::pack::{Format, PackError, PackedWeight, SourceRows, TILE};
use crate::program::{AdaptedProduct, AdaptedWeight, WeightId};

/// Rows of B that are multiplied at once. Their results for a block of rows fit a thread's scratch memory.
pub(crate) const PART_ROWS: usize = 8 * TILE;

/// What an adapter adds to one weight.
#[derive(Debug)]
pub(crate) struct Factors {
    /// A, `[R, K]`.
    pub(crate) down: PackedWeight,
    /// B, `[N, R]`, in parts of [`PART_ROWS`] rows.
    pub(crate) up: Vec<PackedWeight>,
    pub(crate) scale: f32,
    num_outputs: usize,
}

/// All changes that an adapter makes to a model.
#[derive(Debug, Default)]
pub struct Adapter {
    factors: BTreeMap<usize, Factors>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    #[error("weight {weight} of the adapter: {source}")]
    Weight { weight: usize, source: PackError },
    #[error("weight {weight} takes no adapter")]
    NotAdapted { weight: usize },
    #[error("the adapter's matrices for weight {weight} have shape {actual}, expected {expected}")]
    Shape { weight: usize, actual: String, expected: String },
    #[error("there is no slot {slot}; the slots are 1 to {num_slots}")]
    UnknownSlot { slot: usize, num_slots: usize },
    #[error("slot {slot} has no adapter")]
    Empty { slot: usize },
    #[error("a started sequence uses slot {slot}")]
    InUse { slot: usize },
    #[error("the scale of an adapter is {scale}, expected a finite number")]
    Scale { scale: String },
}

impl Adapter {
    /// Adds the change of one weight: A and B in a format of floats. B's rows may be in the order of a file.
    pub fn add(
        &mut self,
        weight: WeightId,
        (format, down): (Format, &SourceRows<'_>),
        (up_format, up): (Format, &SourceRows<'_>),
        num_inputs: usize,
        scale: f32,
    ) -> Result<(), AdapterError> {
        let fail = |source| AdapterError::Weight { weight: weight.0, source };
        let (rank, num_outputs) = (down.num_rows(), up.num_rows());
        let narrow = if up_format == Format::BF16 { narrow::to_f16(up, rank) } else { None };
        let (scale, narrow_rows, up_format) = match &narrow {
            Some((bytes, factor)) => {
                let rows = SourceRows::new(Format::F16, bytes, num_outputs, rank).map_err(fail)?;
                (scale * factor, Some(rows), Format::F16)
            }
            None => (scale, None, up_format),
        };
        let up = narrow_rows.as_ref().unwrap_or(up);
        let down = PackedWeight::pack_rows(format, down, 0..rank, num_inputs).map_err(fail)?;
        let parts = (0..num_outputs).step_by(PART_ROWS);
        let parts = parts.map(|first| {
            PackedWeight::pack_rows(up_format, up, first..num_outputs.min(first + PART_ROWS), rank)
        });
        let up = parts.collect::<Result<Vec<_>, _>>().map_err(fail)?;
        self.factors.insert(weight.0, Factors { down, up, scale, num_outputs });
        Ok(())
    }

    pub(crate) fn factors(&self, weight: &AdaptedWeight) -> Option<&Factors> {
        self.factors.get(&weight.weight.0)
    }

    /// Checks that the adapter fits the products of a program.
    pub(crate) fn check(&self, products: &[AdaptedProduct], max_rank: usize) -> Result<(), AdapterError> {
        for (&weight, factors) in &self.factors {
            let mut members = products
                .iter()
                .flat_map(|product| product.weights.iter().map(move |member| (member, product.num_inputs)));
            let Some((member, num_inputs)) = members.find(|(member, _)| member.weight.0 == weight) else {
                return Err(AdapterError::NotAdapted { weight });
            };
            let rank = factors.down.out_features();
            if factors.down.in_features() != num_inputs
                || factors.num_outputs != member.width
                || rank == 0
                || rank > max_rank
            {
                return Err(AdapterError::Shape {
                    weight,
                    actual: format!(
                        "[{rank}, {}] and [{}, {rank}]",
                        factors.down.in_features(),
                        factors.num_outputs
                    ),
                    expected: format!("[R, {num_inputs}] and [{}, R] with R up to {max_rank}", member.width),
                });
            }
        }
        Ok(())
    }
}
