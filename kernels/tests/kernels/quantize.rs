//! Matrices that are quantised while they are packed have the bits of blocks that were quantised before. All numbers of
//! packed matrices are finite.

use half::f16;
use trunkline_kernels::executor::Executor;
use trunkline_kernels::pack::{Format, PackError, SourceBytes, encode};
use trunkline_kernels::program::{ProgramBuilder, ProgramConfig, ProgramError, WeightId};
use trunkline_kernels::threads::Pinning;

use crate::GEOMETRY;
use crate::random::{Random, bits};

const HIDDEN: usize = 64;

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn builder() -> ProgramBuilder {
    let geometry = GEOMETRY;
    ProgramBuilder::new(ProgramConfig { max_step_tokens: 16, max_step_sequences: 4, num_blocks: 4, geometry })
        .unwrap()
}

/// Returns a model of five matrices, of which the kernels join three. `add` adds one with this number of rows.
fn model(mut add: impl FnMut(&mut ProgramBuilder, usize) -> WeightId) -> ProgramBuilder {
    let mut b = builder();
    let [embedding, q, k, v, out] = [70, 64, 32, 32, HIDDEN].map(|rows| add(&mut b, rows));
    let x = b.embedding(embedding).unwrap();
    let [q, k, v] = [q, k, v].map(|weight| b.linear(x, weight, None).unwrap());
    b.write_kv(0, k, Some(v)).unwrap();
    let a = b.paged_attention(0, q, 0.1, None, None, None).unwrap();
    let a = b.linear(a, out, None).unwrap();
    let x = b.add(x, a).unwrap();
    b.logits(x, embedding, None).unwrap();
    b
}

fn add_float(b: &mut ProgramBuilder, values: &[f32], to: Format) -> WeightId {
    let weight = b.weight(Format::F32, f32_bytes(values), &[values.len() / HIDDEN, HIDDEN]).unwrap();
    b.quantize(weight, to).unwrap();
    weight
}

/// `is_before` says for each matrix whether its blocks are quantised before.
fn scores(format: Format, is_before: [bool; 5], threads: usize) -> Vec<u32> {
    let (mut random, mut is_before) = (Random::new(3), is_before.into_iter());
    let model = model(|b, rows| {
        let values = random.normals(rows * HIDDEN);
        if !is_before.next().unwrap() {
            return add_float(b, &values, format);
        }
        let mut bytes = vec![0; values.len() / 32 * format.block_bytes()];
        assert!(encode(&values, format, &mut bytes));
        b.weight(format, bytes, &[rows, HIDDEN]).unwrap()
    });
    let mut executor: Executor = model.build(threads, Pinning::Off).unwrap();
    bits(&executor.score(&[1, 5, 69, 33]).unwrap())
}

#[test]
fn bits_are_those_of_blocks_quantised_before() {
    for format in [Format::Q8_0, Format::Q4_1] {
        let expected = scores(format, [true; 5], 1);
        assert_eq!(scores(format, [false; 5], 2), expected);
        // Parts that are joined may differ.
        assert_eq!(scores(format, [true, false, true, false, true], 1), expected);
    }
}

#[test]
fn only_matrices_of_floats_are_quantised() {
    let mut b = builder();
    let quantised = b.weight(Format::Q8_0, vec![0; 2 * 34], &[2, 32]).unwrap();
    let narrow = b.weight(Format::F32, vec![0; 2 * 16 * 4], &[2, 16]).unwrap();
    let vector = b.weight(Format::F32, vec![0; 32 * 4], &[32]).unwrap();
    let float = b.weight_from(Format::F32, SourceBytes::Owned(vec![0; 2 * 32 * 4]), &[2, 32], None).unwrap();
    for (weight, to) in
        [(quantised, Format::Q4_1), (narrow, Format::Q8_0), (vector, Format::Q8_0), (float, Format::Q4_K)]
    {
        assert!(b.quantize(weight, to).is_err(), "{to}");
    }
}

#[test]
fn a_number_that_no_block_can_hold_is_an_error_with_its_weight() {
    for (bad, value) in [(0, f32::NAN), (3, f32::INFINITY), (3, 1e30), (4, f32::NAN)] {
        let mut num_added = 0;
        let model = model(|b, rows| {
            let mut values = vec![0.5; rows * HIDDEN];
            if num_added == bad {
                values[(rows - 1) * HIDDEN + 3] = value;
            }
            num_added += 1;
            add_float(b, &values, Format::Q8_0)
        });
        let error = model.build(2, Pinning::Off).err().unwrap();
        let expected =
            ProgramError::Weight { weight: bad, source: PackError::NotFinite { to: Format::Q8_0 } };
        assert_eq!(error.to_string(), expected.to_string());
    }
}

/// A value that is not finite in each format's scales, at its place in a block.
#[test]
fn a_scale_that_is_not_finite_is_an_error_with_its_weight() {
    for (format, at) in [
        (Format::Q8_0, 0),
        (Format::Q4_1, 2),
        (Format::Q5_0, 0),
        (Format::Q4_K, 2),
        (Format::Q6_K, 208),
        (Format::IQ4_XS, 0),
        (Format::F16, 6),
        (Format::BF16, 6),
    ] {
        let columns = format.block_elements().max(HIDDEN);
        let row_bytes = format.row_bytes(columns).unwrap();
        for bits in [f16::NAN, f16::INFINITY].map(|value| value.to_le_bytes()) {
            let mut num_added = 0;
            let mut b = builder();
            let mut add = |rows: usize| {
                let mut bytes = vec![0; rows * row_bytes];
                if num_added == 1 {
                    let begin = (rows - 1) * row_bytes + at;
                    bytes[begin..begin + 2].copy_from_slice(if format == Format::BF16 {
                        &[0x80, 0xff]
                    } else {
                        &bits
                    });
                }
                num_added += 1;
                b.weight(format, bytes, &[rows, columns]).unwrap()
            };
            let [embedding, keys, head] = [70, 32, 70].map(&mut add);
            let x = b.embedding(embedding).unwrap();
            let k = b.linear(x, keys, None).unwrap();
            b.write_kv(0, k, Some(k)).unwrap();
            b.logits(x, head, None).unwrap();
            let error = b.build(2, Pinning::Off).err().unwrap();
            let expected = ProgramError::Weight { weight: 1, source: PackError::NotFinite { to: format } };
            assert_eq!(error.to_string(), expected.to_string());
        }
    }
}
