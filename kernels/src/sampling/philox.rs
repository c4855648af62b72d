//! Philox 4x32-10, the counter-based generator behind every sampled token.
//!
//! Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, doi:10.1145/2063384.2063405.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const NUM_ROUNDS: usize = 10;

/// Ten rounds over four counter words under two key words.
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

/// [`philox_4x32_10`] of `N` counters at once: of each word of `counter` and of the result the low 32 bits count, the
/// others say nothing. So no product has to be cut: where vectors multiply, they take the low halves of their lanes.
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

/// The number in [0, 1) that decides the token at absolute `position`: a multiple of 2^-24.
pub fn uniform(seed: u64, choice: u32, position: u32) -> f64 {
    let words = philox_4x32_10([position, choice, 0, 0], [seed as u32, (seed >> 32) as u32]);
    f64::from(words[0] >> 8) / f64::from(1u32 << 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_random123() {
        // kat_vectors of Random123 1.14, lines "philox4x32 10".
        let ones = u32::MAX;
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([ones; 4], [ones; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox_4x32_10(counter, key), expected);
        }
    }

    #[test]
    fn many_at_once_are_each_of_them() {
        let mut random = crate::testing::Random::new(3);
        for _ in 0..100 {
            let counters: [[u64; 5]; 4] = std::array::from_fn(|_| std::array::from_fn(|_| random.next()));
            let key = [random.next() as u32, random.next() as u32];
            let wide = philox_4x32_10_wide(counters, key);
            for i in 0..5 {
                let one = philox_4x32_10(counters.map(|words| words[i] as u32), key);
                assert_eq!(wide.map(|words| words[i] as u32), one);
            }
        }
    }

    #[test]
    fn every_part_of_the_key_changes_the_number() {
        let base = uniform(1, 0, 7);
        assert!((0.0..1.0).contains(&base));
        for other in [uniform(2, 0, 7), uniform(1 + (1 << 32), 0, 7), uniform(1, 1, 7), uniform(1, 0, 8)] {
            assert!(other != base);
        }
    }
}
