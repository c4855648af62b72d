//! CPU kernels and the step executor of Trunkline. `docs/parts/kernels.md` describes the design.
//!
//! [`program`] is a model as a list of instructions, [`executor`] runs it for the chunks of a step on a pool of
//! [`threads`], and [`sampling`] chooses tokens. The kernels are crates of their own that this one re-exports: the
//! formats of weights and the KV pool in `core`, [`linear`] and [`attention`]. It may use them, the contract and the
//! store. Begin with [`executor`] and [`program`].
//!
//! ```
//! use trunkline_kernels::isa::Isa;
//! use trunkline_kernels::linear::{FloatRows, LinearInput, LinearOutput, linear};
//! use trunkline_kernels::pack::{Format, PackedWeight};
//! use trunkline_kernels::shared_mut::SharedMut;
//!
//! // y = x * w^T with w [3, 2].
//! let w: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|value| value.to_le_bytes()).collect();
//! let w = PackedWeight::pack(Format::F32, &w, 3, 2)?;
//! let x = [1.0, 10.0];
//! let mut y = [0.0; 3];
//! let input = LinearInput::Float(FloatRows { values: &x, row_stride: 2 });
//! let out = LinearOutput { values: SharedMut::new(&mut y), row_stride: 3 };
//! // SAFETY: no other thread uses `y`.
//! unsafe { linear(Isa::detect()?, &w, input, 0..1, 0..w.num_tiles(), out, None) };
//! assert_eq!(y, [21.0, 43.0, 65.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod adapter;
pub mod attention;
pub mod cpus;
mod direct_file;
pub mod executor;
pub mod kv_spill;
pub mod page_sums;
pub mod program;
pub mod sampling;
pub mod threads;
pub mod weight_cache;
pub mod weight_stream;

pub use trunkline_kernels_core::{aligned, isa, kv_pool, ops, pack, shared_mut};
pub use trunkline_kernels_linear as linear;

/// Version of the numerics, incremented whenever the bits of any result change. Stored K and V of another version must
/// not be used.
pub const NUMERICS_VERSION: u32 = 10;
