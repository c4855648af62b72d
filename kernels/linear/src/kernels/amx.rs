//! Products of bfloat16 with AMX.
//!
//! `tdpbf16ps` multiplies 16 rows with 16 output features over a run of 32 elements: 16 vectors of pairs. From
//! 0 it adds the products of the first elements of all pairs, in order, and those of the second elements. Then it adds
//! the sum of both to the total. Each addition is rounded once. That is the order of [this crate](crate), because the
//! packed layout pairs element `v` of a run with element `v + 16`. The instruction takes subnormal numbers for 0, which
//! do not occur (see [`SMALLEST_BF16`](trunkline_kernels_core::pack::float::SMALLEST_BF16)).
//!
//! The compiler knows the registers of tiles only as ones that assembly overwrites. It never uses them itself, so that
//! they keep their shapes and contents from one block of assembly to the next.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{FloatPanel, TileOutput};
use trunkline_kernels_core::pack::float::{Bf16, FloatFormat, RUN};
use trunkline_kernels_core::pack::{TILE, Tile};

/// The most tiles of weights that are multiplied at once.
pub(crate) const TILES: usize = 2;
/// Rows of a register.
const ROWS: usize = 16;
/// Bytes of a row of a register.
const ROW_BYTES: usize = 64;

/// Rows that are multiplied at once, in two registers.
const BLOCK: usize = 2 * ROWS;
/// Bytes of a tile of weights over one run.
const RUN_BYTES: usize = RUN / 2 * TILE * Bf16::LANE_BYTES;

const _: () = assert!(RUN_BYTES == ROWS * ROW_BYTES && RUN * Bf16::ELEMENT_BYTES == ROW_BYTES);

/// The shapes of the registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    num_rows: [u8; 16],
}

impl Shapes {
    /// Registers 0 to 3 hold sums, of the two tiles of weights for the first rows and then for the other ones. 4 and 5
    /// hold rows, 6 and 7 weights.
    fn new(num_rows: usize, num_lanes: usize) -> Self {
        let mut shapes =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], num_rows: [0; 16] };
        // A register that is not used must have neither rows nor bytes.
        let mut set = |register: usize, rows: usize, bytes: usize| {
            if rows > 0 && bytes > 0 {
                (shapes.num_rows[register], shapes.row_bytes[register]) = (rows as u8, bytes as u16);
            }
        };
        for half in 0..2 {
            let rows = num_rows.saturating_sub(half * ROWS).min(ROWS);
            set(4 + half, rows, ROW_BYTES);
            for tile in 0..TILES {
                let lanes = num_lanes.saturating_sub(tile * TILE).min(TILE);
                set(2 * half + tile, rows, lanes * size_of::<f32>());
                set(6 + tile, ROWS, lanes * Bf16::LANE_BYTES);
            }
        }
        shapes
    }

    /// # Safety
    /// The CPU must have AMX, and this process the permission to use it.
    unsafe fn load(&self) {
        // SAFETY: the caller guarantees the conditions.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) }
    }
}

/// Up to [`BLOCK`] rows and [`TILES`] tiles of weights.
struct Block {
    num_rows: usize,
    num_tiles: usize,
    num_runs: usize,
    x: *const u8,
    x_stride: usize,
    weights: [*const u8; TILES],
    out: *mut u8,
    out_stride: usize,
}

/// Multiplies rows of pairs with up to [`TILES`] adjacent tiles of weights. `out` begins with the first lane of the
/// first tile.
///
/// # Safety
/// The conditions are those of [`super`]. The CPU must have AMX, and this process the permission to use it.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn linear_bf16(tiles: &[Tile<'_>], rows: &FloatPanel<'_>, out: &TileOutput<'_>) {
    let num_runs = rows.in_features / RUN;
    assert!((1..=TILES).contains(&tiles.len()) && rows.in_features.is_multiple_of(RUN));
    assert!(tiles.iter().all(|tile| tile.quants.len() >= num_runs * RUN_BYTES));
    assert!(rows.values.len() >= (rows.num_rows - 1) * rows.row_stride + rows.in_features);
    assert!(out.num_lanes > (tiles.len() - 1) * TILE && out.num_lanes <= tiles.len() * TILE);
    let mut shaped_for = 0;
    for first_row in (0..rows.num_rows).step_by(BLOCK) {
        let num_rows = BLOCK.min(rows.num_rows - first_row);
        let block_out = out.row(first_row);
        // SAFETY: rows, tiles and outputs are within the lengths that are checked or that the caller guarantees.
        unsafe {
            if num_rows != shaped_for {
                Shapes::new(num_rows, out.num_lanes).load();
                shaped_for = num_rows;
            }
            let block = Block {
                num_rows,
                num_tiles: tiles.len(),
                num_runs,
                x: rows.values.as_ptr().add(first_row * rows.row_stride).cast(),
                x_stride: rows.row_stride * size_of::<f32>(),
                weights: [tiles[0].quants.as_ptr(), tiles[tiles.len() - 1].quants.as_ptr()],
                out: block_out.values.cast(),
                out_stride: out.row_stride * size_of::<f32>(),
            };
            multiply(&block);
            if let Some(bias) = out.bias {
                add_bias(bias, num_rows, &block_out);
            }
        }
    }
    // SAFETY: as above. Without contents, switching between threads does not save the registers.
    unsafe { asm!("tilerelease", options(nostack, nomem)) }
}

/// Calls `$do!` with the register, the first row and the tile of all sums of a block.
macro_rules! each_sum {
    ($block:ident, $do:ident) => {
        $do!("tmm0", 0, 0);
        if $block.num_tiles > 1 {
            $do!("tmm1", 0, 1);
        }
        if $block.num_rows > ROWS {
            $do!("tmm2", ROWS, 0);
            if $block.num_tiles > 1 {
                $do!("tmm3", ROWS, 1);
            }
        }
    };
}

/// Defines the loop over runs for a number of registers of rows and tiles.
macro_rules! multiply_runs {
    ($block:ident, $($line:literal)*) => {
        asm!(
            "2:",
            $($line,)*
            "add {x0}, 64",
            "add {x1}, 64",
            "add {w0}, 1024",
            "add {w1}, 1024",
            "dec {runs}",
            "jnz 2b",
            x0 = inout(reg) $block.x => _,
            x1 = inout(reg) $block.x.wrapping_add(ROWS * $block.x_stride) => _,
            w0 = inout(reg) $block.weights[0] => _,
            w1 = inout(reg) $block.weights[1] => _,
            x_stride = in(reg) $block.x_stride,
            w_stride = in(reg) ROW_BYTES,
            runs = inout(reg) $block.num_runs => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly),
        )
    };
}

/// # Safety
/// The block must lie within its arrays and have at least one run, and the registers must have its shapes.
unsafe fn multiply(block: &Block) {
    // SAFETY: the caller guarantees the conditions.
    unsafe {
        macro_rules! zero {
            ($register:tt, $row:expr, $tile:literal) => {
                asm!(concat!("tilezero ", $register), out($register) _, options(nostack, nomem))
            };
        }
        each_sum!(block, zero);
        // The hardware prefetcher stops at every page, so a few rows, which wait for weights, prefetch them.
        match (block.num_rows > ROWS, block.num_tiles > 1) {
            (true, true) => multiply_runs!(block,
                "tileloadd tmm6, [{w0} + {w_stride}*1]"
                "tileloadd tmm4, [{x0} + {x_stride}*1]"
                "tdpbf16ps tmm0, tmm4, tmm6"
                "tileloadd tmm7, [{w1} + {w_stride}*1]"
                "tdpbf16ps tmm1, tmm4, tmm7"
                "tileloadd tmm5, [{x1} + {x_stride}*1]"
                "tdpbf16ps tmm2, tmm5, tmm6"
                "tdpbf16ps tmm3, tmm5, tmm7"
            ),
            (true, false) => multiply_runs!(block,
                "tileloadd tmm6, [{w0} + {w_stride}*1]"
                "tileloadd tmm4, [{x0} + {x_stride}*1]"
                "tdpbf16ps tmm0, tmm4, tmm6"
                "tileloadd tmm5, [{x1} + {x_stride}*1]"
                "tdpbf16ps tmm2, tmm5, tmm6"
            ),
            (false, true) => multiply_runs!(block,
                ".irp line,0,64,128,192,256,320,384,448,512,576,640,704,768,832,896,960"
                "prefetcht0 [{w0} + 8192 + \\line]"
                "prefetcht0 [{w1} + 8192 + \\line]"
                ".endr"
                "tileloadd tmm4, [{x0} + {x_stride}*1]"
                "tileloadd tmm6, [{w0} + {w_stride}*1]"
                "tdpbf16ps tmm0, tmm4, tmm6"
                "tileloadd tmm7, [{w1} + {w_stride}*1]"
                "tdpbf16ps tmm1, tmm4, tmm7"
            ),
            (false, false) => multiply_runs!(block,
                ".irp line,0,64,128,192,256,320,384,448,512,576,640,704,768,832,896,960"
                "prefetcht0 [{w0} + 8192 + \\line]"
                ".endr"
                "tileloadd tmm4, [{x0} + {x_stride}*1]"
                "tileloadd tmm6, [{w0} + {w_stride}*1]"
                "tdpbf16ps tmm0, tmm4, tmm6"
            ),
        }
        macro_rules! store {
            ($register:tt, $row:expr, $tile:literal) => {
                asm!(
                    concat!("tilestored [{out} + {stride}*1], ", $register),
                    out = in(reg) block.out.wrapping_add($row * block.out_stride + $tile * ROW_BYTES),
                    stride = in(reg) block.out_stride, options(nostack),
                )
            };
        }
        each_sum!(block, store);
    }
}

/// # Safety
/// `out` must be valid for the rows and its lanes.
#[target_feature(enable = "avx512f")]
unsafe fn add_bias(bias: &[f32], num_rows: usize, out: &TileOutput<'_>) {
    for first in (0..out.num_lanes).step_by(TILE) {
        let lanes = u16::MAX >> (TILE - TILE.min(out.num_lanes - first));
        // SAFETY: the masks limit accesses to the lanes in use, in the output and in the bias.
        unsafe {
            let bias = _mm512_maskz_loadu_ps(lanes, bias.as_ptr().add(first));
            for row in 0..num_rows {
                let sums = out.values.add(row * out.row_stride + first);
                let sum = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, sums), bias);
                _mm512_mask_storeu_ps(sums, lanes, sum);
            }
        }
    }
}
