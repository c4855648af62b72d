//! The source formats with their names and block sizes, and the errors of weights.

use std::fmt;
use std::str::FromStr;

use super::codes::has_ready_quants;
use super::float::FloatFormat;
use super::int::IntFormat;

/// Defines [`Format`] and `dispatch_format!` from the table below. A line has a format's name, its
/// kind, `float` ([`FloatFormat`]) or `int` ([`IntFormat`]), and the type that implements it. After `as` stands a
/// format whose kernels also compute the products of this one, because they multiply the same form.
macro_rules! formats {
    ($d:tt $($(#[$doc:meta])* $name:ident: $kind:ident $layout:path $(as $kernels:path)?;)*) => {
        /// A storage format of GGUF (ggml's `docs/gguf.md`, with block layouts in `ggml-common.h`) or, for the floats,
        /// of safetensors. The affine ones hold groups of integers of other checkpoints.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types)] // the names that every GGUF tool prints
        pub enum Format {
            $($(#[$doc])* $name,)*
        }

        impl Format {
            pub const ALL: [Format; [$(Format::$name),*].len()] = [$(Format::$name),*];

            /// The name that GGUF tools use, such as `Q4_1`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Format::$name => stringify!($name),)*
                }
            }
        }

        /// Calls `$int::<F>` or `$float::<F>` with the type `F` of a [`Format`].
        macro_rules! dispatch_format {
            ($d format:expr, int $d int:ident, float $d float:ident, ($d($d argument:expr),* $d(,)?)) => {
                match $d format {
                    $($crate::pack::Format::$name => $crate::pack::call_kind!(
                        $kind, int $d int, float $d float, $layout, ($d($d argument),*)
                    ),)*
                }
            };
        }
        pub(crate) use dispatch_format;

        impl Format {
            /// Calls the visitor with the type of this format and with the one whose kernels compute its products.
            pub fn visit_kernels<V: KernelVisitor>(self, visitor: V) {
                match self {
                    $(Format::$name => visit_kind!($kind, visitor, $layout $(as $kernels)?),)*
                }
            }
        }

        $($(const _: () = assert!(has_form_of::<$layout, $kernels>());)?)*
    };
}

/// Returns true if kernels multiply the same form of two formats.
const fn has_form_of<A: IntFormat, B: IntFormat>() -> bool {
    A::GROUP == B::GROUP
        && A::NIBBLES == B::NIBBLES
        && A::MAX_QUANT <= B::MAX_QUANT
        && has_ready_quants::<A>() == has_ready_quants::<B>()
        && A::ZERO_POINT == B::ZERO_POINT
        && A::HALF_SCALES == B::HALF_SCALES
        && A::HAS_MIN == B::HAS_MIN
}

/// Calls the function for the kind of a format.
macro_rules! call_kind {
    (int, int $int:ident, float $float:ident, $layout:path, $arguments:tt) => { $int::<$layout> $arguments };
    (float, int $int:ident, float $float:ident, $layout:path, $arguments:tt) => { $float::<$layout> $arguments };
}
pub(crate) use call_kind;

/// Calls the visitor's function for the kind of a line of the table.
macro_rules! visit_kind {
    (int, $visitor:ident, $layout:path) => {
        $visitor.int::<$layout, $layout>()
    };
    (int, $visitor:ident, $layout:path as $kernels:path) => {
        $visitor.int::<$layout, $kernels>()
    };
    (float, $visitor:ident, $layout:path) => {
        $visitor.float::<$layout>()
    };
}

/// A computation that is compiled for each format; see [`Format::visit_kernels`].
pub trait KernelVisitor {
    fn int<F: IntFormat, K: IntFormat>(self);
    fn float<F: FloatFormat>(self);
}

// A new format needs a file with its block layout, and a line here.
formats! { $
    /// IEEE 754 binary32 floats.
    F32: float crate::pack::float::F32;
    /// IEEE 754 binary16 floats.
    F16: float crate::pack::float::F16;
    /// The upper half of binary32.
    BF16: float crate::pack::float::Bf16;
    /// 32 signed bytes and a binary16 scale.
    Q8_0: int crate::pack::q8_0::Q8_0;
    /// 32 nibbles minus 8 and a binary16 scale.
    Q4_0: int crate::pack::q4_0::Q4_0;
    /// 32 nibbles, a binary16 scale and a binary16 minimum.
    Q4_1: int crate::pack::q4_1::Q4_1;
    /// 32 5-bit numbers minus 16 and a binary16 scale.
    Q5_0: int crate::pack::q5_0::Q5_0;
    /// 32 5-bit numbers, a binary16 scale and a binary16 minimum.
    Q5_1: int crate::pack::q5_1::Q5_1;
    /// 256 nibbles in groups of 32 with 6-bit scales and minima.
    Q4_K: int crate::pack::q4_k::Q4K;
    /// 256 5-bit numbers in groups of 32 with 6-bit scales and minima.
    Q5_K: int crate::pack::q5_k::Q5K;
    /// 256 6-bit numbers minus 32 in groups of 16 with 8-bit scales.
    Q6_K: int crate::pack::q6_k::Q6K;
    /// 256 3-bit numbers minus 4 in groups of 16 with 6-bit scales.
    Q3_K: int crate::pack::q3_k::Q3K;
    /// 32 nibbles, indices of levels, and a binary16 scale.
    IQ4_NL: int crate::pack::iq4::Iq4Nl;
    /// 256 nibbles, indices of levels, in groups of 32 with 6-bit scales.
    IQ4_XS: int crate::pack::iq4::Iq4Xs;
    /// 32 floats of 4 bits and a power of two.
    MXFP4: int crate::pack::iq4::Mxfp4 as crate::pack::grid::Iq3S;
    /// 256 numbers of 2 bits in groups of 16 with 4-bit scales and minima.
    Q2_K: int crate::pack::q2_k::Q2K;
    /// 256 numbers -1, 0 and 1, five in a byte, and a binary16 scale.
    TQ1_0: int crate::pack::ternary::Tq1_0 as crate::pack::ternary::Tq2_0;
    /// 256 numbers -1, 0 and 1, four in a byte, and a binary16 scale.
    TQ2_0: int crate::pack::ternary::Tq2_0;
    /// Indices of 256 vectors of 8 elements, with 4-bit scales of groups of 32.
    IQ2_XXS: int crate::pack::grid::Iq2Xxs;
    /// Indices of 512 vectors of 8 elements, with 4-bit scales of groups of 16.
    IQ2_XS: int crate::pack::grid::Iq2Xs;
    /// Indices of 1,024 vectors of 8 elements, with 4-bit scales of groups of 16.
    IQ2_S: int crate::pack::grid::Iq2S as crate::pack::grid::Iq2Xs;
    /// Indices of 256 vectors of 4 elements, with 4-bit scales of groups of 32.
    IQ3_XXS: int crate::pack::grid::Iq3Xxs as crate::pack::grid::Iq2Xxs;
    /// Indices of 512 vectors of 4 elements, with 4-bit scales of groups of 32.
    IQ3_S: int crate::pack::grid::Iq3S;
    /// Indices of 2,048 vectors of 8 elements, with 3-bit scales of groups of 32.
    IQ1_S: int crate::pack::grid::Iq1S as crate::pack::grid::Iq3S;
    /// Indices of 2,048 vectors of 8 elements, with 3-bit scales of groups of 16.
    IQ1_M: int crate::pack::grid::Iq1M as crate::pack::q6_k::Q6K;
    /// 32 nibbles, a binary32 scale and a binary32 minimum.
    AFFINE4: int crate::pack::affine::Affine4 as crate::pack::q4_k::Q4K;
    /// 32 signed bytes, a binary32 scale and a binary32 minimum.
    AFFINE8: int crate::pack::affine::Affine8;
}

impl Format {
    /// Elements per block; 1 for floats. A row is a whole number of blocks.
    pub fn block_elements(self) -> usize {
        fn int<F: IntFormat>() -> usize {
            F::BLOCK_ELEMENTS
        }
        fn float<F: FloatFormat>() -> usize {
            1
        }
        dispatch_format!(self, int int, float float, ())
    }

    pub fn block_bytes(self) -> usize {
        fn int<F: IntFormat>() -> usize {
            F::BLOCK_BYTES
        }
        fn float<F: FloatFormat>() -> usize {
            F::ELEMENT_BYTES
        }
        dispatch_format!(self, int int, float float, ())
    }

    /// Returns true if products with such a weight need a quantised input.
    pub fn needs_quantized_input(self) -> bool {
        !matches!(self, Format::F32 | Format::F16 | Format::BF16)
    }

    /// Returns true if products with such a weight need an input that is rounded to bfloat16.
    pub fn needs_rounded_input(self) -> bool {
        fn int<F: IntFormat>() -> bool {
            false
        }
        fn float<F: FloatFormat>() -> bool {
            F::ROUNDS_INPUT
        }
        dispatch_format!(self, int int, float float, ())
    }

    pub fn row_bytes(self, in_features: usize) -> Result<usize, PackError> {
        if in_features == 0 {
            return Err(PackError::Empty { format: self });
        }
        if !in_features.is_multiple_of(self.block_elements()) {
            let block_elements = self.block_elements();
            return Err(PackError::InFeatures { format: self, in_features, block_elements });
        }
        (in_features / self.block_elements()).checked_mul(self.block_bytes()).ok_or(PackError::TooLarge {
            format: self,
            out_features: 1,
            in_features,
        })
    }

    /// Checks that a weight `[out_features, in_features]` takes `num_bytes`. Returns the bytes of a row.
    pub fn check(
        self,
        num_bytes: usize,
        out_features: usize,
        in_features: usize,
    ) -> Result<usize, PackError> {
        if out_features == 0 {
            return Err(PackError::Empty { format: self });
        }
        let row_bytes = self.row_bytes(in_features)?;
        let expected = row_bytes.checked_mul(out_features).ok_or(PackError::TooLarge {
            format: self,
            out_features,
            in_features,
        })?;
        if num_bytes != expected {
            return Err(PackError::Length {
                format: self,
                out_features,
                in_features,
                expected,
                actual: num_bytes,
            });
        }
        Ok(row_bytes)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = PackError;

    fn from_str(name: &str) -> Result<Self, PackError> {
        let found = Format::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| PackError::UnknownFormat { name: name.to_owned() })
    }
}

/// An error in a weight. The caller adds the tensor's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The format does not exist, or there are no kernels for it.
    #[error("weight format {name:?} is not supported; hint: use one of {}", Format::ALL.map(Format::name).join(", "))]
    UnknownFormat { name: String },
    #[error("a {format} weight has a dimension of 0")]
    Empty { format: Format },
    #[error(
        "`in_features` is {in_features}, but {format} comes in blocks of {block_elements}; hint: the shape or the format is wrong"
    )]
    InFeatures {
        format: Format,
        in_features: usize,
        /// Elements per block, of which `in_features` must be a multiple.
        block_elements: usize,
    },
    #[error(
        "a {format} weight of shape [{out_features}, {in_features}] takes {expected} bytes, got {actual}; hint: the file is truncated or the shape is wrong"
    )]
    Length {
        format: Format,
        out_features: usize,
        in_features: usize,
        /// Bytes that a weight of this shape has.
        expected: usize,
        actual: usize,
    },
    /// The size exceeds the address space.
    #[error("a {format} weight of shape [{out_features}, {in_features}] exceeds the address space")]
    TooLarge { format: Format, out_features: usize, in_features: usize },
    /// The interleaved rows are not whole heads.
    #[error(
        "cannot divide {num_rows} interleaved rows into heads of {head_size}, {rotary_size} of them rotated"
    )]
    Heads { num_rows: usize, head_size: usize, rotary_size: usize },
    #[error("cannot quantise {from} to {to}; hint: only floats, to Q8_0 or Q4_1")]
    Quantize { from: Format, to: Format },
    #[error("a number is not finite or is too large for {to}")]
    NotFinite { to: Format },
}
