//! Converts weights from the formats of model files to the layout that the kernels read. Values do not change, except
//! that bfloat16 below 2^-50 becomes 0.
#![allow(clippy::extra_unused_type_parameters, reason = "functions of one dispatch have the same parameters")]

pub(crate) mod affine;
mod arrange;
pub mod codes;
mod encode;
pub mod float;
mod format;
pub(crate) mod grid;
pub mod int;
pub(crate) mod iq4;
mod plane;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
pub(crate) mod q4_k;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;
mod region;
mod source;
pub(crate) mod ternary;
mod weight;

pub use encode::quantized_row_bytes;
pub use encode::{encode, quantize_rows};
pub use format::{Format, KernelVisitor, PackError};

pub(crate) use format::{call_kind, dispatch_format};
pub use int::Groups;
pub use plane::Plane;
pub use region::Region;
pub use source::{InterleavedHeads, ReadBytes, SourceBytes, SourceRows};
pub use weight::PackedWeight;
pub use weight::{Tile, TileMut, WeightLayout};

/// Output features whose weights are interleaved, which a kernel computes at once.
pub const TILE: usize = 16;

/// Adjacent weights of one output feature that one lane of an integer dot product takes.
pub const QUAD: usize = 4;

/// Version of the packed layout, incremented whenever the bytes of packed weights change. Weights packed with another
/// version are packed again.
pub const LAYOUT_VERSION: u32 = 6;

/// Dequantises one row in its file's format. Fails unless `row` is exactly a row of `out.len()` elements.
pub fn dequantize_row(format: Format, row: &[u8], out: &mut [f32]) -> Result<(), PackError> {
    use float::dequantize as dequantize_float;
    use int::dequantize as dequantize_int;
    format.check(row.len(), 1, out.len())?;
    dispatch_format!(format, int dequantize_int, float dequantize_float, (row, out));
    Ok(())
}

/// Returns the numbers of whole blocks, or `None` for a format of floats. Fails if the last block is not whole.
pub fn unpack_groups(format: Format, blocks: &[u8]) -> Result<Option<Groups>, PackError> {
    use int::groups as int;
    fn float<F: float::FloatFormat>(_: &[u8]) -> Option<Groups> {
        None
    }
    let num_blocks = blocks.len() / format.block_bytes();
    format.check(blocks.len(), num_blocks, format.block_elements())?;
    Ok(dispatch_format!(format, int int, float float, (blocks)))
}

/// Returns the bytes of a packed matrix.
pub fn packed_bytes(format: Format, out_features: usize, in_features: usize) -> Result<usize, PackError> {
    WeightLayout::new(format, out_features, in_features).map(|layout| layout.num_bytes())
}
