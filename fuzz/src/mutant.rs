//! Mutants of seeds, determined by a number.

/// A generator of small random numbers: `SplitMix64`, Steele et al., OOPSLA 2014.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which must be at least 1.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn choose<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Returns a range of up to 64 elements within `0..len`.
    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let begin = self.below(len + 1);
        begin..begin + self.below((len - begin).min(64) + 1)
    }
}

/// Texts that often break parsers of JSON and numbers.
const WORDS: &[&str] = &[
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "0",
    "-1",
    "1e999",
    "-0.0",
    "18446744073709551616",
    "9223372036854775808",
    "4294967296",
    "\\u0000",
    "\\ud800",
    "\u{feff}",
    "\u{202e}",
    "\"",
    "\\",
    "[[[[[[[[",
    "{\"a\":{\"a\":{\"a\":",
    "\n\n",
    "\r",
    ",",
    ":",
    "<think>",
    "</think>",
    "<tool_call>",
];

/// Returns mutant `number` of the seeds.
pub fn mutant(number: u64, seeds: &[Vec<u8>], words: &[String]) -> Vec<u8> {
    let mut random = Random(number);
    let mut bytes = random.choose(seeds).clone();
    for _ in 0..=random.below(4) {
        let range = random.range(bytes.len());
        let piece: Vec<u8> = match random.below(8) {
            0 => Vec::new(),
            1 => bytes[range.clone()].repeat(2),
            2 => vec![random.next() as u8],
            3 => bytes[range.clone()].iter().map(|byte| byte ^ (1 << (number % 8))).collect(),
            4 => {
                let other = random.choose(seeds);
                let from = random.range(other.len());
                other[from].to_vec()
            }
            5 if !words.is_empty() => random.choose(words).clone().into_bytes(),
            6 => bytes[random.range(bytes.len())].to_vec(),
            _ => random.choose(WORDS).as_bytes().to_vec(),
        };
        // Half of the pieces are inserted, half replace the range.
        let end = if random.below(2) == 0 { range.start } else { range.end };
        bytes.splice(range.start..end, piece);
    }
    bytes
}
