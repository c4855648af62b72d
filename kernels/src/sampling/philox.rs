//! Philox 4x32-10, the counter-based random generator of all sampling.
//!
//! Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, doi:10.1145/2063384.2063405.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const NUM_ROUNDS: usize = 10;

/// Applies ten rounds to four counter words with two key words.
pub fn philox_4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..NUM_ROUNDS {
        let product0 = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let product1 = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (product1 >> 32) as u32 ^ counter[1] ^ key[0],
            product1 as u32,
            (product0 >> 32) as u32 ^ counter[3] ^ key[1],
            product0 as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// Computes [`philox_4x32_10`] of `N` counters at once.
///
/// Only the low 32 bits of each word of `counter` and of the result are meaningful. Products need no masking this way,
/// because vector multiplications read the low halves of their lanes.
#[inline(always)]
pub fn philox_4x32_10_wide<const N: usize>(mut counter: [[u64; N]; 4], mut key: [u32; 2]) -> [[u64; N]; 4] {
    const LOW: u64 = u32::MAX as u64;
    for _ in 0..NUM_ROUNDS {
        let [mut c0, mut c1, mut c2, mut c3] = counter;
        for i in 0..N {
            let product0 = u64::from(MULTIPLIERS[0]) * (c0[i] & LOW);
            let product1 = u64::from(MULTIPLIERS[1]) * (c2[i] & LOW);
            c0[i] = (product1 >> 32) ^ c1[i] ^ u64::from(key[0]);
            c1[i] = product1;
            c2[i] = (product0 >> 32) ^ c3[i] ^ u64::from(key[1]);
            c3[i] = product0;
        }
        counter = [c0, c1, c2, c3];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// Returns the two random numbers for the token at absolute `position`, multiples of 2^-24 in [0, 1). The first draws
/// the token, the second decides whether XTC applies.
pub fn uniforms(seed: u64, choice: u32, position: u32) -> [f64; 2] {
    let words = philox_4x32_10([position, choice, 0, 0], [seed as u32, (seed >> 32) as u32]);
    [words[0], words[1]].map(|word| f64::from(word >> 8) / f64::from(1u32 << 24))
}
