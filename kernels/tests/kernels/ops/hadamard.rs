use trunkline_kernels::ops::probe::transform_in_place;

use super::{LANES, in_place_on_all};
use crate::random::Random;

#[test]
fn equals_the_matrix_and_gives_the_same_bits_on_every_instruction_set() {
    for head_size in [1, 2, 4, 6, 16, 20, 64, 80, 96, 128, 512] {
        let mut x = Random::new(head_size as u64).normals(head_size);
        // The largest power of two that divides the head size.
        let n = 1usize << head_size.trailing_zeros();
        // Each of the log2(n) sums rounds by at most half a unit of its largest value, the sum of all magnitudes.
        let expected: Vec<(f64, f64)> = (0..head_size)
            .map(|i| {
                let run = &x[i / n * n..][..n];
                let sign = |j: usize| if (j & (i % n)).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                let magnitude: f32 = run.iter().map(|x| x.abs()).sum();
                let bound = f64::from(n.ilog2()) * f64::from(f32::EPSILON / 2.0 * magnitude);
                (run.iter().enumerate().map(|(j, x)| f64::from(*x) * sign(j)).sum(), bound)
            })
            .collect();
        x.resize(head_size.next_multiple_of(LANES), 0.0);
        let what = format!("head size {head_size}");
        let got = in_place_on_all(&what, &x, |isa, x| transform_in_place(isa, x, head_size));
        for (got, (expected, bound)) in got.iter().zip(&expected) {
            assert!((f64::from(*got) - expected).abs() <= *bound, "{head_size}: {got} for {expected}");
        }
    }
}
