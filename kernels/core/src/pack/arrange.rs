//! Arranges the bits within the words of a block of packed weights, so that a shift and a mask find those of a vector.

/// An exchange of each bit of a word that is in the mask and the one as many bits above it.
pub(crate) type Swap = (u32, u32);

/// Transposes four sign bytes: bit `i` of byte `v` becomes bit `i / 4 * 4 + v` of byte `i % 4`, which a shift by
/// `3 - v` brings to a bit 3.
pub(crate) const TRANSPOSED: &[Swap] = &[(7, 0x00aa_00aa), (14, 0x0000_cccc)];
/// Brings upper bits of indices, which are bytes or halves of two or four runs, to where those of vectors (or of fours)
/// 0 and 2 lie 16 bits apart, and likewise those of 1 and 3.
pub(crate) const PAIRED_NIBBLES: &[Swap] = &[(4, 0x00f0_00f0), (8, 0x0000_ff00)];
pub(crate) const PAIRED_BITS: &[Swap] = &[(2, 0x0c0c_0c0c), (4, 0x00f0_00f0), (8, 0x0000_ff00)];
pub(crate) const PAIRED_THREES: &[Swap] = &[(10, 0x0000_0fc0)];
pub(crate) const PAIRED_FOURS: &[Swap] = &[(8, 0x0000_ff00)];

fn swapped<'a>(word: u32, swaps: impl Iterator<Item = &'a Swap>) -> u32 {
    swaps.fold(word, |word, (distance, mask)| {
        let moved = (word >> distance ^ word) & mask;
        word ^ moved ^ moved << distance
    })
}

fn transposed(word: u32) -> u32 {
    swapped(word, TRANSPOSED.iter())
}

/// How the words of a block are arranged.
#[derive(Clone, Copy)]
pub(crate) enum Arrange {
    /// Bits of these words are swapped.
    Swap { words: (usize, usize), swaps: &'static [Swap] },
    /// Every `step`th word has four times 7 signs and 4 other bits.
    Sevens { words: (usize, usize), step: usize },
    /// Pairs of words have four times a 9-bit index and 7 signs, and become the low bytes of the indices and the signs
    /// with the ninth bits.
    Pairs { words: (usize, usize) },
}

/// Gives four fields of 7 bits a byte each, with a bit of the highest nibble as their eighth, and transposes them.
fn from_sevens(word: u32) -> u32 {
    let field = |at: u32| (word >> (7 * at) & 127 | (word >> (28 + at) & 1) << 7) << (8 * at);
    transposed((0..4).fold(0, |bytes, at| bytes | field(at)))
}

/// The inverse of [`from_sevens`].
fn to_sevens(signs: u32) -> u32 {
    let bytes = transposed(signs);
    let field = |at: u32| (bytes >> (8 * at) & 127) << (7 * at) | (bytes >> (8 * at + 7) & 1) << (28 + at);
    (0..4).fold(0, |word, at| word | field(at))
}

/// Splits four times a 9-bit index and 7 signs into low bytes and signs.
fn from_pair(packed: [u8; 8]) -> [u8; 8] {
    // The upper byte has the index's ninth bit first, which becomes the eighth of the signs.
    let low = [packed[0], packed[2], packed[4], packed[6]];
    let high = [packed[1], packed[3], packed[5], packed[7]].map(|byte| byte.rotate_right(1));
    join_words(low, transposed(u32::from_le_bytes(high)).to_le_bytes())
}

/// The inverse of [`from_pair`].
fn to_pair(words: [u8; 8]) -> [u8; 8] {
    let high = transposed(u32::from_le_bytes([words[4], words[5], words[6], words[7]])).to_le_bytes();
    std::array::from_fn(|at| if at % 2 == 0 { words[at / 2] } else { high[at / 2].rotate_left(1) })
}

fn join_words(first: [u8; 4], last: [u8; 4]) -> [u8; 8] {
    std::array::from_fn(|at| if at < 4 { first[at] } else { last[at - 4] })
}

impl Arrange {
    pub(crate) fn apply(self, block: &mut [u8], is_back: bool) {
        let change = |word: &mut [u8; 4], to: &dyn Fn(u32) -> u32| {
            *word = to(u32::from_le_bytes(*word)).to_le_bytes();
        };
        let all = block.as_chunks_mut::<4>().0;
        match self {
            Self::Swap { words, swaps } => {
                let to = |word| {
                    if is_back { swapped(word, swaps.iter().rev()) } else { swapped(word, swaps.iter()) }
                };
                all[words.0..words.1].iter_mut().for_each(|word| change(word, &to));
            }
            Self::Sevens { words, step } => {
                let to = if is_back { to_sevens } else { from_sevens };
                all[words.0..words.1].iter_mut().step_by(step).for_each(|word| change(word, &to));
            }
            Self::Pairs { words } => {
                let to = if is_back { to_pair } else { from_pair };
                let pairs = all[words.0..words.1].as_flattened_mut().as_chunks_mut().0;
                pairs.iter_mut().for_each(|pair| *pair = to(*pair));
            }
        }
    }
}
