//! Loops for 64-bit Arm. Rates are inline assembly, so that the compiler removes nothing and every chain has its own
//! register.

use std::arch::asm;
use std::arch::is_aarch64_feature_detected;

use super::{Rate, read};

const CHAINS: usize = 16;
/// Interpreted as two bf16, one f32 or four bytes, the values are small enough that no accumulator overflows.
const OPERAND: u32 = 0x3f80_3f80;

/// Defines a loop of [`CHAINS`] independent chains in registers 0 to 15. Registers 16 and 17 are the operands.
macro_rules! chains {
    ($name:ident, $features:literal, $line:literal) => {
        fn $name(passes: usize) {
            #[target_feature(enable = $features)]
            unsafe fn run(passes: usize) {
                // SAFETY: only declared registers are used, and the caller has checked the features.
                unsafe {
                    asm!(
                        "dup v16.4s, {operand:w}",
                        "dup v17.4s, {operand:w}",
                        ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                        "movi v\\r\\().4s, #0",
                        ".endr",
                        "2:",
                        ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                        $line,
                        ".endr",
                        "subs {passes}, {passes}, #1",
                        "b.ne 2b",
                        operand = in(reg) OPERAND,
                        passes = inout(reg) passes => _,
                        out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _,
                        out("v6") _, out("v7") _, out("v8") _, out("v9") _, out("v10") _, out("v11") _,
                        out("v12") _, out("v13") _, out("v14") _, out("v15") _, out("v16") _, out("v17") _,
                        options(nostack, nomem),
                    );
                }
            }
            // SAFETY: `rates` lists the loop only if the CPU has the features.
            unsafe { run(passes.max(1)) }
        }
    };
}

chains!(f32_neon, "neon", "fmla v\\r\\().4s, v16.4s, v17.4s");
chains!(bf16_neon, "neon,bf16", "bfdot v\\r\\().4s, v16.8h, v17.8h");
chains!(int8_dotprod, "neon,dotprod", "sdot v\\r\\().4s, v16.16b, v17.16b");
chains!(int8_i8mm, "neon,i8mm", "smmla v\\r\\().4s, v16.16b, v17.16b");

pub fn rates() -> Vec<Rate> {
    let mut rates = Vec::new();
    let mut add = |is_there: bool, operation, instruction_set, instruction, run, macs: usize| {
        if is_there {
            rates.push(Rate { operation, instruction_set, instruction, macs_per_pass: CHAINS * macs, run });
        }
    };
    add(true, "f32_fma", "neon", "fmla 4s", f32_neon as fn(usize), 4);
    add(is_aarch64_feature_detected!("bf16"), "bf16_dot", "bf16", "bfdot 4s", bf16_neon, 8);
    add(is_aarch64_feature_detected!("dotprod"), "int8_dot", "dotprod", "sdot 4s", int8_dotprod, 16);
    add(is_aarch64_feature_detected!("i8mm"), "int8_dot", "i8mm", "smmla 4s", int8_i8mm, 32);
    rates
}

pub const READERS: [fn(&[u8]); 1] = [read];
