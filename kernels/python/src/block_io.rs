//! Blocks of a store from and to memory that Python lends for one call: for backends without an executor.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use trunkline_contract::BlockKey;
use trunkline_store::{ReadError, Store};

/// Blocks of one call that are read at once.
const NUM_READERS: usize = 2;
/// Blocks that the system is asked for ahead of those that are read.
const READ_AHEAD: usize = 4;

/// A block's memory, held for as long as this lives.
pub(super) struct Lent {
    buffer: PyUntypedBuffer,
}

impl Lent {
    /// Fails unless `data` is `num_bytes` contiguous bytes, and may be written if it `is_written`.
    pub(super) fn new(data: &Bound<'_, PyAny>, num_bytes: u64, is_written: bool) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(data)?;
        if !buffer.is_c_contiguous() || (is_written && buffer.readonly()) {
            return Err(PyTypeError::new_err(
                "a block's memory is contiguous, and can be written if it is read into",
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

    /// The bytes, which nobody writes meanwhile: who calls from Python promises that.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: a contiguous buffer is `len_bytes` readable bytes from `buf_ptr`, and stays while it is held.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast::<u8>(), self.buffer.len_bytes()) }
    }
}

/// A block to read, and where it goes.
pub(super) struct Wanted {
    pub(super) slot: u32,
    pub(super) key: BlockKey,
    pub(super) memory: Lent,
}

/// Fails if two blocks go to the same memory: they are read by several threads.
pub(super) fn check_apart(blocks: &[Wanted]) -> PyResult<()> {
    let mut ranges: Vec<_> =
        blocks.iter().map(|block| (block.memory.begin(), block.memory.buffer.len_bytes())).collect();
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        None => Ok(()),
        Some(_) => Err(PyValueError::new_err("two blocks are read into the same memory")),
    }
}

/// Reads blocks side by side. Returns how many, from the first on, are what they should be, and what is wrong with the
/// next one. The memory of those behind it may hold anything.
pub(super) fn read_side_by_side(store: &Store, blocks: &[Wanted]) -> (usize, Option<ReadError>) {
    let places: Vec<Place> = blocks.iter().map(Place::of).collect();
    let (next, num_good) = (AtomicUsize::new(0), AtomicUsize::new(places.len()));
    places.iter().take(READ_AHEAD).for_each(|place| store.will_need(place.slot));
    let read = || {
        let mut failure: Option<(usize, ReadError)> = None;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            // What lies behind a block that is not there is of no use.
            if index >= num_good.load(Ordering::Relaxed) {
                return failure;
            }
            if let Some(ahead) = places.get(index + READ_AHEAD) {
                store.will_need(ahead.slot);
            }
            if let Err(error) = places[index].read(store) {
                num_good.fetch_min(index, Ordering::Relaxed);
                failure = Some((index, error));
            }
        }
    };
    let failures: Vec<(usize, ReadError)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..NUM_READERS.min(places.len())).map(|_| scope.spawn(read)).collect();
        let mine = read();
        let theirs = others.into_iter().map(|thread| thread.join().expect("a read does not panic"));
        mine.into_iter().chain(theirs.flatten()).collect()
    });
    let first = failures.into_iter().min_by_key(|(index, _)| *index);
    (num_good.into_inner(), first.map(|(_, error)| error))
}

/// [`Wanted`] without what belongs to Python.
struct Place {
    slot: u32,
    key: BlockKey,
    begin: *mut u8,
    num_bytes: usize,
}
// SAFETY: each place is read into by one thread, while who made it holds the memory.
unsafe impl Sync for Place {}

impl Place {
    fn of(block: &Wanted) -> Self {
        let buffer = &block.memory.buffer;
        let (begin, num_bytes) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
        Self { slot: block.slot, key: block.key, begin, num_bytes }
    }

    fn read(&self, store: &Store) -> Result<(), ReadError> {
        // SAFETY: contiguous and writable bytes that are held (`Lent`), apart from all others (`check_apart`). Nobody
        // else touches them meanwhile: who calls from Python promises that.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.begin, self.num_bytes) };
        store.read(self.slot, self.key, bytes).map(drop)
    }
}
