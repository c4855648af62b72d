//! Weights: from the formats of model files to the layout that the kernels read, without changing a number.

pub(crate) mod float;
mod format;
pub(crate) mod int;
mod plane;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
pub(crate) mod q4_k;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;
mod region;
mod source;
mod weight;

pub use format::{Format, PackError};
pub(crate) use plane::Plane;
pub(crate) use region::Region;
pub use source::{SourceBytes, SourceRows};
pub(crate) use source::{check_heads, interleaved_row};
pub use weight::PackedWeight;
pub(crate) use weight::{Tile, TileMut, WeightLayout, group_vectors};

/// Changes whenever a packed weight has other bytes than before, or in another order: weights packed by another version
/// are packed again.
pub const LAYOUT_VERSION: u32 = 1;

/// Calls `$int::<F>` or `$float::<F>` with the type `F` of a [`Format`].
macro_rules! dispatch_format {
    ($format:expr, int $int:ident, float $float:ident, ($($argument:expr),* $(,)?)) => {
        match $format {
            $crate::pack::Format::F32 => $float::<$crate::pack::float::F32>($($argument),*),
            $crate::pack::Format::F16 => $float::<$crate::pack::float::F16>($($argument),*),
            $crate::pack::Format::BF16 => $float::<$crate::pack::float::Bf16>($($argument),*),
            $crate::pack::Format::Q8_0 => $int::<$crate::pack::q8_0::Q8_0>($($argument),*),
            $crate::pack::Format::Q4_0 => $int::<$crate::pack::q4_0::Q4_0>($($argument),*),
            $crate::pack::Format::Q4_1 => $int::<$crate::pack::q4_1::Q4_1>($($argument),*),
            $crate::pack::Format::Q4_K => $int::<$crate::pack::q4_k::Q4K>($($argument),*),
            $crate::pack::Format::Q5_K => $int::<$crate::pack::q5_k::Q5K>($($argument),*),
            $crate::pack::Format::Q6_K => $int::<$crate::pack::q6_k::Q6K>($($argument),*),
        }
    };
}
pub(crate) use dispatch_format;

/// The f32 values of one row as it lies in the file. Fails unless `row` is exactly a row of `out.len()` elements.
pub fn dequantize_row(format: Format, row: &[u8], out: &mut [f32]) -> Result<(), PackError> {
    use float::dequantize as dequantize_float;
    use int::dequantize as dequantize_int;
    format.check(row.len(), 1, out.len())?;
    dispatch_format!(format, int dequantize_int, float dequantize_float, (row, out));
    Ok(())
}
