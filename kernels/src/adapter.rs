//! Adapters: low-rank changes of a model's weights, packed for steps.
//!
//! A weight W `[N, K]` with an adapter of rank R is W + scale · B A, where A is `[R, K]` and B is `[N, R]`. A step
//! computes B (scale · A x) for the rows of the sequences that use the adapter and adds it to their products with W, so
//! the bits of a row depend on nothing but the row and its adapter. DoRA multiplies the rows of W + scale · B A by a
//! gain; see [`crate::linear::Gain`].

mod content_hash;
mod narrow;

use std::sync::Arc;

use crate::aligned::AlignedBytes;
use crate::pack::{Format, PackError, PackedWeight, Region, SourceRows, TileMut, WeightLayout};
use crate::program::{AdaptedProduct, AdaptedWeight, WeightId};
pub use content_hash::{StoredTensor, hash_tensors};
use narrow::Narrow;

/// A and B of one weight, in formats of floats. B's rows may be in the order of a file.
pub struct SourceFactors<'a> {
    pub weight: WeightId,
    pub down: (Format, SourceRows<'a>),
    pub up: (Format, SourceRows<'a>),
    /// K, the columns of A. Those of B are the rows of A.
    pub num_inputs: usize,
    pub scale: f32,
    /// `[N]`, the gain of DoRA.
    pub gain: Option<Vec<f32>>,
}

/// The matrices of one weight, in formats that need no rounded input.
#[derive(Debug)]
pub(crate) struct Factors {
    /// A, `[R, K]`.
    pub(crate) down: PackedWeight,
    /// B, `[N, R]`.
    pub(crate) up: PackedWeight,
    pub(crate) scale: f32,
    /// `[N]`, the gain of DoRA.
    pub(crate) gain: Option<Vec<f32>>,
}

/// All changes that an adapter makes to a model.
#[derive(Debug, Default)]
pub struct Adapter {
    /// By the ids of weights.
    factors: Vec<Option<Factors>>,
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
    #[error("the adapter has {actual} gains for weight {weight}, expected {expected}")]
    Gain { weight: usize, actual: usize, expected: usize },
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
    /// Packs an adapter. All matrices share one run of memory, which has huge pages where the system allows.
    pub fn pack(sources: &[SourceFactors<'_>]) -> Result<Self, AdapterError> {
        let mut matrices = Vec::with_capacity(2 * sources.len());
        let mut num_bytes = 0;
        for source in sources {
            let rank = source.down.1.num_rows();
            for ((format, rows), num_columns) in [(&source.down, source.num_inputs), (&source.up, rank)] {
                let matrix = Matrix::new(*format, rows, num_columns, num_bytes);
                let matrix = matrix
                    .map_err(|error| AdapterError::Weight { weight: source.weight.0, source: error })?;
                num_bytes += matrix.layout.num_bytes();
                matrices.push(matrix);
            }
        }
        let (mut bytes, mut converted) = (AlignedBytes::zeroed(num_bytes), Vec::new());
        for (source, pair) in sources.iter().zip(matrices.chunks_exact(2)) {
            for matrix in pair {
                let packed = matrix.pack(bytes.as_mut_slice(), &mut converted);
                packed.map_err(|error| AdapterError::Weight { weight: source.weight.0, source: error })?;
            }
        }
        let region = Arc::new(Region::from(bytes));
        let num_weights = sources.iter().map(|source| source.weight.0 + 1).max().unwrap_or_default();
        let mut factors: Vec<_> = (0..num_weights).map(|_| None).collect();
        for (source, pair) in sources.iter().zip(matrices.chunks_exact(2)) {
            let [down, up] =
                [0, 1].map(|index| PackedWeight::place(pair[index].layout, &region, pair[index].offset));
            let scale = source.scale * pair[0].factor() * pair[1].factor();
            factors[source.weight.0] = Some(Factors { down, up, scale, gain: source.gain.clone() });
        }
        Ok(Self { factors })
    }

    pub(crate) fn factors(&self, weight: &AdaptedWeight) -> Option<&Factors> {
        self.factors.get(weight.weight.0)?.as_ref()
    }

    /// Checks that the adapter fits the products of a program.
    pub(crate) fn check(&self, products: &[AdaptedProduct], max_rank: usize) -> Result<(), AdapterError> {
        for (weight, factors) in self.factors.iter().enumerate() {
            let Some(factors) = factors else { continue };
            let mut members = products
                .iter()
                .flat_map(|product| product.weights.iter().map(move |member| (member, product.num_inputs)));
            let Some((member, num_inputs)) = members.find(|(member, _)| member.weight.0 == weight) else {
                return Err(AdapterError::NotAdapted { weight });
            };
            let rank = factors.down.out_features();
            if factors.down.in_features() != num_inputs
                || factors.up.out_features() != member.width
                || rank == 0
                || rank > max_rank
            {
                return Err(AdapterError::Shape {
                    weight,
                    actual: format!(
                        "[{rank}, {}] and [{}, {rank}]",
                        factors.down.in_features(),
                        factors.up.out_features()
                    ),
                    expected: format!("[R, {num_inputs}] and [{}, R] with R up to {max_rank}", member.width),
                });
            }
            match factors.gain.as_ref().map(Vec::len) {
                Some(actual) if actual != member.width => {
                    return Err(AdapterError::Gain { weight, actual, expected: member.width });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A matrix, and where it is packed.
struct Matrix<'a> {
    rows: &'a SourceRows<'a>,
    num_columns: usize,
    /// The move of its numbers if they become half-precision ones.
    narrow: Option<Narrow>,
    layout: WeightLayout,
    offset: usize,
}

impl<'a> Matrix<'a> {
    fn new(
        format: Format,
        rows: &'a SourceRows<'a>,
        num_columns: usize,
        offset: usize,
    ) -> Result<Self, PackError> {
        let narrow = (format == Format::BF16).then(|| Narrow::new(rows.bytes()));
        let packed_format = if narrow.is_some() { Format::F16 } else { format };
        let layout = WeightLayout::new(packed_format, rows.num_rows(), num_columns)?;
        Ok(Self { rows, num_columns, narrow, layout, offset })
    }

    /// The factor by which products must be multiplied.
    fn factor(&self) -> f32 {
        self.narrow.as_ref().map_or(1.0, |narrow| narrow.factor)
    }

    /// Packs the matrix into its part of `bytes`. `converted` is memory that matrices use in turn.
    fn pack(&self, bytes: &mut [u8], converted: &mut Vec<u8>) -> Result<(), PackError> {
        let rows = match &self.narrow {
            Some(narrow) => {
                converted.resize(self.rows.bytes().len(), 0);
                narrow.convert(self.rows.bytes(), converted);
                self.rows.converted(Format::F16, converted, self.num_columns)?
            }
            None => *self.rows,
        };
        let bytes = &mut bytes[self.offset..][..self.layout.num_bytes()];
        for tile in 0..self.layout.num_tiles() {
            let [quants, scales, mins] = bytes
                .get_disjoint_mut(self.layout.tile_ranges(tile))
                .expect("planes lie apart, inside the run");
            // The numbers are finite, as whoever opens the adapter checks.
            self.layout.pack_tile(tile, |row| rows.row(row), TileMut { quants, scales, mins });
        }
        Ok(())
    }
}
