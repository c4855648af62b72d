use trunkline_kernels::isa::Isa;
use trunkline_kernels::sampling::Watermark;
use trunkline_kernels::sampling::philox::philox_4x32_10;
use trunkline_kernels::sampling::watermark::add_watermark;

use crate::random::Random;

/// Computes the definition one token at a time.
fn is_green(watermark: &Watermark, previous: u32, token_id: u32) -> bool {
    let key = [watermark.key as u32, (watermark.key >> 32) as u32];
    let words = philox_4x32_10([previous, token_id / 4, 1, 0], key);
    f64::from(words[token_id as usize % 4]) < (f64::from(watermark.gamma) * 2f64.powi(32)).floor()
}

#[test]
fn green_tokens_are_raised_and_others_unchanged_on_every_instruction_set() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let vocab = [1, 3, 63, 64, 65, 500, 3001][random.below(7)];
        let mut logits: Vec<f32> = (0..vocab).map(|_| random.normal() * 4.0).collect();
        logits[random.below(vocab)] = f32::NEG_INFINITY;
        let gamma = [0.01, 0.25, 0.5, 0.99][random.below(4)];
        let watermark = Watermark { gamma, delta: 0.1 + random.below(5) as f32, key: random.next() };
        let previous = random.next() as u32;
        let lifted = |(id, logit): (usize, &f32)| {
            let green = is_green(&watermark, previous, id as u32);
            (if green { logit + watermark.delta } else { *logit }).to_bits()
        };
        let expected: Vec<u32> = logits.iter().enumerate().map(lifted).collect();
        for isa in Isa::available() {
            let mut row = logits.clone();
            add_watermark(isa, &mut row, previous, &watermark);
            let row: Vec<u32> = row.iter().map(|logit| logit.to_bits()).collect();
            assert_eq!(row, expected, "seed {seed}, {isa}");
        }
    }
}

#[test]
fn the_green_list_equals_the_reference() {
    // server/tests/sampling/test_watermark.py has the same numbers.
    let watermark = Watermark { gamma: 0.25, delta: 2.0, key: 0x0123_4567_89ab_cdef };
    let green: Vec<u32> = (0..40).filter(|id| is_green(&watermark, 7, *id)).collect();
    assert_eq!(green, [15, 19, 20, 32]);
}

#[test]
fn the_green_share_is_gamma_and_the_list_depends_on_key_and_context() {
    let num_tokens = 20_000;
    for gamma in [0.01, 0.1, 0.5, 0.9] {
        let watermark = Watermark { gamma, delta: 1.0, key: 15_485_863 };
        let list = |watermark: &Watermark, previous| -> Vec<bool> {
            (0..num_tokens).map(|id| is_green(watermark, previous, id)).collect()
        };
        let one = list(&watermark, 5);
        let share = one.iter().filter(|green| **green).count() as f64 / f64::from(num_tokens);
        // Five standard deviations of the mean of that many draws.
        let deviation = (f64::from(gamma) * (1.0 - f64::from(gamma)) / f64::from(num_tokens)).sqrt();
        assert!((share - f64::from(gamma)).abs() < 5.0 * deviation, "{share} of {gamma}");
        assert_ne!(one, list(&watermark, 6));
        assert_ne!(one, list(&Watermark { key: 15_485_863 | 1 << 40, ..watermark }, 5));
    }
}

#[test]
fn the_key_is_not_printed() {
    let watermark = Watermark { gamma: 0.5, delta: 2.0, key: 987_654_321 };
    assert_eq!(format!("{watermark:?}"), "Watermark { gamma: 0.5, delta: 2.0, .. }");
}
