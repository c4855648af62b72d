//! Tests of the weight cache: hits, misses, damaged files and concurrent processes.

mod format;
mod header;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, SystemTime};

use trunkline_kernels::executor::Executor;
use trunkline_kernels::isa::Isa;
use trunkline_kernels::pack::Format;
use trunkline_kernels::program::{ProgramBuilder, ProgramConfig};
use trunkline_kernels::threads::Pinning;
use trunkline_kernels::weight_cache::{CacheState, KEY_BYTES, KeepError, Kept, Miss, WeightCache, folder};

use self::header::Header;
use crate::GEOMETRY;
use crate::random::{Random, bits};

const HIDDEN: usize = 64;
const VOCAB: usize = 70;
const THREADS: usize = 2;
const NOTE: &str = "0123456789abcdef";

/// Returns a small model with random Q8_0 and f32 weights.
fn builder() -> ProgramBuilder {
    builder_of(false)
}

/// Like [`builder`], optionally with the weights of k and v, which have the same shape, swapped.
fn builder_of(swaps_k_and_v: bool) -> ProgramBuilder {
    let geometry = GEOMETRY;
    let config = ProgramConfig { max_step_tokens: 16, max_step_sequences: 4, num_blocks: 4, geometry };
    let mut random = Random::new(1);
    let mut b = ProgramBuilder::new(config).unwrap();
    let mut matrix = |b: &mut ProgramBuilder, rows: usize| {
        let mut bytes = Vec::new();
        for _ in 0..rows * HIDDEN / 32 {
            bytes.extend(half::f16::from_f32(0.01).to_le_bytes());
            bytes.extend((0..32).map(|_| random.next() as u8));
        }
        b.weight(Format::Q8_0, bytes, &[rows, HIDDEN]).unwrap()
    };
    let embedding = matrix(&mut b, VOCAB);
    let [q, k, v] = [64, 32, 32].map(|rows| matrix(&mut b, rows));
    let norm: Vec<u8> = (0..HIDDEN).flat_map(|i| (1.0 + i as f32 * 0.01).to_le_bytes()).collect();
    let norm = b.weight(Format::F32, norm, &[HIDDEN]).unwrap();
    let x = b.embedding(embedding).unwrap();
    let h = b.rms_norm(x, norm, 1e-5).unwrap();
    let [k, v] = if swaps_k_and_v { [v, k] } else { [k, v] };
    let [q, k, v] = [q, k, v].map(|weight| b.linear(h, weight, None).unwrap());
    b.write_kv(0, k, Some(v)).unwrap();
    let a = b.paged_attention(0, q, 1.0, None, None, None).unwrap();
    let x = b.add(x, a).unwrap();
    b.logits(x, embedding, None).unwrap();
    b
}

fn cache(folder: &Path) -> WeightCache {
    WeightCache { folder: folder.to_owned(), key: [7; KEY_BYTES], max_bytes: 1 << 30, memory: None }
}

fn build(cache: WeightCache) -> (Executor, CacheState) {
    builder().build_cached(THREADS, Pinning::Off, cache, None).unwrap()
}

fn scores(mut executor: Executor) -> Vec<u32> {
    bits(&executor.score(&[3, 1, 4, 1, 5, 69, 0]).unwrap())
}

fn expected_scores() -> Vec<u32> {
    scores(builder().build_for(THREADS, Isa::detect().unwrap()).unwrap())
}

fn keep(cache: WeightCache) -> Kept {
    match build(cache) {
        (_, CacheState::Missed(_, writer)) => writer.keep_now(NOTE).unwrap(),
        (_, CacheState::Mapped(_)) => Kept::AlreadyThere,
    }
}

fn good_file(folder: &Path) -> Vec<u8> {
    keep(cache(folder));
    fs::read(cache(folder).path()).unwrap()
}

/// Starts with the file `bytes` and returns the message of the miss. Checks that results are correct and that the file
/// is replaced.
fn miss_of(folder: &Path, bytes: &[u8]) -> Option<String> {
    let path = cache(folder).path();
    fs::write(&path, bytes).unwrap();
    let (executor, state) = build(cache(folder));
    assert_eq!(scores(executor), expected_scores());
    let CacheState::Missed(miss, writer) = state else { return None };
    assert!(!path.exists(), "a file that is of no use stays in the way: {miss}");
    assert!(matches!(writer.keep_now(NOTE).unwrap(), Kept::Written(_)));
    let (executor, state) = build(cache(folder));
    assert!(matches!(state, CacheState::Mapped(note) if note == NOTE));
    assert_eq!(scores(executor), expected_scores());
    Some(miss.to_string())
}

#[test]
fn the_second_start_maps_what_the_first_one_packed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(&folder.path().join("made/when/needed"));
    let (first, state) = build(cache.clone());
    let CacheState::Missed(Miss::Absent, writer) = state else { panic!("{state:?}") };
    // The weights are stored while the first executor computes.
    let (first, kept) = std::thread::scope(|scope| {
        let kept = scope.spawn(|| writer.keep(NOTE).unwrap());
        (scores(first), kept.join().unwrap())
    });
    assert_eq!(kept, Kept::Written(fs::metadata(cache.path()).unwrap().len()));
    let (second, state) = build(cache.clone());
    assert!(matches!(state, CacheState::Mapped(note) if note == NOTE));
    // If the file is removed, executors that have mapped it continue.
    fs::remove_file(cache.path()).unwrap();
    assert_eq!(scores(second), first);
    assert_eq!(first, expected_scores());
}

#[test]
fn files_truncated_anywhere_are_misses() {
    let folder = tempfile::tempdir().unwrap();
    let good = good_file(folder.path());
    for len in [0, 1, 8, 100, 133, 200, 4095, 4096, 5000, good.len() / 2, good.len() - 1] {
        assert!(miss_of(folder.path(), &good[..len]).is_some(), "{len} of {} bytes", good.len());
    }
    let mut longer = good.clone();
    longer.push(0);
    assert!(miss_of(folder.path(), &longer).is_some(), "one byte too many");
    assert!(miss_of(folder.path(), &vec![0; good.len()]).is_some(), "zeros, as after a crash");
    assert_eq!(miss_of(folder.path(), &good), None);
}

#[test]
fn a_file_with_a_flipped_bit_is_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let good = good_file(folder.path());
    let header = Header::read(&good);
    let image_at = header.image_offset as usize;
    let entries: Vec<_> = header
        .entries
        .iter()
        .map(|entry| image_at + entry.offset as usize..image_at + (entry.offset + entry.num_bytes) as usize)
        .collect();
    let mut positions = vec![0, 9, 13, 20, 30, 40, 70, 75, 132, 140, 150];
    positions.extend(entries.iter().flat_map(|entry| [entry.start, entry.end - 1]));
    let seed = 20;
    let mut random = Random::new(seed);
    // The zeros between header and image are not read.
    let is_read = |at: &usize| entries.iter().any(|entry| entry.contains(at));
    positions.extend((0..40).map(|_| random.below(good.len())).filter(is_read));
    for at in positions {
        let mut bad = good.clone();
        bad[at] ^= 1 << random.below(8);
        let miss = miss_of(folder.path(), &bad);
        assert!(miss.is_some(), "seed {seed}: byte {at} of {} changed unnoticed", good.len());
    }
}

#[test]
fn progress_is_reported_while_weights_are_packed_and_not_while_they_are_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let shares = || {
        let shares = Arc::new(Mutex::new(Vec::new()));
        let mut builder = builder();
        let heard = shares.clone();
        builder.on_progress(Duration::ZERO, move |share| heard.lock().unwrap().push(share));
        let (_, state) = builder.build_cached(1, Pinning::Off, cache(folder.path()), None).unwrap();
        if let CacheState::Missed(_, writer) = state {
            writer.keep(NOTE).unwrap();
        }
        Arc::into_inner(shares).unwrap().into_inner().unwrap()
    };
    let packed = shares();
    assert!(packed[0] > 0.0 && packed.is_sorted_by(|a, b| a < b), "{packed:?}");
    assert_eq!(packed.last(), Some(&1.0));
    assert_eq!(shares(), [0.0; 0]);
}

#[test]
fn files_of_other_keys_weights_or_programs_are_misses() {
    let folder = tempfile::tempdir().unwrap();
    let path = cache(folder.path()).path();
    let other_key = WeightCache { key: [8; KEY_BYTES], ..cache(folder.path()) };
    keep(other_key.clone());
    let miss = miss_of(folder.path(), &fs::read(other_key.path()).unwrap()).unwrap();
    assert!(miss.contains("from other weights"), "{miss}");
    // The same key by mistake, but weights of the same shapes that are joined differently.
    keep(cache(folder.path()));
    let other = builder_of(true).build_cached(THREADS, Pinning::Off, cache(folder.path()), None).unwrap();
    assert!(matches!(other.1, CacheState::Missed(Miss::Unusable { .. }, _)), "{:?}", other.1);
    assert!(!path.exists());
    assert_ne!(scores(other.0), expected_scores());
}

#[test]
fn an_unusable_folder_disables_only_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    File::create(&file).unwrap();
    for impossible in [file.clone(), file.join("below"), "/proc/self/fdinfo/nothing".into()] {
        let (executor, state) = build(cache(&impossible));
        assert_eq!(scores(executor), expected_scores());
        let CacheState::Missed(_, writer) = state else { panic!("{state:?}") };
        let error = writer.keep_now(NOTE).unwrap_err().to_string();
        assert!(error.starts_with("cannot create the folder"), "{error}");
    }
    // A folder with the name of the file.
    fs::create_dir_all(cache(folder.path()).path().join("x")).unwrap();
    let (_, state) = build(cache(folder.path()));
    let CacheState::Missed(_, writer) = state else { panic!("{state:?}") };
    assert!(matches!(writer.keep_now(NOTE), Err(KeepError::System { what: "rename to", .. })));
    assert_eq!(part_files(folder.path()), 0);
}

fn part_files(folder: &Path) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with("weights-part")).count()
}

#[test]
fn a_write_that_fails_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.weights");
    let full = || io::Error::from_raw_os_error(libc::ENOSPC);
    let error = folder::put(folder.path(), &path, 1 << 30, 4096, |out| {
        io::Write::write_all(out, &[1; 100])?;
        Err(full())
    });
    assert!(matches!(error, Err(KeepError::System { what: "write", .. })), "{error:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn many_writers_at_once_leave_one_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let (_, CacheState::Missed(_, late)) = build(cache(folder.path())) else {
        panic!("nobody has written yet")
    };
    let start = Barrier::new(4);
    let results: Vec<Kept> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let (_, state) = build(cache(folder.path()));
                    start.wait();
                    match state {
                        CacheState::Missed(_, writer) => writer.keep_now(NOTE).unwrap(),
                        CacheState::Mapped(_) => panic!("nobody has written yet"),
                    }
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert!(results.iter().any(|kept| matches!(kept, Kept::Written(_))));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let (executor, state) = build(cache(folder.path()));
    assert!(matches!(state, CacheState::Mapped(_)));
    assert_eq!(scores(executor), expected_scores());
    // Later writers find the file.
    assert_eq!(late.keep_now(NOTE).unwrap(), Kept::AlreadyThere);
}

#[test]
fn temporary_files_are_removed_only_if_their_writer_is_dead() {
    let folder = tempfile::tempdir().unwrap();
    let dead = folder.path().join("a.1-0-0.weights-part");
    let living = folder.path().join("b.2-0-0.weights-part");
    fs::write(&dead, "half a file").unwrap();
    let held = File::create(&living).unwrap();
    held.try_lock().unwrap();
    keep(cache(folder.path()));
    assert!(!dead.exists() && living.exists());
}

#[test]
fn the_least_recently_used_files_are_evicted_and_other_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    let file_bytes = good_file(folder.path()).len() as u64;
    let of = |key: u8, max_files: u64| WeightCache {
        key: [key; KEY_BYTES],
        max_bytes: max_files * file_bytes + 1,
        ..cache(folder.path())
    };
    fs::write(folder.path().join("notes.txt"), vec![0; 1 << 20]).unwrap();
    for (age_s, key) in [(40, 1), (30, 2), (20, 3)] {
        keep(of(key, 10));
        let file = OpenOptions::new().write(true).open(of(key, 10).path()).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age_s)).unwrap();
    }
    fs::remove_file(cache(folder.path()).path()).unwrap();
    // Using the oldest file makes it the newest.
    assert!(matches!(build(of(1, 10)).1, CacheState::Mapped(_)));
    keep(of(4, 3));
    let is_there = [1, 2, 3, 4].map(|key| of(key, 3).path().exists());
    assert_eq!(is_there, [true, false, true, true]);
    // A file that never fits is refused, and no file is removed for it.
    let CacheState::Missed(_, writer) = build(WeightCache { max_bytes: file_bytes - 1, ..of(5, 1) }).1 else {
        panic!("nobody has written it")
    };
    assert!(matches!(writer.keep_now(NOTE), Err(KeepError::TooLarge { .. })));
    assert!(of(1, 1).path().exists() && of(4, 1).path().exists());
    assert!(folder.path().join("notes.txt").exists());
}

#[test]
fn a_file_is_checked_completely_before_it_is_used() {
    // Change the last byte of the last entry in place, which keeps the file's size and header.
    let folder = tempfile::tempdir().unwrap();
    let good = good_file(folder.path());
    let header = Header::read(&good);
    let last = header.entries.last().unwrap();
    let at = (header.image_offset + last.offset + last.num_bytes - 1) as usize;
    let file = OpenOptions::new().write(true).open(cache(folder.path()).path()).unwrap();
    file.write_all_at(&[good[at] ^ 128], at as u64).unwrap();
    let (executor, state) = build(cache(folder.path()));
    let CacheState::Missed(miss, _) = state else { panic!("{state:?}") };
    assert!(miss.to_string().contains("has damaged bytes in entry 3 of 4"), "{miss}");
    assert_eq!(scores(executor), expected_scores());
}

#[cfg(target_os = "linux")]
#[test]
fn keep_does_not_change_the_priority_of_its_caller() {
    // SAFETY: the call only reads the policy of the calling thread (0).
    let urgency = || unsafe { libc::sched_getscheduler(0) };
    let before = urgency();
    assert_ne!(before, libc::SCHED_IDLE);
    let folder = tempfile::tempdir().unwrap();
    let (_, CacheState::Missed(_, writer)) = build(cache(folder.path())) else {
        panic!("nobody has written yet")
    };
    assert!(matches!(writer.keep(NOTE).unwrap(), Kept::Written(_)));
    assert_eq!(urgency(), before);
}
