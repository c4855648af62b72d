use trunkline_kernels::program::memory::{ALIGNMENT, Demand, lay_out};

use crate::random::Random;

#[test]
fn buffers_alive_together_never_overlap_and_dead_ones_are_reused() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let demands: Vec<Demand> = (0..40)
            .map(|_| {
                let first_phase = random.below(30);
                let last_phase = first_phase + random.below(6);
                Demand { num_elements: 1 + random.below(5000), first_phase, last_phase }
            })
            .collect();
        let (offsets, total) = lay_out(&demands);
        for (i, a) in demands.iter().enumerate() {
            assert!(offsets[i].is_multiple_of(ALIGNMENT) && offsets[i] + a.num_elements <= total);
            for (j, b) in demands.iter().enumerate().skip(i + 1) {
                let in_time = a.first_phase <= b.last_phase && b.first_phase <= a.last_phase;
                let in_space =
                    offsets[i] < offsets[j] + b.num_elements && offsets[j] < offsets[i] + a.num_elements;
                assert!(!(in_time && in_space), "seed {seed}: {a:?} and {b:?}");
            }
        }
        let sum: usize = demands.iter().map(|d| d.num_elements).sum();
        assert!(total < sum / 2, "seed {seed}: {total} of {sum}");
    }
}
