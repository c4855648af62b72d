//! The source formats by name: block sizes, and what can be wrong with a weight.

use std::fmt;
use std::str::FromStr;

/// A storage format of GGUF (ggml `docs/gguf.md`, block layouts in `ggml-common.h`) and of safetensors (the floats).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // the names that every GGUF tool prints
pub enum Format {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of binary32.
    BF16,
    /// 32 signed bytes and a binary16 scale.
    Q8_0,
    /// 32 nibbles less 8 and a binary16 scale.
    Q4_0,
    /// 32 nibbles, a binary16 scale and a binary16 minimum.
    Q4_1,
    /// 256 nibbles in groups of 32 with 6-bit scales and minima.
    Q4_K,
    /// 256 5-bit numbers in groups of 32 with 6-bit scales and minima.
    Q5_K,
    /// 256 6-bit numbers less 32 in groups of 16 with 8-bit scales.
    Q6_K,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 9] = [
        Format::F32,
        Format::F16,
        Format::BF16,
        Format::Q8_0,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q4_K,
        Format::Q5_K,
        Format::Q6_K,
    ];

    /// As GGUF tools write it: `Q4_1`.
    pub fn name(self) -> &'static str {
        match self {
            Format::F32 => "F32",
            Format::F16 => "F16",
            Format::BF16 => "BF16",
            Format::Q8_0 => "Q8_0",
            Format::Q4_0 => "Q4_0",
            Format::Q4_1 => "Q4_1",
            Format::Q4_K => "Q4_K",
            Format::Q5_K => "Q5_K",
            Format::Q6_K => "Q6_K",
        }
    }

    /// Elements of a block: a row is a whole number of blocks. 1 for floats.
    pub fn block_elements(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => 1,
            Format::Q8_0 | Format::Q4_0 | Format::Q4_1 => 32,
            Format::Q4_K | Format::Q5_K | Format::Q6_K => 256,
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::BF16 => 2,
            Format::Q8_0 => 34,
            Format::Q4_0 => 18,
            Format::Q4_1 => 20,
            Format::Q4_K => 144,
            Format::Q5_K => 176,
            Format::Q6_K => 210,
        }
    }

    /// True if a product with such a weight reads a quantised input, false if it reads f32.
    pub fn needs_quantized_input(self) -> bool {
        !matches!(self, Format::F32 | Format::F16 | Format::BF16)
    }

    /// Bytes of a row of `in_features` elements.
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

    /// Checks that `num_bytes` is what [out_features, in_features] takes; returns the bytes of a row.
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

/// What is wrong with a weight. The tensor's name is the caller's to add.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// No such format, or none that kernels exist for.
    #[error(
        "weight format {name:?} is not supported; hint: use one of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K"
    )]
    UnknownFormat {
        /// The name received.
        name: String,
    },
    /// A dimension is 0.
    #[error("a {format} weight has a dimension of 0")]
    Empty {
        /// Its format.
        format: Format,
    },
    /// A row is not a whole number of blocks.
    #[error(
        "`in_features` is {in_features}, but {format} comes in blocks of {block_elements}; hint: the shape or the format is wrong"
    )]
    InFeatures {
        /// Its format.
        format: Format,
        /// Row length received.
        in_features: usize,
        /// What it must be a multiple of.
        block_elements: usize,
    },
    /// The bytes do not fit the shape.
    #[error(
        "a {format} weight of shape [{out_features}, {in_features}] takes {expected} bytes, got {actual}; hint: the file is truncated or the shape is wrong"
    )]
    Length {
        /// Its format.
        format: Format,
        /// Rows.
        out_features: usize,
        /// Row length.
        in_features: usize,
        /// Bytes that the shape takes.
        expected: usize,
        /// Bytes received.
        actual: usize,
    },
    /// The size does not fit an address.
    #[error("a {format} weight of shape [{out_features}, {in_features}] is larger than memory can be")]
    TooLarge {
        /// Its format.
        format: Format,
        /// Rows.
        out_features: usize,
        /// Row length.
        in_features: usize,
    },
    /// Rows whose order is to be undone are not whole heads.
    #[error("{num_rows} rows are not heads of {head_size} interleaved rows")]
    Heads {
        /// Rows of the weight.
        num_rows: usize,
        /// Rows of a head.
        head_size: usize,
    },
}
