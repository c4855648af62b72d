//! Reads the metadata of [GGUF files](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), but not the tensors.
//!
//! The file is not trusted. Every count is checked against the bytes left before anything is allocated for it, so
//! memory stays within a small multiple of the file's real contents, and within the limits below.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use crate::error::{GgufError, TextError};

const MAGIC: &[u8; 4] = b"GGUF";
/// The versions that have 64-bit lengths.
const SUPPORTED_VERSIONS: [u32; 2] = [2, 3];
/// Most metadata keys. Real files have some tens.
const MAX_KEYS: u64 = 65_536;
/// Longest key in bytes, from the specification.
const MAX_KEY_BYTES: u64 = 65_535;
/// Longest string in bytes. The longest real ones are chat templates of some tens of KiB.
const MAX_STRING_BYTES: u64 = 16 << 20;
/// Most elements of all arrays together. A vocabulary of 256,000 with merges and scores has 1.5 million.
const MAX_ARRAY_ELEMENTS: u64 = 8 << 20;
/// Greatest depth of nested arrays.
const MAX_ARRAY_DEPTH: u32 = 4;
/// Size of the shortest key-value pair, which has a key length, a type and one byte of value.
const MIN_PAIR_BYTES: u64 = 8 + 4 + 1;
/// Size of the shortest tensor description, which has a name length, dimensions, a type and an offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// A metadata value. The file's sizes of integers and floats are not kept.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each variant is named after its type")]
pub enum GgufValue {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Array(GgufArray),
}

impl GgufValue {
    /// Returns the type's name with its article, for error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) | Self::Signed(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a bool",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
        }
    }
}

/// An array of metadata values of one type. Unsigned 64-bit integers beyond `i64::MAX` become `i64::MAX`.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each variant is named after its type")]
pub enum GgufArray {
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
    Arrays(Vec<GgufArray>),
}

#[derive(Debug, Clone, Default)]
pub struct GgufMetadata {
    values: HashMap<String, GgufValue>,
}

impl GgufMetadata {
    pub fn open(path: &Path) -> Result<Self, TextError> {
        let read_error = |source| TextError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(read_error)?;
        // SAFETY: the map is read-only and lives only in this function, and no reference into it is kept. If another
        // process truncates the file meanwhile, this process gets SIGBUS, which the launcher handles like any crash.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(read_error)?;
        Self::parse(&map).map_err(|source| TextError::Gguf { path: path.to_owned(), source })
    }

    /// Reads the metadata at the beginning of `bytes`, which must be the whole file, because counts are checked against
    /// its length.
    pub fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut reader = Reader { bytes, offset: 0, array_elements_left: MAX_ARRAY_ELEMENTS };
        if reader.take(4)? != MAGIC {
            return Err(GgufError { problem: "the file does not begin with `GGUF`".into(), offset: 0 });
        }
        let version = reader.u32()?;
        if !SUPPORTED_VERSIONS.contains(&version) {
            let hint =
                if SUPPORTED_VERSIONS.contains(&version.swap_bytes()) { " (big-endian file)" } else { "" };
            return reader.fail(
                4,
                format!("version {version}{hint} is not supported; supported versions are 2 and 3"),
            );
        }
        let num_tensors = reader.u64()?;
        let num_keys = reader.u64()?;
        reader.check_count("tensors", num_tensors, MIN_TENSOR_BYTES, u64::MAX)?;
        reader.check_count("metadata keys", num_keys, MIN_PAIR_BYTES, MAX_KEYS)?;

        let mut values = HashMap::with_capacity(num_keys as usize);
        for _ in 0..num_keys {
            let offset = reader.offset;
            let key = reader.string(MAX_KEY_BYTES)?;
            let type_id = reader.u32()?;
            let value = reader.value(type_id)?;
            if values.contains_key(&key) {
                return reader.fail(offset, format!("metadata key `{key}` occurs twice"));
            }
            values.insert(key, value);
        }
        Ok(Self { values })
    }

    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.values.get(key)
    }

    pub fn remove(&mut self, key: &str) -> Option<GgufValue> {
        self.values.remove(key)
    }

    /// Sets the value of a key.
    pub fn set(&mut self, key: &str, value: GgufValue) {
        self.values.insert(key.to_owned(), value);
    }
}

/// A bounds-checked cursor over the file.
struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
    array_elements_left: u64,
}

impl<'a> Reader<'a> {
    fn fail<T>(&self, offset: usize, problem: String) -> Result<T, GgufError> {
        Err(GgufError { problem, offset })
    }

    fn bytes_left(&self) -> u64 {
        (self.bytes.len() - self.offset) as u64
    }

    fn take(&mut self, num_bytes: usize) -> Result<&'a [u8], GgufError> {
        let rest = &self.bytes[self.offset..];
        let Some(taken) = rest.get(..num_bytes) else {
            return self.fail(
                self.offset,
                format!(
                    "the file ends where {num_bytes} more bytes are needed; hint: check that the download is complete"
                ),
            );
        };
        self.offset += num_bytes;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Checks a count against its limit and against the bytes left.
    fn check_count(&self, what: &str, count: u64, bytes_each: u64, limit: u64) -> Result<(), GgufError> {
        if count > limit {
            return self
                .fail(self.offset, format!("the file claims {count} {what}, but the limit is {limit}"));
        }
        let left = self.bytes_left();
        if count.checked_mul(bytes_each).is_none_or(|needed| needed > left) {
            return self.fail(
                self.offset,
                format!(
                    "the file claims {count} {what}, but only {left} bytes follow; hint: check that the download is \
                     complete"
                ),
            );
        }
        Ok(())
    }

    fn string(&mut self, limit: u64) -> Result<String, GgufError> {
        let offset = self.offset;
        let num_bytes = self.u64()?;
        self.check_count("bytes of text", num_bytes, 1, limit)?;
        match std::str::from_utf8(self.take(num_bytes as usize)?) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => self.fail(offset + 8 + error.valid_up_to(), "text is not UTF-8".into()),
        }
    }

    fn bool(&mut self) -> Result<bool, GgufError> {
        let offset = self.offset;
        match self.take(1)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => self.fail(offset, format!("a bool is {other}, not 0 or 1")),
        }
    }

    fn value(&mut self, type_id: u32) -> Result<GgufValue, GgufError> {
        Ok(match ValueType::from_id(type_id, self)? {
            ValueType::U8 => GgufValue::Unsigned(self.array::<1>()?[0].into()),
            ValueType::U16 => GgufValue::Unsigned(u16::from_le_bytes(self.array()?).into()),
            ValueType::U32 => GgufValue::Unsigned(self.u32()?.into()),
            ValueType::U64 => GgufValue::Unsigned(self.u64()?),
            ValueType::I8 => GgufValue::Signed(i8::from_le_bytes(self.array()?).into()),
            ValueType::I16 => GgufValue::Signed(i16::from_le_bytes(self.array()?).into()),
            ValueType::I32 => GgufValue::Signed(i32::from_le_bytes(self.array()?).into()),
            ValueType::I64 => GgufValue::Signed(i64::from_le_bytes(self.array()?)),
            ValueType::F32 => GgufValue::Float(f32::from_le_bytes(self.array()?).into()),
            ValueType::F64 => GgufValue::Float(f64::from_le_bytes(self.array()?)),
            ValueType::Bool => GgufValue::Bool(self.bool()?),
            ValueType::String => GgufValue::String(self.string(MAX_STRING_BYTES)?),
            ValueType::Array => GgufValue::Array(self.list(1)?),
        })
    }

    fn list(&mut self, depth: u32) -> Result<GgufArray, GgufError> {
        if depth > MAX_ARRAY_DEPTH {
            return self.fail(self.offset, format!("arrays are nested deeper than {MAX_ARRAY_DEPTH}"));
        }
        let type_id = self.u32()?;
        let element = ValueType::from_id(type_id, self)?;
        let count = self.u64()?;
        self.check_count("array elements", count, element.min_bytes(), self.array_elements_left)?;
        self.array_elements_left -= count;
        Ok(match element {
            ValueType::U8 => self.integers(count, |[b]: [u8; 1]| b.into())?,
            ValueType::I8 => self.integers(count, |b| i8::from_le_bytes(b).into())?,
            ValueType::U16 => self.integers(count, |b| u16::from_le_bytes(b).into())?,
            ValueType::I16 => self.integers(count, |b| i16::from_le_bytes(b).into())?,
            ValueType::U32 => self.integers(count, |b| u32::from_le_bytes(b).into())?,
            ValueType::I32 => self.integers(count, |b| i32::from_le_bytes(b).into())?,
            ValueType::U64 => {
                self.integers(count, |b| i64::try_from(u64::from_le_bytes(b)).unwrap_or(i64::MAX))?
            }
            ValueType::I64 => self.integers(count, i64::from_le_bytes)?,
            ValueType::F32 => {
                GgufArray::Floats(self.collect(count, |r| Ok(f32::from_le_bytes(r.array()?).into()))?)
            }
            ValueType::F64 => GgufArray::Floats(self.collect(count, |r| Ok(f64::from_le_bytes(r.array()?)))?),
            ValueType::Bool => GgufArray::Bools(self.collect(count, Self::bool)?),
            ValueType::String => GgufArray::Strings(self.collect(count, |r| r.string(MAX_STRING_BYTES))?),
            ValueType::Array => GgufArray::Arrays(self.collect(count, |r| r.list(depth + 1))?),
        })
    }

    fn integers<const N: usize>(
        &mut self,
        count: u64,
        from_bytes: impl Fn([u8; N]) -> i64,
    ) -> Result<GgufArray, GgufError> {
        Ok(GgufArray::Integers(self.collect(count, |r| Ok(from_bytes(r.array()?)))?))
    }

    /// Reads `count` elements. The count must have been checked against the bytes left.
    fn collect<T>(
        &mut self,
        count: u64,
        mut read: impl FnMut(&mut Self) -> Result<T, GgufError>,
    ) -> Result<Vec<T>, GgufError> {
        let mut out = Vec::with_capacity(count as usize);
        for _ in 0..count {
            out.push(read(self)?);
        }
        Ok(out)
    }
}

#[derive(Debug, Clone, Copy)]
enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    fn from_id(id: u32, reader: &Reader<'_>) -> Result<Self, GgufError> {
        Ok(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            other => return reader.fail(reader.offset - 4, format!("value type {other} is unknown")),
        })
    }

    /// Returns the size of the shortest element of an array.
    fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}
