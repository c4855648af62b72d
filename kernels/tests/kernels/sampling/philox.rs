use trunkline_kernels::sampling::philox::{philox_4x32_10, philox_4x32_10_wide, uniforms};

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
fn the_wide_version_equals_single_counters() {
    let mut random = crate::random::Random::new(3);
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
    let base = uniforms(1, 0, 7)[0];
    assert!((0.0..1.0).contains(&base));
    for other in
        [uniforms(2, 0, 7)[0], uniforms(1 + (1 << 32), 0, 7)[0], uniforms(1, 1, 7)[0], uniforms(1, 0, 8)[0]]
    {
        assert!(other != base);
    }
}
