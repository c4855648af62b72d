//! Reads the messages of a `tokenizer.model`, as far as they matter for encoding:
//! <https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto>.
//!
//! Lengths are checked against the bytes left, and everything but pieces is borrowed from the file.

/// A fault of the encoding, as a whole sentence without its end.
pub type Problem = &'static str;

#[derive(Debug, Default)]
pub struct ModelProto<'a> {
    pub pieces: Vec<Piece<'a>>,
    pub trainer: TrainerSpec,
    pub normalizer: NormalizerSpec<'a>,
    pub denormalizer: NormalizerSpec<'a>,
}

#[derive(Debug)]
pub struct Piece<'a> {
    pub text: &'a str,
    pub score: f32,
    pub kind: u64,
}

#[derive(Debug)]
pub struct TrainerSpec {
    pub model_type: u64,
    pub treat_whitespace_as_suffix: bool,
    pub byte_fallback: bool,
    /// Ids of the tokens that begin, end and pad a text. One that does not exist has an id beyond the vocabulary.
    pub bos_id: u64,
    pub eos_id: u64,
    pub pad_id: u64,
}

impl Default for TrainerSpec {
    fn default() -> Self {
        Self {
            model_type: 1,
            treat_whitespace_as_suffix: false,
            byte_fallback: false,
            bos_id: 1,
            eos_id: 2,
            pad_id: u64::MAX,
        }
    }
}

#[derive(Debug)]
pub struct NormalizerSpec<'a> {
    pub precompiled_charsmap: &'a [u8],
    pub add_dummy_prefix: bool,
    pub remove_extra_whitespaces: bool,
    pub escape_whitespaces: bool,
}

impl Default for NormalizerSpec<'_> {
    fn default() -> Self {
        Self {
            precompiled_charsmap: &[],
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        }
    }
}

impl<'a> ModelProto<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Problem> {
        let mut out = Self::default();
        for field in Fields(bytes) {
            match field? {
                (1, Value::Bytes(piece)) => out.pieces.push(Piece::parse(piece)?),
                (2, Value::Bytes(spec)) => out.trainer.merge(spec)?,
                (3, Value::Bytes(spec)) => out.normalizer.merge(spec)?,
                (5, Value::Bytes(spec)) => out.denormalizer.merge(spec)?,
                _ => {}
            }
        }
        Ok(out)
    }
}

impl<'a> Piece<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Problem> {
        let mut out = Self { text: "", score: 0.0, kind: 1 };
        for field in Fields(bytes) {
            match field? {
                (1, Value::Bytes(text)) => {
                    out.text = std::str::from_utf8(text).map_err(|_| "a piece is not UTF-8")?
                }
                (2, Value::Fixed32(bits)) => out.score = f32::from_bits(bits),
                (3, Value::Varint(kind)) => out.kind = kind,
                _ => {}
            }
        }
        Ok(out)
    }
}

impl TrainerSpec {
    fn merge(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        for field in Fields(bytes) {
            match field? {
                (3, Value::Varint(value)) => self.model_type = value,
                (24, Value::Varint(value)) => self.treat_whitespace_as_suffix = value != 0,
                (35, Value::Varint(value)) => self.byte_fallback = value != 0,
                (41, Value::Varint(value)) => self.bos_id = value,
                (42, Value::Varint(value)) => self.eos_id = value,
                (43, Value::Varint(value)) => self.pad_id = value,
                _ => {}
            }
        }
        Ok(())
    }
}

impl<'a> NormalizerSpec<'a> {
    fn merge(&mut self, bytes: &'a [u8]) -> Result<(), Problem> {
        for field in Fields(bytes) {
            match field? {
                (2, Value::Bytes(value)) => self.precompiled_charsmap = value,
                (3, Value::Varint(value)) => self.add_dummy_prefix = value != 0,
                (4, Value::Varint(value)) => self.remove_extra_whitespaces = value != 0,
                (5, Value::Varint(value)) => self.escape_whitespaces = value != 0,
                _ => {}
            }
        }
        Ok(())
    }
}

/// The value of a field by its wire type: <https://protobuf.dev/programming-guides/encoding/>.
enum Value<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64,
    Bytes(&'a [u8]),
}

/// The fields of a message with their numbers, up to the first fault.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), Problem>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Result<(u64, Value<'a>), Problem> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => {
                Value::Fixed32(self.take(4)?.iter().rev().fold(0, |bits, &byte| bits << 8 | u32::from(byte)))
            }
            _ => return Err("it is not a SentencePiece model: a field has no known wire type"),
        };
        Ok((tag >> 3, value))
    }

    fn varint(&mut self) -> Result<u64, Problem> {
        let mut out = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take(1)? else { break };
            out |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(out);
            }
        }
        Err("a number has more than 64 bits")
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Problem> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (taken, rest) = self.0.split_at_checked(length).ok_or("the file ends inside a field")?;
        self.0 = rest;
        Ok(taken)
    }
}
