//! Results have the same bits for every instruction set, number of rows, division and number of threads.

use trunkline_kernels::aligned::AlignedBytes;
use trunkline_kernels::isa::Isa;
use trunkline_kernels::linear::{FloatRows, LinearInput, LinearOutput, linear};
use trunkline_kernels::linear::{QuantizedRows, QuantizedShape, quantize_rows};
use trunkline_kernels::pack::{Format, PackedWeight, SourceRows};
use trunkline_kernels::shared_mut::SharedMut;
use trunkline_kernels::threads::{ThreadPool, split};

use super::reference;
use super::{UNTOUCHED, product, whole_product};
use crate::on_all;
use crate::random::{Random, bits};

#[test]
fn products_have_the_same_bits_in_every_instruction_set() {
    for format in Format::ALL {
        for (out_features, in_features) in [(1, 256), (15, 256), (16, 512), (17, 256), (40, 768)] {
            let mut random = Random::new(4);
            let weight = random.packed(format, out_features, in_features);
            let bias: Vec<f32> = random.activations(out_features);
            for num_rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 33] {
                let x = random.activations(num_rows * in_features);
                for bias in [None, Some(bias.as_slice())] {
                    let tiles = 0..weight.num_tiles();
                    let what = format!("{format} {:?}", [num_rows, in_features, out_features]);
                    on_all(&what, |isa| product(isa, &weight, &x, tiles.clone(), bias));
                }
            }
        }
    }
}

#[test]
fn products_of_many_rows_have_the_same_bits_in_every_instruction_set() {
    for format in Format::ALL {
        // Rows that exceed the groups of one table by one group and by more, odd numbers of groups, and one to three
        // groups.
        for (out_features, in_features) in
            [(37usize, 256usize), (17, 1792), (16, 800), (16, 1600), (5, 32), (16, 64), (16, 96)]
        {
            if !in_features.is_multiple_of(format.block_elements()) {
                continue;
            }
            let mut random = Random::new(13);
            let mut bytes = random.weight(format, out_features, in_features);
            let row_bytes = format.row_bytes(in_features).unwrap();
            for scale in [None, Some(0x0000u16), Some(0x8000), Some(0x0001), Some(0x7bff), Some(0xbc00)] {
                // Scales of blocks: zero of either sign, the smallest and the largest binary16, and -1.
                let at = row_bytes + format.block_bytes() + if format == Format::Q6_K { 208 } else { 0 };
                if let Some(scale) = scale.filter(|_| format.block_elements() > 1) {
                    bytes[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                }
                let weight = PackedWeight::pack(format, &bytes, out_features, in_features).unwrap();
                let bias: Vec<f32> = random.activations(out_features);
                let mut x = random.activations(69 * in_features);
                // Scales of many magnitudes, and rows of zeros.
                x.iter_mut().enumerate().for_each(|(at, x)| *x *= 2f32.powi((at / 32 % 60) as i32 - 30));
                x[in_features..2 * in_features].fill(0.0);
                let tiles = 0..weight.num_tiles();
                let what = format!("{format} {in_features} {scale:?}");
                on_all(&what, |isa| product(isa, &weight, &x, tiles.clone(), Some(&bias)));
            }
        }
    }
}

#[test]
fn float_rows_of_any_length_have_the_same_bits_in_every_instruction_set() {
    for format in [Format::F32, Format::F16, Format::BF16] {
        for in_features in [1, 2, 31, 32, 33, 65, 100] {
            let mut random = Random::new(5);
            let weight = random.packed(format, 21, in_features);
            let x = random.activations(9 * in_features);
            on_all(&format!("{format} {in_features}"), |isa| whole_product(isa, &weight, &x));
        }
    }
}

#[test]
fn largest_sums_do_not_overflow() {
    for format in Format::ALL {
        // All quants and inputs at their largest or smallest: sums of a group exceed 2^24 with 8-bit weights and 2^20
        // with 4-bit weights.
        for fill in [0xff, 0x00, 0x7f, 0x80] {
            let mut bytes = vec![fill; format.row_bytes(512).unwrap() * 16];
            let halves = Random::new(6).weight(format, 16, 512);
            for (block, sane) in
                bytes.chunks_mut(format.block_bytes()).zip(halves.chunks(format.block_bytes()))
            {
                if format.block_elements() == 1 {
                    block.copy_from_slice(sane);
                }
                for &at in reference::halves(format) {
                    block[at..at + 2].copy_from_slice(&sane[at..at + 2]);
                }
                match format {
                    Format::MXFP4 => block[0] = sane[0],
                    Format::IQ1_M => block[48..].copy_from_slice(&sane[48..]),
                    Format::AFFINE4 | Format::AFFINE8 => block[..8].copy_from_slice(&sane[..8]),
                    _ => {}
                }
            }
            let weight = PackedWeight::pack(format, &bytes, 16, 512).unwrap();
            // Quants of 127, and of 32639 in one quad of each group, of either sign.
            for (most, top) in [(1.0, 257.0), (-1.0, -257.0), (1.0, -257.0)] {
                let mut x = vec![most; 8 * 512];
                for (at, quad) in x.chunks_mut(4).enumerate().filter(|(at, _)| at % 8 == at / 8 % 8) {
                    quad.fill(if at % 3 == 0 { top } else { -top });
                }
                on_all(&format!("{format} {fill:#x}"), |isa| whole_product(isa, &weight, &x));
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_a_batch() {
    for isa in Isa::available() {
        for format in Format::ALL {
            let mut random = Random::new(7);
            let (out_features, in_features, num_rows) = (35, 256, 21);
            let weight = random.packed(format, out_features, in_features);
            let x = random.activations(num_rows * in_features);
            let together = whole_product(isa, &weight, &x);
            for (row, x) in x.chunks_exact(in_features).enumerate() {
                let alone = whole_product(isa, &weight, x);
                let expected = &together[row * out_features..][..out_features];
                assert_eq!(bits(&alone), bits(expected), "{format} {isa} row {row}");
            }
        }
    }
}

#[test]
fn tiles_write_their_output_features_and_no_others() {
    for isa in Isa::available() {
        for format in [Format::F32, Format::Q4_1] {
            let mut random = Random::new(8);
            let weight = random.packed(format, 45, 64);
            let x = random.activations(10 * 64);
            let whole = whole_product(isa, &weight, &x);
            let part = product(isa, &weight, &x, 1..3, None);
            for (at, (part, whole)) in part.iter().zip(&whole).enumerate() {
                let expected = if at % 45 < 16 { UNTOUCHED } else { *whole };
                assert_eq!(part.to_bits(), expected.to_bits(), "{format} {isa} at {at}");
            }
        }
    }
}

#[test]
fn several_threads_give_the_bits_of_one_thread() {
    let (out_features, in_features) = (200, 512);
    for format in [Format::Q4_1, Format::Q6_K, Format::BF16] {
        let mut random = Random::new(9);
        let weight = random.packed(format, out_features, in_features);
        for num_rows in [1, 8, 37] {
            let x = random.activations(num_rows * in_features);
            for isa in Isa::available() {
                let expected = whole_product(isa, &weight, &x);
                for num_threads in [1, 2, 3, 29] {
                    let actual = product_on_threads(isa, &weight, &x, num_threads);
                    assert_eq!(
                        bits(&actual),
                        bits(&expected),
                        "{format} {isa} {num_rows} rows {num_threads} threads"
                    );
                }
            }
        }
    }
}

fn product_on_threads(isa: Isa, weight: &PackedWeight, x: &[f32], num_threads: usize) -> Vec<f32> {
    let (in_features, out_features) = (weight.in_features(), weight.out_features());
    let num_rows = x.len() / in_features;
    // The distance between rows is larger than their length, as in the working memory.
    let row_stride = out_features + 3;
    let mut y = vec![UNTOUCHED; num_rows * row_stride];
    let out = LinearOutput { values: SharedMut::new(&mut y), row_stride };
    let shape = weight.needs_quantized_input().then(|| QuantizedShape::new(num_rows, in_features));
    let mut bytes = AlignedBytes::zeroed(shape.map_or(0, |shape| shape.num_bytes()));
    let shared_bytes = SharedMut::new(bytes.as_mut_slice());
    let rounded = super::rounded(isa, weight, x);
    ThreadPool::new(num_threads).unwrap().run(|thread_idx, barrier| {
        let input = match shape {
            Some(shape) => {
                let rows = split(0..num_rows, num_threads, thread_idx);
                // SAFETY: threads write disjoint rows and read them after the barrier.
                unsafe {
                    quantize_rows(
                        isa,
                        shape,
                        &x[rows.start * in_features..],
                        in_features,
                        rows,
                        shared_bytes,
                    );
                    barrier.wait();
                    LinearInput::Quantized(QuantizedRows::new(
                        shape,
                        shared_bytes.slice(0..shared_bytes.len()),
                    ))
                }
            }
            None => match &rounded {
                Some(values) => LinearInput::Rounded(FloatRows { values, row_stride: in_features }),
                None => LinearInput::Float(FloatRows { values: x, row_stride: in_features }),
            },
        };
        let tiles = split(0..weight.num_tiles(), num_threads, thread_idx);
        // SAFETY: threads compute disjoint tiles.
        unsafe { linear(isa, weight, input, 0..num_rows, tiles, out, None) };
    });
    y.chunks(row_stride).flat_map(|row| row[..out_features].to_vec()).collect()
}

#[test]
fn joined_weights_equal_their_parts() {
    for format in Format::ALL {
        for sizes in [[32, 16, 16], [24, 7, 40], [1, 1, 1]] {
            let mut random = Random::new(10);
            let sources = sizes.map(|out_features| random.weight(format, out_features, 256));
            let rows = std::array::from_fn::<_, 3, _>(|part| {
                SourceRows::new(format, &sources[part], sizes[part], 256).unwrap()
            });
            let parts = std::array::from_fn::<_, 3, _>(|part| {
                PackedWeight::pack(format, &sources[part], sizes[part], 256).unwrap()
            });
            let whole = PackedWeight::pack_joined(format, &rows, 256).unwrap();
            assert_eq!(whole.out_features(), sizes.iter().sum::<usize>());
            let x = random.activations(256);
            for isa in Isa::available() {
                let expected: Vec<f32> = parts.iter().flat_map(|part| whole_product(isa, part, &x)).collect();
                assert_eq!(
                    bits(&whole_product(isa, &whole, &x)),
                    bits(&expected),
                    "{format} {isa} {sizes:?}"
                );
            }
            let (mut actual, mut expected) = (vec![0.0; 256], vec![0.0; 256]);
            whole.dequantize_row(sizes[0], &mut actual);
            parts[1].dequantize_row(0, &mut expected);
            assert_eq!(bits(&actual), bits(&expected), "{format} {sizes:?}");
        }
    }
}

#[test]
fn a_row_that_is_not_finite_does_not_affect_others() {
    for isa in Isa::available() {
        for format in Format::ALL {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut random = Random::new(11);
                let weight = random.packed(format, 19, 256);
                let mut x = random.activations(9 * 256);
                let expected = whole_product(isa, &weight, &x);
                x[3 * 256 + 200] = bad;
                let actual = whole_product(isa, &weight, &x);
                for (at, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                    if at / 19 == 3 {
                        assert!(!actual.is_finite(), "{format} {isa} {bad} at {at}: {actual}");
                        assert!(actual.is_nan() || !bad.is_nan(), "{format} {isa} at {at}: {actual}");
                    } else {
                        assert_eq!(actual.to_bits(), expected.to_bits(), "{format} {isa} {bad} at {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn zeros_and_extremes_of_the_input_stay_finite_and_equal() {
    for format in Format::ALL {
        let weight = Random::new(12).packed(format, 18, 256);
        for value in [0.0, -0.0, f32::MIN_POSITIVE, 1e-45, -1e-38, 1e-30, 1e28, -1e30] {
            let x = vec![value; 2 * 256];
            let expected = on_all(&format!("{format} {value}"), |isa| whole_product(isa, &weight, &x));
            assert!(expected.iter().all(|y| y.is_finite()), "{format} {value}: {expected:?}");
            if value == 0.0 {
                assert!(expected.iter().all(|&y| y == 0.0), "{format}: {expected:?}");
            }
        }
    }
}
