//! Tests of attention against exact results, and of every instruction set against the scalar one.

mod window;

use trunkline_kernels::attention::{
    Item, Rows, Scratch, Target, Window, attend, finish_states, num_segments, rows_per_item, state_size,
};
use trunkline_kernels::isa::Isa;
use trunkline_kernels::kv_pool::{KeyMean, KeyScaling, KeyTurns, KvDtype, KvGeometry, KvPool};
use trunkline_kernels::ops::rope::{RopeFrequencies, rope_in_place};

use crate::GEOMETRY;
use crate::random::{Random, bits};
use crate::{best, num_cases};

/// A sequence in a pool whose other slots hold NaN.
pub struct Case {
    pool: KvPool,
    block_table: Vec<u32>,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    num_tokens: usize,
    heads_per_kv_head: usize,
    scale: f32,
    pub window: Window,
    pub soft_cap: Option<f32>,
    sinks: Option<Vec<f32>>,
}

const LAYER: usize = 1;
/// Bits that are NaN in f16 and bf16.
const NAN_BITS: u16 = 0x7fff;

impl Case {
    fn new(random: &mut Random, geometry: KvGeometry, heads_per_kv_head: usize, num_tokens: usize) -> Self {
        Self::written_by(Isa::SCALAR, random, geometry, heads_per_kv_head, num_tokens)
    }

    /// Creates a case whose keys have latents and are written with `isa`.
    pub fn of_latents(random: &mut Random, isa: Isa, dtype: KvDtype) -> Self {
        Self::written_by(isa, random, latent_geometry(72, 4, 32, dtype), 5, 530)
    }

    /// Creates a case with this head size, block size and number of tokens, whose K and V are written with `isa`.
    pub fn of_sizes(random: &mut Random, isa: Isa, dtype: KvDtype, sizes: [usize; 3]) -> Self {
        let [head_size, block_size, num_tokens] = sizes;
        let geometry =
            KvGeometry { num_layers: 2, num_kv_heads: 2, head_size, block_size, dtype, latent_size: None };
        Self::written_by(isa, random, geometry, 3, num_tokens)
    }

    fn written_by(
        isa: Isa,
        random: &mut Random,
        geometry: KvGeometry,
        heads_per_kv_head: usize,
        num_tokens: usize,
    ) -> Self {
        let num_blocks = num_tokens.div_ceil(geometry.block_size);
        let mut pool = KvPool::new(geometry, num_blocks + 3).unwrap();
        pool.fill(NAN_BITS);
        let mut block_table: Vec<u32> = (0..num_blocks as u32 + 3).collect();
        for i in (1..block_table.len()).rev() {
            block_table.swap(i, random.below(i + 1));
        }
        block_table.truncate(num_blocks);
        let width = geometry.num_kv_heads * geometry.head_size;
        // The reference uses the stored values, except for int8 and int4.
        let round = |x: f32| match geometry.dtype {
            KvDtype::Int8 | KvDtype::Int4 => x,
            KvDtype::F16 => half::f16::from_f32(x).to_f32(),
            KvDtype::Bf16 => half::bf16::from_f32(x).to_f32(),
        };
        let keys: Vec<f32> = random.normals(num_tokens * width).into_iter().map(round).collect();
        let values: Vec<f32> = match geometry.latent_size {
            None => random.normals(num_tokens * width).into_iter().map(round).collect(),
            Some(size) => keys
                .chunks_exact(geometry.head_size)
                .flat_map(|key| &key[key.len() - size..])
                .copied()
                .collect(),
        };
        for t in 0..num_tokens {
            let (block, offset) = (block_table[t / geometry.block_size], t % geometry.block_size);
            let row = t * width..(t + 1) * width;
            // SAFETY: there is only one thread.
            unsafe {
                if geometry.latent_size.is_some() {
                    pool.view().write_latent(isa, LAYER, block, offset, &keys[row]);
                } else {
                    pool.view().write(isa, LAYER, block, offset, &keys[row.clone()], &values[row]);
                }
            }
        }
        let queries = random.normals(num_tokens * width * heads_per_kv_head);
        let scale = 1.0 / (geometry.head_size as f32).sqrt();
        let (window, soft_cap) = (Window::NONE, None);
        Self {
            pool,
            block_table,
            queries,
            keys,
            values,
            num_tokens,
            heads_per_kv_head,
            scale,
            window,
            soft_cap,
            sinks: None,
        }
    }

    /// Elements of a query of all heads.
    fn query_width(&self) -> usize {
        self.queries.len() / self.num_tokens
    }

    /// Elements of a result of all heads.
    fn width(&self) -> usize {
        let g = self.pool.geometry();
        self.query_width() / g.head_size * g.value_size()
    }

    fn zeros(&self) -> Vec<f32> {
        vec![0.0; self.num_tokens * self.width()]
    }

    /// Computes the rows `first..end` of one block with items of `rows` rows, with separate segments if `split`.
    fn run(&mut self, isa: Isa, mut first: usize, end: usize, rows: usize, split: bool, out: &mut [f32]) {
        let (width, g) = (self.width(), *self.pool.geometry());
        let mut scratch = Scratch::new(&g, self.heads_per_kv_head);
        let rows = rows.min(rows_per_item(self.heads_per_kv_head));
        while first < end {
            let num_rows = rows.min(end - first).min(self.window.rows_together(first, g.block_size));
            let last_position = self.num_tokens - 1;
            let first_segment = self.window.first_segment(first);
            for kv_head in 0..g.num_kv_heads {
                let item = Item {
                    block_table: &self.block_table,
                    layer: LAYER,
                    kv_head,
                    heads_per_kv_head: self.heads_per_kv_head,
                    first_position: first,
                    last_position,
                    num_rows,
                    scale: self.scale,
                    soft_cap: self.soft_cap,
                    window: self.window,
                    sinks: self.sinks.as_deref(),
                    first_segment,
                    end_segment: num_segments(self.window.last_visible(first, last_position)),
                    next: None,
                };
                let query_width = self.query_width();
                let queries =
                    Rows { pointer: self.queries[first * query_width..].as_ptr(), stride: query_width };
                let out = Rows { pointer: out[first * width..].as_mut_ptr(), stride: width };
                let kv = self.pool.view();
                // SAFETY: there is only one thread, and the buffers hold all rows.
                unsafe {
                    if !split {
                        attend(isa, &kv, &item, queries, &mut scratch, Target::Rows(out));
                        continue;
                    }
                    let size = num_rows * self.heads_per_kv_head * state_size(g.padded_value_size());
                    let mut states = vec![0.0; size * (item.end_segment - first_segment)];
                    for segment in (first_segment..item.end_segment).rev() {
                        let part = Item { first_segment: segment, end_segment: segment + 1, ..item };
                        let target = Target::States(states[(segment - first_segment) * size..].as_mut_ptr());
                        attend(isa, &kv, &part, queries, &mut scratch, target);
                    }
                    finish_states(isa, &g, &item, states.as_ptr(), &mut scratch, out);
                }
            }
            first += num_rows;
        }
    }

    pub fn rows(&mut self, isa: Isa, first: usize) -> Vec<f32> {
        let mut out = self.zeros();
        self.run(isa, first, self.num_tokens, 64, false, &mut out);
        out.split_off(first * self.width())
    }

    /// Returns the bytes of block `index` of the sequence.
    pub fn stored_block(&self, index: usize) -> Vec<u8> {
        self.pool.whole_block(self.block_table[index]).unwrap().collect::<Vec<_>>().concat()
    }

    /// Computes plain softmax attention in f64.
    fn naive(&self) -> Vec<f64> {
        let g = self.pool.geometry();
        let (width, kv_width, d) = (self.query_width(), g.num_kv_heads * g.head_size, g.head_size);
        let (value_size, values_width) = (g.value_size(), g.num_kv_heads * g.value_size());
        let mut out = vec![0.0f64; self.num_tokens * self.width()];
        for t in 0..self.num_tokens {
            for head in 0..width / d {
                let kv_head = head / self.heads_per_kv_head;
                let kv = kv_head * d;
                let q = &self.queries[t * width + head * d..][..d];
                let first = self.window.first_visible(t);
                let last = self.window.last_visible(t, self.num_tokens - 1);
                let scores: Vec<f64> = (first..=last)
                    .map(|s| {
                        let k = &self.keys[s * kv_width + kv..][..d];
                        let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                        let score = dot * f64::from(self.scale);
                        let cap = |cap: f32| f64::from(cap) * (score / f64::from(cap)).tanh();
                        self.soft_cap.map_or(score, cap)
                    })
                    .collect();
                let sink = self.sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
                let max = scores.iter().copied().fold(sink, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum = weights.iter().sum::<f64>() + (sink - max).exp();
                for (s, weight) in weights.iter().enumerate() {
                    let value = &self.values[(first + s) * values_width + kv_head * value_size..];
                    for (i, element) in value[..value_size].iter().enumerate() {
                        out[t * self.width() + head * value_size + i] += weight / sum * f64::from(*element);
                    }
                }
            }
        }
        out
    }
}

fn random_geometry(random: &mut Random, dtype: KvDtype) -> (KvGeometry, usize) {
    let geometry = KvGeometry {
        num_layers: 2,
        num_kv_heads: 1 + random.below(2),
        head_size: [4, 16, 20, 64, 80, 128][random.below(6)],
        block_size: [16, 32, 64, 128][random.below(4)],
        dtype,
        latent_size: None,
    };
    (geometry, [1, 2, 3, 4, 5, 7, 8, 14][random.below(8)])
}

/// Returns the allowed largest and mean error for elements with a standard deviation of 1.
fn stated_errors(dtype: KvDtype) -> (f64, f64) {
    match dtype {
        KvDtype::Int8 => (0.08, 0.006),
        KvDtype::Int4 => (0.8, 0.06),
        KvDtype::F16 | KvDtype::Bf16 => (2e-5, 2e-6),
    }
}

/// Compares with exact attention, and compares bits on all instruction sets for all divisions of rows and segments.
fn check_all_ways(case: &mut Case, what: &str) {
    let num_tokens = case.num_tokens;
    let best = best();
    let mut expected = case.zeros();
    case.run(best, 0, num_tokens, 1, false, &mut expected);
    let errors: Vec<f64> =
        expected.iter().zip(case.naive()).map(|(got, exact)| (f64::from(*got) - exact).abs()).collect();
    let largest = errors.iter().fold(0.0, |a: f64, e| if *e < a { a } else { *e });
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    let (most, mut most_mean) = stated_errors(case.pool.geometry().dtype);
    if case.window == Window::new(1).unwrap() {
        // The output is a value as it is stored; the stated errors are those of mixed values.
        most_mean *= 1.5;
    }
    assert!(largest < most && mean < most_mean, "{what}: errors up to {largest}, mean {mean}");
    for isa in Isa::available() {
        // The scalar set is slow, so it computes only the last rows.
        let first = if isa == Isa::SCALAR { num_tokens.saturating_sub(20) } else { 0 };
        for (rows, split) in [(64, false), (7, false), (2, true)] {
            let mut got = expected.clone();
            got[first * case.width()..].fill(f32::NAN);
            case.run(isa, first, num_tokens, rows, split, &mut got);
            assert!(bits(&got) == bits(&expected), "{what}: {isa}, {rows} rows, split {split}");
        }
    }
}

/// Checks random cases, one for each seed, after `change`. Every `every`-th has `long` tokens, the others up to `most`.
fn check_random(
    (first_seed, num_seeds): (u64, u64),
    [every, long, most]: [usize; 3],
    change: impl Fn(&mut Case, &mut Random, u64),
) {
    for seed in 0..num_seeds {
        let dtype = KvDtype::ALL[seed as usize % KvDtype::ALL.len()];
        let mut random = Random::new(first_seed + seed);
        let (geometry, heads_per_kv_head) = random_geometry(&mut random, dtype);
        let is_long = (seed as usize).is_multiple_of(every);
        let num_tokens = if is_long { long } else { 1 + random.below(most) };
        let mut case = Case::new(&mut random, geometry, heads_per_kv_head, num_tokens);
        change(&mut case, &mut random, seed);
        let (window, cap) = (case.window, case.soft_cap);
        let what = format!("seed {seed}: {geometry:?} group {heads_per_kv_head} tokens {num_tokens}");
        check_all_ways(&mut case, &format!("{what} {window:?} {cap:?}"));
    }
}

#[test]
fn attention_is_near_exact_and_has_the_same_bits_in_every_division() {
    check_random((0, num_cases(12, 48)), [5, 530, 140], |_, _, _| {});
}

/// A geometry of keys with latents, of which 16 times `latent` elements are the value.
fn latent_geometry(head_size: usize, latent: usize, block_size: usize, dtype: KvDtype) -> KvGeometry {
    let latent_size = Some(16 * latent);
    KvGeometry { num_layers: 2, num_kv_heads: 1, head_size, block_size, dtype, latent_size }
}

#[test]
fn attention_to_latents_is_near_exact_and_has_the_same_bits_in_every_division() {
    for seed in 0..num_cases(8, 32) {
        let dtype = [KvDtype::F16, KvDtype::Bf16][seed as usize % 2];
        let mut random = Random::new(2000 + seed);
        // That of DeepSeek, and rows that are not whole vectors.
        let (head_size, latent) = [(576, 32), (20, 1), (80, 4), (32, 2)][random.below(4)];
        let geometry = latent_geometry(head_size, latent, [16, 32, 64, 128][random.below(4)], dtype);
        let heads = [1, 2, 5, 16, 20, 64][random.below(6)];
        let num_tokens = if seed % 4 == 0 { 530 } else { 1 + random.below(140) };
        let mut case = Case::new(&mut random, geometry, heads, num_tokens);
        if seed % 3 == 2 {
            (case.window, case.soft_cap) = (Window::new(1 + random.below(90)).unwrap(), Some(0.7));
        }
        check_all_ways(&mut case, &format!("seed {seed}: {geometry:?} {heads} heads, {num_tokens} tokens"));
    }
}

#[test]
fn later_latents_do_not_affect_a_query() {
    let geometry = latent_geometry(40, 2, 32, KvDtype::F16);
    let mut case = Case::new(&mut Random::new(6), geometry, 5, 40);
    let width = case.width();
    for isa in Isa::available() {
        let expected = case.rows(isa, 0);
        assert!(expected.iter().all(|x| x.is_finite()));
        let [infinite, before] = [vec![f32::INFINITY; 40], case.keys[20 * 40..21 * 40].to_vec()];
        let block = case.block_table[0];
        // SAFETY: there is only one thread.
        unsafe { case.pool.view().write_latent(isa, LAYER, block, 20, &infinite) };
        let got = case.rows(isa, 0);
        assert_eq!(bits(&got[..20 * width]), bits(&expected[..20 * width]), "{isa}");
        assert!(got[20 * width..].iter().any(|x| !x.is_finite()), "{isa}");
        // SAFETY: as above.
        unsafe { case.pool.view().write_latent(isa, LAYER, block, 20, &before) };
    }
}

#[test]
fn windows_and_soft_caps_are_near_exact_and_have_the_same_bits_in_every_division() {
    // Every fourth window begins and ends in different segments.
    check_random((1000, num_cases(16, 64)), [4, 540, 200], |case, random, _| {
        let (block_size, num_tokens) = (case.pool.geometry().block_size, case.num_tokens);
        let sizes = [1 + random.below(20), 1 + random.below(200), block_size, block_size + 1, num_tokens];
        case.window = Window::new(sizes[random.below(sizes.len())]).unwrap();
        case.soft_cap = [None, Some(0.7), Some(50.0)][random.below(3)];
    });
}

#[test]
fn encoders_see_both_sides_near_exactly_and_with_the_same_bits_in_every_division() {
    check_random((3000, num_cases(16, 64)), [4, 540, 200], |case, random, seed| {
        let (block_size, num_tokens) = (case.pool.geometry().block_size, case.num_tokens);
        let sizes = [1, 1 + random.below(200), block_size, block_size + 1, num_tokens];
        let window = Window::new(sizes[random.below(sizes.len())]).unwrap();
        case.window = if seed % 3 == 0 { Window::ALL } else { window.symmetric() };
    });
}

#[test]
fn sinks_take_part_in_the_softmax_and_have_no_value() {
    check_random((2000, num_cases(12, 48)), [4, 540, 140], |case, random, seed| {
        // Some sinks take nearly everything, and some nearly nothing.
        let num_heads = case.pool.geometry().num_kv_heads * case.heads_per_kv_head;
        case.sinks = Some(random.normals(num_heads).into_iter().map(|x| 8.0 * x).collect());
        if seed % 3 == 0 {
            case.window = Window::new(1 + random.below(200)).unwrap();
        }
    });
}

#[test]
fn a_sink_beyond_all_scores_gives_zero_and_one_below_them_changes_nothing() {
    for dtype in KvDtype::ALL {
        let mut case = Case::of_sizes(&mut Random::new(10), best(), dtype, [64, 64, 70]);
        for isa in Isa::available() {
            case.sinks = None;
            let plain = case.rows(isa, 60);
            for (sink, is_largest) in [(1e30, true), (-1e30, false), (f32::NEG_INFINITY, false)] {
                case.sinks = Some(vec![sink; 6]);
                for (got, plain) in case.rows(isa, 60).into_iter().zip(&plain) {
                    let expected = if is_largest { 0.0 } else { *plain };
                    assert!(
                        (got - expected).abs() < 1e-6,
                        "{dtype} {isa}: {got} for {expected}, sink {sink}"
                    );
                }
            }
        }
    }
}

#[test]
fn positions_before_the_window_have_no_effect_and_their_blocks_are_not_read() {
    for dtype in KvDtype::ALL {
        let geometry = KvGeometry { num_layers: 2, head_size: 16, dtype, ..GEOMETRY };
        let mut case = Case::new(&mut Random::new(7), geometry, 3, 100);
        case.window = Window::new(20).unwrap();
        let isa = best();
        let expected = case.rows(isa, 70);
        let infinite = vec![f32::INFINITY; 16];
        // The first query is at 70: it sees 51 to 70.
        for position in 48..51 {
            // SAFETY: there is only one thread.
            unsafe {
                case.pool.view().write(isa, LAYER, case.block_table[3], position % 16, &infinite, &infinite);
            }
        }
        // These blocks do not exist, so reading them would panic.
        case.block_table[..3].fill(u32::MAX);
        for isa in Isa::available() {
            assert_eq!(bits(&case.rows(isa, 70)), bits(&expected), "{dtype} {isa}");
        }
    }
}

#[test]
fn later_tokens_and_stale_slots_do_not_affect_a_query() {
    for dtype in KvDtype::ALL {
        let geometry = KvGeometry { num_layers: 2, head_size: 16, block_size: 32, dtype, ..GEOMETRY };
        let mut random = Random::new(5);
        let mut case = Case::new(&mut random, geometry, 3, 40);
        let isa = best();
        let (expected, width) = (case.rows(isa, 0), case.width());
        assert!(expected.iter().all(|x| x.is_finite()));
        let (infinite, finite) = (vec![f32::INFINITY; 16], vec![1.0; 16]);
        for (key, value) in [(&infinite, &infinite), (&finite, &infinite), (&infinite, &finite)] {
            // SAFETY: there is only one thread.
            unsafe { case.pool.view().write(isa, LAYER, case.block_table[0], 20, key, value) };
            for isa in Isa::available() {
                let got = case.rows(isa, 0);
                assert_eq!(bits(&got[..20 * width]), bits(&expected[..20 * width]), "{dtype} {isa}");
                // A key of infinities may also have a weight of 0, depending on its sign.
                assert!(got[20 * width..].iter().any(|x| !x.is_finite()), "{dtype} {isa}");
            }
        }
    }
}

#[test]
fn a_query_that_is_not_finite_gives_nan_and_a_zero_query_averages() {
    for dtype in KvDtype::ALL {
        let geometry = KvGeometry { num_layers: 2, block_size: 32, dtype, ..GEOMETRY };
        let most = if dtype == KvDtype::Int4 { 0.1 } else { 0.02 };
        let mut case = Case::new(&mut Random::new(6), geometry, 2, 70);
        let width = case.width();
        case.queries[50 * width..51 * width].fill(0.0);
        case.queries[60 * width + 3] = f32::NAN;
        let exact = case.naive();
        for isa in Isa::available() {
            let got = case.rows(isa, 0);
            for (got, exact) in got[50 * width..51 * width].iter().zip(&exact[50 * width..]) {
                assert!((f64::from(*got) - exact).abs() < most, "{dtype} {isa}: {got} for {exact}");
            }
            assert!(got[60 * width..60 * width + 32].iter().all(|x| x.is_nan()), "{dtype} {isa}");
            assert!(got[60 * width + 32..].iter().all(|x| x.is_finite()), "{dtype} {isa}");
        }
    }
}

#[test]
fn shifted_and_scaled_keys_give_the_same_attention() {
    let mut random = Random::new(8);
    let g = KvGeometry {
        num_layers: 2,
        num_kv_heads: 2,
        head_size: 64,
        block_size: 64,
        dtype: KvDtype::Int4,
        latent_size: None,
    };
    let mut case = Case::new(&mut random, g, 3, 150);
    // Keys around a mean that is larger than their deviations, with channel magnitudes that differ by up to 16 times.
    let means: Vec<f32> = random.normals(128).into_iter().map(|x| 8.0 * x).collect();
    let sizes: Vec<f32> = random.normals(128).into_iter().map(|x| x.clamp(-2.0, 2.0).exp2()).collect();
    for (i, key) in case.keys.iter_mut().enumerate() {
        *key = *key * sizes[i % 128] + means[i % 128];
    }
    for (i, query) in case.queries.iter_mut().enumerate() {
        *query /= sizes[i / 192 % 2 * 64 + i % 64];
    }
    let mut values = KeyScaling::none(&g).values().to_vec();
    for (head, scaling) in values.chunks_exact_mut(3 * 64).enumerate() {
        for d in 0..64 {
            let channel = head % 2 * 64 + d;
            scaling[d] = means[channel];
            scaling[64 + d] = 1.0 / sizes[channel];
            scaling[128 + d] = sizes[channel];
        }
    }
    let exact = case.naive();
    let mean_error = |case: &mut Case| {
        for t in 0..case.num_tokens {
            let row = t * 128..(t + 1) * 128;
            let (key, value) = (&case.keys[row.clone()], &case.values[row]);
            let (block, isa) = (case.block_table[t / 64], Isa::SCALAR);
            // SAFETY: there is only one thread.
            unsafe { case.pool.view().write(isa, LAYER, block, t % 64, key, value) };
        }
        let expected = case.rows(Isa::SCALAR, 0);
        for isa in Isa::available() {
            let mut got = vec![0.0; case.queries.len()];
            case.run(isa, 0, case.num_tokens, 1, true, &mut got);
            assert_eq!(bits(&got), bits(&expected), "{isa}");
        }
        let errors = expected.iter().zip(&exact).map(|(got, exact)| (f64::from(*got) - exact).abs());
        errors.sum::<f64>() / exact.len() as f64
    };
    let plain = mean_error(&mut case);
    case.pool.set_key_scaling(KeyScaling::from_values(&g, values).unwrap(), KeyTurns::fixed(g.num_layers));
    let scaled = mean_error(&mut case);
    assert!(scaled < stated_errors(KvDtype::Int4).1 && scaled < plain / 2.0, "{scaled}, plain {plain}");
}

#[test]
fn a_rotating_mean_of_keys_gives_the_same_attention() {
    let mut random = Random::new(9);
    let g = KvGeometry {
        num_layers: 2,
        num_kv_heads: 2,
        head_size: 20,
        block_size: 32,
        dtype: KvDtype::Int4,
        latent_size: None,
    };
    // The last four elements are not rotated.
    let frequencies = [RopeFrequencies::new((0..8).map(|i| 0.05 * 0.6f64.powi(i)).collect(), 1.5)];
    let turns = KeyTurns::new(&[KeyMean::Turns(0); 2], &frequencies, g.block_size, 20);
    for (window, num_tokens) in [(Window::NONE, 600), (Window::new(70).unwrap(), 200)] {
        let mut case = Case::new(&mut random, g, 3, num_tokens);
        case.window = window;
        let means: Vec<f32> = random.normals(2 * 20).into_iter().map(|x| 8.0 * x).collect();
        for t in 0..num_tokens {
            let mut common = means.clone();
            rope_in_place(Isa::SCALAR, &mut common, turns.row(LAYER, t / g.block_size), g.head_size);
            case.keys[t * 40..][..40].iter_mut().zip(common).for_each(|(key, common)| *key += common);
        }
        let mut values = KeyScaling::none(&g).values().to_vec();
        for (head, scaling) in values.chunks_exact_mut(3 * 20).enumerate() {
            scaling[..20].copy_from_slice(&means[head % 2 * 20..][..20]);
        }
        let store = |case: &mut Case, isa: Isa| {
            for t in 0..num_tokens {
                let row = t * 40..(t + 1) * 40;
                let (key, value) = (&case.keys[row.clone()], &case.values[row]);
                // SAFETY: there is only one thread.
                unsafe { case.pool.view().write(isa, LAYER, case.block_table[t / 32], t, key, value) };
            }
        };
        case.pool.set_key_scaling(KeyScaling::from_values(&g, values).unwrap(), turns.clone());
        let mut stored = None;
        for isa in Isa::available() {
            store(&mut case, isa);
            let blocks: Vec<Vec<u8>> = case
                .block_table
                .iter()
                .map(|block| case.pool.whole_block(*block).unwrap().flatten().copied().collect())
                .collect();
            assert!(*stored.get_or_insert_with(|| blocks.clone()) == blocks, "{isa}");
        }
        check_all_ways(&mut case, &format!("{window:?}"));
    }
}
