//! Tests of weights that exceed their memory: the schedule, and programs whose weights are streamed.

mod positions;
mod schedule;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use trunkline_kernels::executor::Executor;
use trunkline_kernels::isa::Isa;
use trunkline_kernels::pack::Format;
use trunkline_kernels::program::{ProgramBuilder, ProgramConfig, ProgramError, ValueId, WeightId};
use trunkline_kernels::threads::Pinning;
use trunkline_kernels::weight_cache::{CacheState, KEY_BYTES, Miss, WeightCache};
use trunkline_kernels::weight_stream::StreamError;

use crate::GEOMETRY;
use crate::random::{Random, bits};

const HIDDEN: usize = 512;
const INNER: usize = 2048;
const BLOCKS: usize = 6;
const VOCAB: usize = 512;
const MIB: u64 = 1 << 20;
const TEXT: [u32; 9] = [3, 1, 4, 1, 5, 9, 2, 6, 5];
/// Room for the pieces that must stay, those of the largest product and some ahead: about half of the weights.
const MEMORY: u64 = 12 * MIB;

/// Returns a model of 20 MiB, most of it in [`BLOCKS`] blocks that each have two products.
fn builder() -> ProgramBuilder {
    let config =
        ProgramConfig { max_step_tokens: 4, max_step_sequences: 4, num_blocks: 4, geometry: GEOMETRY };
    let mut random = Random::new(5);
    let mut b = ProgramBuilder::new(config).unwrap();
    let mut matrix = |b: &mut ProgramBuilder, rows: usize, columns: usize| -> WeightId {
        b.weight(Format::Q8_0, random.weight(Format::Q8_0, rows, columns), &[rows, columns]).unwrap()
    };
    let [embedding, head] = [0, 1].map(|_| matrix(&mut b, VOCAB, HIDDEN));
    let [q, k, v] = [32, 32, 32].map(|rows| matrix(&mut b, rows, HIDDEN));
    let o = matrix(&mut b, HIDDEN, 32);
    let norm = |b: &mut ProgramBuilder, x: ValueId| {
        let ones = [1.0f32; HIDDEN].iter().flat_map(|one| one.to_le_bytes()).collect();
        let ones = b.weight(Format::F32, ones, &[HIDDEN]).unwrap();
        b.rms_norm(x, ones, 1e-5).unwrap()
    };
    let mut x = b.embedding(embedding).unwrap();
    let h = norm(&mut b, x);
    let [q, k, v] = [q, k, v].map(|weight| b.linear(h, weight, None).unwrap());
    b.write_kv(0, k, Some(v)).unwrap();
    let a = b.paged_attention(0, q, 1.0, None, None, None).unwrap();
    let a = b.linear(a, o, None).unwrap();
    x = b.add(x, a).unwrap();
    for _ in 0..BLOCKS {
        let h = norm(&mut b, x);
        let [gate, up] = [0, 1].map(|_| matrix(&mut b, INNER, HIDDEN));
        let down = matrix(&mut b, HIDDEN, INNER);
        let [gate, up] = [gate, up].map(|weight| b.linear(h, weight, None).unwrap());
        let inner = b.silu_mul(gate, up).unwrap();
        let y = b.linear(inner, down, None).unwrap();
        x = b.add(x, y).unwrap();
    }
    let h = norm(&mut b, x);
    b.logits(h, head, None).unwrap();
    b
}

fn cache(folder: &Path, memory: u64) -> WeightCache {
    WeightCache { folder: folder.to_owned(), key: [7; KEY_BYTES], max_bytes: 1 << 30, memory: Some(memory) }
}

fn build(cache: WeightCache) -> Result<(Executor, CacheState), ProgramError> {
    builder().build_cached(2, Pinning::Off, cache, None)
}

fn scores(executor: &mut Executor) -> Vec<u32> {
    bits(&executor.score(&TEXT).unwrap())
}

/// Scores once the file is right again. The first try may fail, because of pieces that were read ahead before.
fn scores_again(executor: &mut Executor) -> Vec<u32> {
    executor.score(&TEXT).map_or_else(|_| scores(executor), |scores| bits(&scores))
}

fn expected() -> Vec<u32> {
    scores(&mut builder().build_for(2, Isa::detect().unwrap()).unwrap())
}

/// Starts with no file, and leaves one.
fn start_and_keep(folder: &Path) -> Executor {
    let (executor, state) = build(cache(folder, MEMORY)).unwrap();
    let CacheState::Missed(Miss::Absent, writer) = state else { panic!("{state:?}") };
    writer.keep_now("a note").unwrap();
    executor
}

#[test]
fn streamed_weights_give_the_same_bits_in_the_memory_that_they_may_take() {
    let folder = tempfile::tempdir().unwrap();
    let expected = expected();
    let mut first = start_and_keep(folder.path());
    // A text of 9 tokens takes three passes.
    assert!(scores(&mut first) == expected && scores(&mut first) == expected);
    let smallest = match build(cache(folder.path(), 1)).err() {
        Some(ProgramError::Image(error)) => match error.downcast_ref() {
            Some(StreamError::TooLittle { needed_bytes, .. }) => *needed_bytes as u64,
            _ => panic!("{error}"),
        },
        other => panic!("{other:?}"),
    };
    assert!(smallest <= MEMORY, "{smallest}");
    for memory in [smallest, MEMORY, 18 * MIB] {
        let (mut executor, state) = build(cache(folder.path(), memory)).unwrap();
        assert!(matches!(state, CacheState::Mapped(note) if note == "a note"));
        let sizes = executor.stream_sizes().unwrap();
        assert!(sizes.resident_bytes + sizes.ahead_bytes <= memory as usize, "{sizes:?}");
        assert!(sizes.resident_bytes + sizes.streamed_bytes >= 19 * MIB as usize, "{sizes:?}");
        assert_eq!(scores(&mut executor), expected, "{memory} bytes");
    }
    let (mut whole, _) = build(cache(folder.path(), 64 * MIB)).unwrap();
    assert_eq!(whole.stream_sizes(), None);
    assert_eq!(scores(&mut whole), expected);
}

#[test]
fn a_file_that_is_packed_in_runs_is_the_file_of_an_image_in_memory() {
    let [runs, image] = [Some(MEMORY), None].map(|memory| {
        let folder = tempfile::tempdir().unwrap();
        let cache = WeightCache { memory, ..cache(folder.path(), 0) };
        let (_, state) = build(cache.clone()).unwrap();
        let CacheState::Missed(_, writer) = state else { panic!("{state:?}") };
        writer.keep_now("same").unwrap();
        fs::read(cache.path()).unwrap()
    });
    assert!(runs == image);
}

#[test]
fn weights_that_are_not_kept_are_streamed_from_a_file_without_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let (mut executor, state) = build(cache(folder.path(), MEMORY)).unwrap();
    drop(state);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert_eq!(scores(&mut executor), expected());
}

/// The offset in the file of a byte in the middle of the blocks, and its value. Both of its piece's neighbours are
/// streamed with [`MEMORY`] bytes or the piece itself is.
fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn bytes_that_change_fail_the_passes_that_read_them_until_they_are_right_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut executor = start_and_keep(folder.path());
    let (expected, path) = (scores(&mut executor), cache(folder.path(), MEMORY).path());
    let len = fs::metadata(&path).unwrap().len();
    // Pieces that stay in memory are not read again.
    let mut num_failed = 0;
    for at in (3 * MIB..len).step_by(2 << 20) {
        flip(&path, at);
        match executor.score(&TEXT) {
            Ok(scores) => assert_eq!(bits(&scores), expected, "byte {at}"),
            Err(error) => {
                num_failed += 1;
                assert!(error.to_string().contains("has other bytes than before"), "{error}");
            }
        }
        flip(&path, at);
        assert_eq!(scores_again(&mut executor), expected, "byte {at} is right again");
    }
    assert!(num_failed > 3, "{num_failed}");
    assert!(path.exists());
}

#[test]
fn a_file_that_was_damaged_before_the_start_is_never_computed_with() {
    let folder = tempfile::tempdir().unwrap();
    drop(start_and_keep(folder.path()));
    let path = cache(folder.path(), MEMORY).path();
    let (good, expected) = (fs::read(&path).unwrap(), expected());
    let (mut num_missed, mut num_failed) = (0, 0);
    for at in [2 * MIB + 100, 6 * MIB, 8 * MIB + 1, 13 * MIB, good.len() as u64 - 1] {
        fs::write(&path, &good).unwrap();
        flip(&path, at);
        let (mut executor, state) = build(cache(folder.path(), MEMORY)).unwrap();
        if let CacheState::Missed(miss, _) = state {
            assert!(miss.to_string().contains("has damaged bytes"), "{miss}");
            assert_eq!(scores(&mut executor), expected);
            num_missed += 1;
        } else {
            let error = executor.score(&TEXT).unwrap_err().to_string();
            assert!(error.contains("damaged bytes") && error.contains("restart"), "{error}");
            num_failed += 1;
        }
        assert!(!path.exists(), "the next start packs again");
    }
    assert!(num_missed > 0 && num_failed > 0, "{num_missed} {num_failed}");
}

#[test]
fn a_file_that_is_cut_off_fails_passes_and_the_executor_goes_on_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut executor = start_and_keep(folder.path());
    let (expected, path) = (scores(&mut executor), cache(folder.path(), MEMORY).path());
    let good = fs::read(&path).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for len in [good.len() as u64 / 2, 0] {
        file.set_len(len).unwrap();
        for _ in 0..2 {
            let error = executor.score(&TEXT).unwrap_err().to_string();
            assert!(error.ends_with("is truncated"), "{error}");
        }
        file.write_all_at(&good, 0).unwrap();
        assert_eq!(scores_again(&mut executor), expected);
    }
}
