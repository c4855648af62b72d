//! Reads and writes blocks of a store in memory borrowed from Python for one call, for backends without an executor.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use trunkline_contract::BlockKey;
use trunkline_store::{ReadError, Store};

/// Number of threads that read the blocks of one call.
const NUM_READERS: usize = 2;
/// Number of blocks that are read ahead into the page cache.
const READ_AHEAD: usize = 4;

/// The memory of a block, borrowed from Python while this value lives.
pub(super) struct Borrowed {
    buffer: PyUntypedBuffer,
}

impl Borrowed {
    /// Borrows `data`. Fails unless it has `num_bytes` contiguous bytes, which must be writable if `is_written`.
    pub(super) fn new(data: &Bound<'_, PyAny>, num_bytes: u64, is_written: bool) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(data)?;
        if !buffer.is_c_contiguous() || (is_written && buffer.readonly()) {
            return Err(PyTypeError::new_err(
                "a block's memory must be contiguous, and writable if it is read into",
            ));
        }
        if buffer.len_bytes() as u64 != num_bytes || num_bytes == 0 {
            let found = buffer.len_bytes();
            return Err(PyValueError::new_err(format!(
                "a block's memory has {found} bytes, expected {num_bytes}"
            )));
        }
        Ok(Self { buffer })
    }

    fn begin(&self) -> usize {
        self.buffer.buf_ptr() as usize
    }

    /// The bytes. The Python caller must not write them during the call.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: a contiguous buffer has `len_bytes` readable bytes at `buf_ptr`, which stay valid while it is held.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast::<u8>(), self.buffer.len_bytes()) }
    }
}

/// A block to read, with the memory that receives it.
pub(super) struct BlockRead {
    pub(super) slot: u32,
    pub(super) key: BlockKey,
    pub(super) memory: Borrowed,
}

/// Fails if the memory of two blocks overlaps, because several threads write it.
pub(super) fn check_disjoint(blocks: &[BlockRead]) -> PyResult<()> {
    let mut ranges: Vec<_> =
        blocks.iter().map(|block| (block.memory.begin(), block.memory.buffer.len_bytes())).collect();
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        None => Ok(()),
        Some(_) => Err(PyValueError::new_err("the memory of two blocks overlaps")),
    }
}

/// Reads blocks in parallel. Returns the number of blocks before the first missing or damaged one, and the error of
/// that one. The memory of later blocks may hold anything.
pub(super) fn read_in_parallel(store: &Store, blocks: &[BlockRead]) -> (usize, Option<ReadError>) {
    let targets: Vec<Target> = blocks.iter().map(Target::of).collect();
    let (next, num_good) = (AtomicUsize::new(0), AtomicUsize::new(targets.len()));
    targets.iter().take(READ_AHEAD).for_each(|target| store.will_need(target.slot));
    let read = || {
        let mut failure: Option<(usize, ReadError)> = None;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            // Blocks after a missing one are not used.
            if index >= num_good.load(Ordering::Relaxed) {
                return failure;
            }
            if let Some(ahead) = targets.get(index + READ_AHEAD) {
                store.will_need(ahead.slot);
            }
            if let Err(error) = targets[index].read(store) {
                num_good.fetch_min(index, Ordering::Relaxed);
                failure = Some((index, error));
            }
        }
    };
    let failures: Vec<(usize, ReadError)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..NUM_READERS.min(targets.len())).map(|_| scope.spawn(read)).collect();
        let mine = read();
        let theirs = others.into_iter().map(|thread| thread.join().expect("a read does not panic"));
        mine.into_iter().chain(theirs.flatten()).collect()
    });
    let first = failures.into_iter().min_by_key(|(index, _)| *index);
    (num_good.into_inner(), first.map(|(_, error)| error))
}

/// A [`BlockRead`] as plain pointers, which can be shared between threads.
struct Target {
    slot: u32,
    key: BlockKey,
    begin: *mut u8,
    num_bytes: usize,
}
// SAFETY: one thread writes each target while its creator holds the memory.
unsafe impl Sync for Target {}

impl Target {
    fn of(block: &BlockRead) -> Self {
        let buffer = &block.memory.buffer;
        let (begin, num_bytes) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
        Self { slot: block.slot, key: block.key, begin, num_bytes }
    }

    fn read(&self, store: &Store) -> Result<(), ReadError> {
        // SAFETY: the bytes are contiguous, writable and held (`Borrowed`), and do not overlap those of other blocks
        // (`check_disjoint`). The Python caller must not access them during the call.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.begin, self.num_bytes) };
        store.read(self.slot, self.key, bytes).map(drop)
    }
}
