use trunkline_kernels::isa::Isa;
use trunkline_kernels::sampling::scan::keep;

use crate::random::Random;

#[test]
fn masks_keep_the_same_elements_on_every_instruction_set() {
    let mut random = Random::new(7);
    for length in (0_usize..70).chain([257, 1000]) {
        let x: Vec<f32> = (0..length).map(|_| random.float()).collect();
        for num_bytes in [0, 1, length / 16, length.div_ceil(8), length / 8 + 3] {
            let mask: Vec<u8> = (0..num_bytes).map(|_| random.next() as u8).collect();
            let is_set = |i: usize| mask.get(i / 8).is_some_and(|byte| byte >> (i % 8) & 1 == 1);
            let kept: Vec<f32> =
                (0..length).map(|i| if is_set(i) { x[i] } else { f32::NEG_INFINITY }).collect();
            for isa in Isa::available() {
                let mut x = x.clone();
                keep(isa, &mut x, &mask);
                assert_eq!(x, kept, "{isa}, {length} elements, {num_bytes} bytes");
            }
        }
    }
}
