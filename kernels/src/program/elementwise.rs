//! Functions of single elements. The first operand takes the result.

use crate::isa::Isa;
use crate::ops::add::{add_in_place, mul_in_place};
use crate::ops::gelu::{gelu_erf_in_place, gelu_in_place, gelu_mul_in_place};
use crate::ops::relu_squared::relu_squared_in_place;
use crate::ops::scale::scale_in_place;
use crate::ops::silu_mul::{
    SwigluClamp, clamped_swiglu_in_place, sigmoid_in_place, silu_in_place, silu_mul_in_place,
};
use crate::ops::tanh::soft_cap_in_place;

/// A function of each element of a row; `crate::ops` defines them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    Gelu,
    GeluErf,
    ReluSquared,
    Silu,
    Sigmoid,
    Scale(f32),
    /// Computes tanh with a cap of 1.
    SoftCap(f32),
}

impl Unary {
    pub(super) fn name(self) -> &'static str {
        match self {
            Unary::Gelu | Unary::GeluErf => "gelu",
            Unary::ReluSquared => "relu squared",
            Unary::Silu => "silu",
            Unary::Sigmoid => "sigmoid",
            Unary::Scale(_) => "scale",
            Unary::SoftCap(_) => "soft cap",
        }
    }

    pub(crate) fn apply(self, isa: Isa, x: &mut [f32]) {
        match self {
            Unary::Gelu => gelu_in_place(isa, x),
            Unary::GeluErf => gelu_erf_in_place(isa, x),
            Unary::ReluSquared => relu_squared_in_place(isa, x),
            Unary::Silu => silu_in_place(isa, x),
            Unary::Sigmoid => sigmoid_in_place(isa, x),
            Unary::Scale(factor) => scale_in_place(isa, x, factor),
            Unary::SoftCap(cap) => soft_cap_in_place(isa, x, cap),
        }
    }
}

/// A function of the elements of two rows. Gates come first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Binary {
    Add,
    Mul,
    SiluMul,
    GeluMul,
    ClampedSwiglu(SwigluClamp),
}

impl Binary {
    pub(super) fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Mul => "mul",
            Binary::SiluMul => "silu mul",
            Binary::GeluMul => "gelu mul",
            Binary::ClampedSwiglu(_) => "clamped swiglu",
        }
    }

    pub(crate) fn apply(self, isa: Isa, x: &mut [f32], y: &[f32]) {
        match self {
            Binary::Add => add_in_place(isa, x, y),
            Binary::Mul => mul_in_place(isa, x, y),
            Binary::SiluMul => silu_mul_in_place(isa, x, y),
            Binary::GeluMul => gelu_mul_in_place(isa, x, y),
            Binary::ClampedSwiglu(clamp) => clamped_swiglu_in_place(isa, x, y, clamp),
        }
    }
}
