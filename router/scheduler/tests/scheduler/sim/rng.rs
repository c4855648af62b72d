//! Random numbers from a seed.

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x5452_554e_4b4c_494e))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub fn range_u32(&mut self, low: u32, high: u32) -> u32 {
        self.range(low.into(), high.into()) as u32
    }

    /// Returns true once in `one_in` times on average, and never for 0.
    pub fn once_in(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.next().is_multiple_of(one_in)
    }

    pub fn tokens(&mut self, count: u64, vocab_size: u32) -> Vec<u32> {
        (0..count).map(|_| self.range_u32(0, vocab_size - 1)).collect()
    }
}

/// The finalizer of SplitMix64, a bijection that looks random.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
