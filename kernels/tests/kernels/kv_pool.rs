mod key_scaling;

use trunkline_kernels::isa::Isa;
use trunkline_kernels::kv_pool::{KvDtype, KvGeometry, KvPool, KvPoolError};

use crate::ops::NIBBLE_LEVELS;

const HEADS: usize = 3;
const HEAD_SIZE: usize = 20;
const BLOCK_SIZE: usize = 32;

fn geometry(dtype: KvDtype) -> KvGeometry {
    KvGeometry {
        num_layers: 2,
        num_kv_heads: HEADS,
        head_size: HEAD_SIZE,
        block_size: BLOCK_SIZE,
        dtype,
        latent_size: None,
    }
}

fn token(seed: usize) -> Vec<f32> {
    (0..HEADS * HEAD_SIZE).map(|i| ((i * 7 + seed * 31) % 512) as f32 / 8.0 - 20.0).collect()
}

/// Inverts the transform of a head: H_4 / 4 of each four elements.
fn inverse(head: &[f32]) -> Vec<f32> {
    let four = |x: &[f32]| {
        let (a, b, c, d) = (x[0] + x[1], x[0] - x[1], x[2] + x[3], x[2] - x[3]);
        [(a + c) / 4.0, (b + d) / 4.0, (a - c) / 4.0, (b - d) / 4.0]
    };
    head.chunks_exact(4).flat_map(four).collect()
}

/// Reads the key and value of one token according to the layout in the module's documentation.
fn read(pool: &mut KvPool, layer: usize, block: u32, offset: usize) -> (Vec<f32>, Vec<f32>) {
    let view = pool.view();
    let g = *view.geometry();
    let (mut all_keys, mut all_values) = (vec![], vec![]);
    for head in 0..HEADS {
        let (keys, values) = (view.keys(layer, block, head), view.values(layer, block, head));
        let scales = view.scales(layer, block, head);
        let element = |d: usize| -> (f32, f32) {
            // SAFETY: the pointers are inside the pool, and there is only one thread.
            unsafe {
                if g.dtype == KvDtype::Int4 {
                    let key = *keys.add(((offset / 16 * 3 + d / 8) * 16 + offset % 16) * 4 + d % 4);
                    let value = *values.add((offset % 16 * 16 + d % 16) * 4 + offset / 16);
                    let scale = |which: usize| {
                        half::f16::from_bits(*scales[which].cast::<u16>().add(offset)).to_f32()
                    };
                    let level = |byte: u8, is_upper: bool| {
                        f32::from(NIBBLE_LEVELS[usize::from(if is_upper { byte >> 4 } else { byte & 15 })])
                    };
                    return (level(key, d / 4 % 2 == 1) * scale(0), level(value, d / 16 == 1) * scale(1));
                }
                if g.dtype == KvDtype::Int8 {
                    let scale = |which: usize| {
                        half::bf16::from_bits(*scales[which].cast::<u16>().add(offset)).to_f32()
                    };
                    let key = *keys.add(((offset / 16 * 5 + d / 4) * 16 + offset % 16) * 4 + d % 4);
                    let value = *values.add((offset % 16 * 32 + d) * 4 + offset / 16) as i8;
                    return ((f32::from(key) - 128.0) * scale(0), f32::from(value) * scale(1));
                }
                let key = *keys.cast::<u16>().add(d * BLOCK_SIZE + offset);
                let value = *values.cast::<u16>().add(offset * 32 + d);
                if g.dtype == KvDtype::Bf16 {
                    return (half::bf16::from_bits(key).to_f32(), half::bf16::from_bits(value).to_f32());
                }
                (half::f16::from_bits(key).to_f32(), half::f16::from_bits(value).to_f32())
            }
        };
        let (key, value): (Vec<f32>, Vec<f32>) = (0..HEAD_SIZE).map(element).unzip();
        let untransform = |x: Vec<f32>| match g.dtype {
            KvDtype::Int8 | KvDtype::Int4 => inverse(&x),
            KvDtype::F16 | KvDtype::Bf16 => x,
        };
        all_keys.extend(untransform(key));
        all_values.extend(untransform(value));
    }
    (all_keys, all_values)
}

/// Compares elements that are multiples of 1/8 below 64. f16 represents them exactly, bf16 with 8 bits, and bytes to
/// half a step of the transform.
fn assert_close(dtype: KvDtype, got: &[f32], expected: &[f32]) {
    let tolerance = match dtype {
        KvDtype::Int8 => 4.0 * 44.0 / 127.0 / 2.0 * (1.0 + 1.0 / 256.0),
        // Adjacent levels differ by at most 31 / 127.
        KvDtype::Int4 => 4.0 * 44.0 * 31.0 / 127.0 / 2.0,
        KvDtype::F16 => 0.0,
        KvDtype::Bf16 => 64.0 / 512.0,
    };
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= tolerance, "{dtype}: {got} for {expected}");
    }
}

#[test]
fn written_values_are_read_back_and_partial_copies_copy_only_their_part() {
    for (isa, dtype) in Isa::available().into_iter().flat_map(|isa| KvDtype::ALL.map(|dtype| (isa, dtype))) {
        let mut pool = KvPool::new(geometry(dtype), 3).unwrap();
        for layer in 0..2 {
            for offset in 0..BLOCK_SIZE {
                let (k, v) = (token(offset + layer), token(offset + 100));
                // SAFETY: there is only one thread.
                unsafe { pool.view().write(isa, layer, 0, offset, &k, &v) };
                // SAFETY: there is only one thread.
                unsafe { pool.view().write(isa, layer, 1, offset, &v, &k) };
                let got = read(&mut pool, layer, 0, offset);
                assert_close(dtype, &got.0, &k);
                assert_close(dtype, &got.1, &v);
            }
        }
        for num_tokens in [1, 5, 16, 23, BLOCK_SIZE] {
            pool.copy_block(1, 2, BLOCK_SIZE).unwrap();
            pool.copy_block(0, 2, num_tokens).unwrap();
            for (layer, offset) in (0..2).flat_map(|layer| (0..BLOCK_SIZE).map(move |offset| (layer, offset)))
            {
                let source = u32::from(offset >= num_tokens);
                let expected = read(&mut pool, layer, source, offset);
                assert_eq!(
                    read(&mut pool, layer, 2, offset),
                    expected,
                    "{dtype} {num_tokens} {layer} {offset}"
                );
            }
        }
    }
}

#[test]
fn latents_are_rows_and_partial_copies_copy_only_their_part() {
    // Rows of 20 elements are padded to 32.
    let geometry = |dtype| KvGeometry { num_kv_heads: 1, latent_size: Some(16), ..geometry(dtype) };
    assert_eq!(geometry(KvDtype::F16).bytes_per_block(), 2 * BLOCK_SIZE * 32 * 2);
    let key = |seed| token(seed)[..HEAD_SIZE].to_vec();
    for (isa, dtype) in
        Isa::available().into_iter().flat_map(|isa| [(isa, KvDtype::F16), (isa, KvDtype::Bf16)])
    {
        let mut pool = KvPool::new(geometry(dtype), 3).unwrap();
        pool.fill(0x7fff);
        for (layer, block, offset) in (0..2).flat_map(|layer| {
            (0..2).flat_map(move |block| (0..BLOCK_SIZE).map(move |offset| (layer, block, offset)))
        }) {
            let key = key(offset + layer + 100 * block as usize);
            // SAFETY: there is only one thread.
            unsafe { pool.view().write_latent(isa, layer, block, offset, &key) };
        }
        let read = |pool: &mut KvPool, layer, block, offset: usize| -> (Vec<f32>, Vec<f32>) {
            let view = pool.view();
            let float = |bits| match dtype {
                KvDtype::F16 => half::f16::from_bits(bits).to_f32(),
                _ => half::bf16::from_bits(bits).to_f32(),
            };
            let row = |p: *const u8, len: usize| {
                // SAFETY: rows of 32 elements lie in the pool, and values end with them or before.
                (0..len).map(|d| float(unsafe { *p.cast::<u16>().add(offset * 32 + d) })).collect()
            };
            (row(view.keys(layer, block, 0), 32), row(view.values(layer, block, 0), 16))
        };
        for num_tokens in [1, 5, 16, 23, BLOCK_SIZE] {
            pool.copy_block(1, 2, BLOCK_SIZE).unwrap();
            pool.copy_block(0, 2, num_tokens).unwrap();
            for (layer, offset) in (0..2).flat_map(|layer| (0..BLOCK_SIZE).map(move |offset| (layer, offset)))
            {
                let source = u32::from(offset >= num_tokens);
                let (got, value) = read(&mut pool, layer, 2, offset);
                assert_close(dtype, &got[..HEAD_SIZE], &key(offset + layer + 100 * source as usize));
                assert_eq!(got[HEAD_SIZE..], [0.0; 12], "padding");
                assert_eq!(value, got[4..HEAD_SIZE], "the value is the end of the key");
            }
        }
    }
}

#[test]
fn bytes_are_the_same_on_every_instruction_set() {
    for dtype in KvDtype::ALL {
        let mut blocks = Isa::available().into_iter().map(|isa| {
            let mut pool = KvPool::new(geometry(dtype), 1).unwrap();
            for offset in 0..BLOCK_SIZE {
                // SAFETY: there is only one thread.
                unsafe { pool.view().write(isa, 1, 0, offset, &token(offset), &token(offset + 50)) };
            }
            pool.whole_block(0).unwrap().collect::<Vec<_>>().concat()
        });
        let first = blocks.next().unwrap();
        assert_eq!(first.len(), geometry(dtype).bytes_per_block());
        assert!(blocks.all(|block| block == first), "{dtype}");
    }
}

#[test]
fn blocks_have_the_documented_size_in_every_dtype() {
    let bytes = |dtype, head_size| {
        KvGeometry { head_size, block_size: 64, ..geometry(dtype) }.bytes_per_block() / (2 * HEADS * 64)
    };
    assert_eq!(KvDtype::ALL.map(|dtype| bytes(dtype, 64)), [132, 69, 256, 256]);
    assert_eq!(KvDtype::ALL.map(|dtype| bytes(dtype, 128)), [260, 134, 512, 512]);
}

#[test]
fn invalid_geometries_and_copies_are_refused_with_a_reason() {
    let good = geometry(KvDtype::Int8);
    let error = KvPool::new(KvGeometry { block_size: 24, ..good }, 3).unwrap_err().to_string();
    assert_eq!(error, "`block_size` is 24, expected 16, 32, 64 or 128");
    assert!(KvPool::new(good, 0).is_err());
    let error = KvPool::new(KvGeometry { latent_size: Some(16), ..geometry(KvDtype::F16) }, 3).unwrap_err();
    assert_eq!(error.to_string(), "`num_kv_heads` is 3, expected 1 with a latent");
    let good = KvGeometry { num_kv_heads: 1, ..good };
    let latent = KvGeometry { latent_size: Some(16), ..good };
    let error = KvPool::new(latent, 3).unwrap_err().to_string();
    assert_eq!(error, "keys with a latent are stored as f16 or bf16, but the KV dtype is int8");
    for latent_size in [0, 8, 32] {
        let latent = KvGeometry { latent_size: Some(latent_size), dtype: KvDtype::F16, ..good };
        let error = KvPool::new(latent, 3).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("`latent_size` is {latent_size}, expected a multiple of 16 up to the head size")
        );
    }
    let error = KvPool::new(KvGeometry { head_size: 513, ..good }, 3).unwrap_err().to_string();
    assert_eq!(error, "`head_size` is 513, expected 1 to 512");
    let mut pool = KvPool::new(good, 3).unwrap();
    let error = pool.copy_block(0, 3, 1).unwrap_err().to_string();
    assert_eq!(error, "block 3 does not exist, the pool has 3 blocks");
    for (source, destination, num_tokens) in [(0, 1, 0), (0, 1, 33), (1, 1, 4)] {
        assert!(matches!(pool.copy_block(source, destination, num_tokens), Err(KvPoolError::BadCopy { .. })));
    }
}

#[test]
fn dtypes_are_found_by_name() {
    for dtype in KvDtype::ALL {
        assert_eq!(dtype.name().parse::<KvDtype>().unwrap(), dtype);
    }
    let error = "fp8".parse::<KvDtype>().unwrap_err().to_string();
    assert_eq!(error, "KV dtype is \"fp8\"; hint: use `int8`, `int4`, `f16` or `bf16`");
}
