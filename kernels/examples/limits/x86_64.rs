//! Loops for x86-64. Rates are inline assembly, so that the compiler removes nothing and every chain has its own
//! register.

use std::arch::asm;
use std::arch::x86_64::*;

use trunkline_kernels::isa::{Isa, IsaKind};

use super::Rate;

/// Interpreted as two bf16, one f32 or four bytes, the values are small enough that no accumulator overflows.
const OPERAND: i32 = 0x3f80_3f80;
/// Number of independent chains, more than instructions of any kind can be in flight.
const CHAINS: usize = 12;
/// Prefetch distance of reads, the same as in the kernels.
const PREFETCH_BYTES: usize = 8 << 10;
const LINE_BYTES: usize = 64;

/// Defines a loop of [`CHAINS`] independent chains in registers 0 to 11. Registers 13 and 14 are the operands, and 15
/// holds ones.
macro_rules! chains {
    ($name:ident, $features:literal, $register:literal, $($line:literal),+) => {
        fn $name(passes: usize) {
            #[target_feature(enable = $features)]
            unsafe fn run(passes: usize) {
                // SAFETY: only declared registers are used, and the caller has checked the features.
                unsafe {
                    asm!(
                        "vmovd xmm13, {operand:e}",
                        "vmovd xmm15, {ones:e}",
                        concat!("vpbroadcastd ", $register, "13, xmm13"),
                        concat!("vpbroadcastd ", $register, "14, xmm13"),
                        concat!("vpbroadcastd ", $register, "15, xmm15"),
                        ".irp r,0,1,2,3,4,5,6,7,8,9,10,11",
                        "vpxor xmm\\r, xmm\\r, xmm\\r",
                        ".endr",
                        "2:",
                        ".irp r,0,1,2,3,4,5,6,7,8,9,10,11",
                        $($line,)+
                        ".endr",
                        "dec {passes}",
                        "jnz 2b",
                        operand = in(reg) OPERAND,
                        ones = in(reg) 0x0001_0001,
                        passes = inout(reg) passes => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                        out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
                        out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _,
                        out("xmm15") _,
                        options(nostack, nomem),
                    );
                }
            }
            // SAFETY: `rates` lists the loop only if the CPU has the features.
            unsafe { run(passes.max(1)) }
        }
    };
}

chains!(f32_avx2, "avx2,fma", "ymm", "vfmadd231ps ymm\\r, ymm13, ymm14");
chains!(f32_avx512, "avx512f", "zmm", "vfmadd231ps zmm\\r, zmm13, zmm14");
chains!(bf16_avx512, "avx512f,avx512bf16", "zmm", "vdpbf16ps zmm\\r, zmm13, zmm14");
// AVX2 needs three instructions for four multiply-adds per lane: sums of pairs in 16 bits, their sums in 32 bits, and
// the addition.
chains!(
    int8_avx2,
    "avx2",
    "ymm",
    "vpmaddubsw ymm12, ymm13, ymm14",
    "vpmaddwd ymm12, ymm12, ymm15",
    "vpaddd ymm\\r, ymm\\r, ymm12"
);
chains!(int8_avxvnni, "avx2,avxvnni", "ymm", "{{vex}} vpdpbusd ymm\\r, ymm13, ymm14");
chains!(int8_avx512, "avx512f,avx512vnni", "zmm", "vpdpbusd zmm\\r, zmm13, zmm14");

/// Multiply-adds of a `tdpbf16ps` on full registers: 16 rows, 16 columns and 32 elements.
const TILE_MACS: usize = 16 * 16 * 32;

fn bf16_amx(passes: usize) {
    /// The first palette, and 16 rows of 64 bytes for each of 8 registers.
    #[repr(align(64))]
    struct Shapes([u8; 64]);
    let mut shapes = Shapes([0; 64]);
    shapes.0[0] = 1;
    for register in 0..8 {
        (shapes.0[16 + 2 * register], shapes.0[48 + register]) = (64, 16);
    }
    // SAFETY: only declared registers are used, and `rates` lists the loop only if this process may use AMX.
    unsafe {
        asm!(
            "ldtilecfg [{shapes}]",
            "2:",
            ".irp r,0,1,2,3,0,1,2,3,0,1,2,3",
            "tdpbf16ps tmm\\r, tmm4, tmm5",
            ".endr",
            "dec {passes}",
            "jnz 2b",
            "tilerelease",
            shapes = in(reg) &shapes,
            passes = inout(reg) passes.max(1) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
            options(nostack),
        );
    }
}

const YMM_BYTES: usize = 32;
const ZMM_BYTES: usize = 64;

pub fn rates() -> Vec<Rate> {
    let mut rates = Vec::new();
    let mut add =
        |is_there: bool, operation, instruction_set, instruction, run, register_bytes, element_bytes| {
            if is_there {
                let macs_per_pass = CHAINS * register_bytes / element_bytes;
                rates.push(Rate { operation, instruction_set, instruction, macs_per_pass, run });
            }
        };
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = avx2 && is_x86_feature_detected!("avx512f");
    let avx512_bf16 = avx512 && is_x86_feature_detected!("avx512bf16");
    let avx512_vnni = avx512 && is_x86_feature_detected!("avx512vnni");
    let avx_vnni = avx2 && is_x86_feature_detected!("avxvnni");
    add(avx2, "f32_fma", "avx2", "vfmadd231ps ymm", f32_avx2 as fn(usize), YMM_BYTES, 4);
    add(avx512, "f32_fma", "avx512", "vfmadd231ps zmm", f32_avx512, ZMM_BYTES, 4);
    add(avx512_bf16, "bf16_dot", "avx512", "vdpbf16ps zmm", bf16_avx512, ZMM_BYTES, 2);
    add(avx2, "int8_dot", "avx2", "vpmaddubsw, vpmaddwd, vpaddd ymm", int8_avx2, YMM_BYTES, 1);
    add(avx_vnni, "int8_dot", "avxvnni", "vpdpbusd ymm", int8_avxvnni, YMM_BYTES, 1);
    add(avx512_vnni, "int8_dot", "avx512", "vpdpbusd zmm", int8_avx512, ZMM_BYTES, 1);
    if Isa::new(IsaKind::Amx).is_ok() {
        let macs_per_pass = CHAINS * TILE_MACS;
        let (operation, instruction_set, instruction) = ("bf16_dot", "amx", "tdpbf16ps");
        rates.push(Rate { operation, instruction_set, instruction, macs_per_pass, run: bf16_amx });
    }
    rates
}

/// The ways to read, of which the fastest counts. The hardware prefetcher stops at every page.
pub const READERS: [fn(&[u8]); 2] = [read::<false>, read::<true>];

fn read<const PREFETCH: bool>(bytes: &[u8]) {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature is checked above.
        unsafe { read_avx512::<PREFETCH>(bytes) }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature is checked above.
        unsafe { read_avx2::<PREFETCH>(bytes) }
    } else {
        std::hint::black_box(bytes.iter().fold(0u8, |sum, byte| sum ^ byte));
    }
}

/// Prefetches the 8 cache lines that are [`PREFETCH_BYTES`] after `piece`.
#[inline(always)]
fn prefetch(piece: &[u8]) {
    for line in 0..8 {
        let ahead = piece.as_ptr().wrapping_add(PREFETCH_BYTES + line * LINE_BYTES);
        // SAFETY: a prefetch reads nothing and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn read_avx512<const PREFETCH: bool>(bytes: &[u8]) {
    let mut sums = [_mm512_setzero_si512(); 8];
    for piece in bytes.chunks_exact(8 * LINE_BYTES) {
        if PREFETCH {
            prefetch(piece);
        }
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the i-th line is inside the piece.
            let line = unsafe { _mm512_loadu_si512(piece.as_ptr().add(i * LINE_BYTES).cast()) };
            *sum = _mm512_or_si512(*sum, line);
        }
    }
    std::hint::black_box(sums);
}

#[target_feature(enable = "avx2")]
unsafe fn read_avx2<const PREFETCH: bool>(bytes: &[u8]) {
    let mut sums = [_mm256_setzero_si256(); 8];
    for piece in bytes.chunks_exact(8 * LINE_BYTES) {
        if PREFETCH {
            prefetch(piece);
        }
        for half in piece.chunks_exact(4 * LINE_BYTES) {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the i-th half line is inside the piece.
                let line = unsafe { _mm256_loadu_si256(half.as_ptr().add(i * YMM_BYTES).cast()) };
                *sum = _mm256_or_si256(*sum, line);
            }
        }
    }
    std::hint::black_box(sums);
}
