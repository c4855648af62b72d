//! The threads that read pieces ahead of the instructions that need them.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::memory::ImageMemory;
use super::positions::{Positions, Taken};
use super::schedule::Schedule;
use super::{ImageFile, StreamError, checksum};
use crate::direct_file::{BLOCK_BYTES, DirectFile};

#[derive(Debug)]
pub(super) struct Reader {
    file: DirectFile,
    remove: RemoveFile,
    image_offset: usize,
    image_bytes: usize,
    memory: Arc<ImageMemory>,
    schedule: Schedule,
    entries: Vec<CheckedEntry>,
    state: Mutex<State>,
    /// A copy of `Positions::loaded`, so that threads look at it without the lock.
    loaded: AtomicU64,
    /// The first position of the pass that runs.
    base: AtomicU64,
    has_room: Condvar,
    has_loaded: Condvar,
}

struct RemoveFile(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for RemoveFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RemoveFile")
    }
}

/// An entry of the image that has streamed pieces.
#[derive(Debug)]
struct CheckedEntry {
    index: usize,
    bytes: Range<usize>,
    checksum: u64,
}

#[derive(Debug)]
struct State {
    positions: Positions,
    /// True while a restart waits for the reads that have begun.
    is_restarting: bool,
    failure: Option<ReadFailure>,
    /// The checksums of pieces that have been read, by piece.
    sums: Vec<Option<u64>>,
    /// Entries that were not checked yet, by the last of their pieces in a pass.
    unchecked: HashMap<u64, Vec<usize>>,
    /// True once the threads are to end.
    is_stopping: bool,
}

#[derive(Debug)]
struct ReadFailure {
    position: u64,
    message: String,
}

impl Reader {
    /// Checks the entries that are in memory as a whole.
    pub(super) fn new(
        file: DirectFile,
        memory: Arc<ImageMemory>,
        schedule: Schedule,
        image: ImageFile<'_>,
    ) -> Result<Self, StreamError> {
        let table = image.table;
        let num_pieces = table.num_bytes.div_ceil(schedule.piece_bytes);
        let mut position_of = vec![None; num_pieces];
        schedule.order.iter().enumerate().for_each(|(at, piece)| position_of[*piece] = Some(at as u64));
        let (mut entries, mut unchecked) = (Vec::new(), HashMap::new());
        for (index, entry) in table.entries.iter().enumerate() {
            let bytes = entry.offset..entry.offset + entry.num_bytes;
            let pieces = bytes.start / schedule.piece_bytes..bytes.end.div_ceil(schedule.piece_bytes);
            if let Some(last) = position_of[pieces].iter().flatten().max() {
                unchecked.entry(*last).or_insert_with(Vec::new).push(entries.len());
                entries.push(CheckedEntry { index, bytes, checksum: image.checksums[index] });
                continue;
            }
            // SAFETY: resident pieces are never written again.
            let bytes = unsafe { memory.slice(bytes) };
            if checksum(bytes) != image.checksums[index] {
                (image.remove)();
                return Err(StreamError::Damaged {
                    path: image.path.to_owned(),
                    entry: index,
                    num_entries: table.entries.len(),
                });
            }
        }
        let state = State {
            positions: Positions::new(schedule.num_places),
            is_restarting: false,
            failure: None,
            sums: vec![None; num_pieces],
            unchecked,
            is_stopping: false,
        };
        Ok(Self {
            file,
            remove: RemoveFile(image.remove),
            image_offset: image.image_offset,
            image_bytes: table.num_bytes,
            memory,
            schedule,
            entries,
            state: Mutex::new(state),
            loaded: AtomicU64::new(0),
            base: AtomicU64::new(0),
            has_room: Condvar::new(),
            has_loaded: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass_len(&self) -> u64 {
        self.schedule.order.len() as u64
    }

    fn piece_at(&self, position: u64) -> usize {
        self.schedule.order[(position % self.pass_len()) as usize]
    }

    fn bytes_at(&self, position: u64) -> Range<usize> {
        self.schedule.bytes_of(self.piece_at(position), self.image_bytes)
    }

    pub(super) fn begin_pass(&self) {
        let state = self.lock();
        if state.failure.is_some() {
            self.restart(state, None);
        }
    }

    pub(super) fn enter(&self, instruction: usize, is_leader: bool) -> bool {
        let Some(need) = self.schedule.needs.get(instruction).copied().flatten() else { return true };
        let base = self.base.load(Ordering::Relaxed);
        if is_leader {
            self.give_back(&mut self.lock(), base + need.first as u64);
        }
        let end = base + need.end as u64;
        if self.loaded.load(Ordering::Acquire) >= end {
            return true;
        }
        let mut state = self.lock();
        loop {
            if state.positions.loaded() >= end {
                return true;
            }
            // What fails behind the instruction's pieces does not concern it.
            if state.failure.as_ref().is_some_and(|failure| failure.position < end) {
                return false;
            }
            state = self.has_loaded.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn end_pass(&self) -> Result<(), String> {
        let end = self.base.load(Ordering::Relaxed) + self.pass_len();
        self.base.store(end, Ordering::Relaxed);
        let mut state = self.lock();
        if state.positions.loaded() >= end {
            self.give_back(&mut state, end);
            return Ok(());
        }
        let message = state.failure.take().map(|failure| failure.message);
        self.restart(state, Some(end));
        Err(message.unwrap_or_else(|| "the pass did not wait for its weights".to_owned()))
    }

    pub(super) fn stop(&self) {
        self.lock().is_stopping = true;
        self.has_room.notify_all();
    }

    fn give_back(&self, state: &mut State, free: u64) {
        if state.positions.give_back(free) {
            self.has_room.notify_all();
        }
    }

    /// Forgets a failure and begins to read behind what is loaded, or at `position`, for which everything is dropped.
    /// Waits for reads that have begun, which may load more. No instruction runs.
    fn restart(&self, mut state: MutexGuard<'_, State>, position: Option<u64>) {
        state.is_restarting = true;
        while !state.positions.is_idle() {
            state = self.has_loaded.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        for position in state.positions.restart(position) {
            // SAFETY: neither instructions nor reads run.
            unsafe { self.memory.drop_piece(self.bytes_at(position)) };
        }
        state.failure = None;
        state.is_restarting = false;
        self.loaded.store(state.positions.loaded(), Ordering::Release);
        self.has_room.notify_all();
    }

    /// Waits until there is room for another piece, and returns its position. `None` ends the thread.
    fn take(&self) -> Option<u64> {
        let mut state = self.lock();
        loop {
            if state.is_stopping {
                return None;
            }
            let may_read = state.failure.is_none() && !state.is_restarting;
            if let Some(Taken { position, dropped }) = may_read.then(|| state.positions.take()).flatten() {
                if let Some(dropped) = dropped {
                    // SAFETY: its place was given back, so no instruction reads it, and no reader writes to it.
                    unsafe { self.memory.drop_piece(self.bytes_at(dropped)) };
                }
                return Some(position);
            }
            state = self.has_room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reads the piece at a position and returns its checksum.
    fn read(&self, position: u64) -> io::Result<u64> {
        let bytes = self.bytes_at(position);
        // SAFETY: the piece is not loaded, so no instruction reads it, and each position has one reader.
        let into = unsafe { self.memory.slice_mut(bytes.start..bytes.end.next_multiple_of(BLOCK_BYTES)) };
        self.file.read(into, (self.image_offset + bytes.start) as u64, bytes.len())?;
        Ok(checksum(&into[..bytes.len()]))
    }

    /// Records the result of a read.
    fn finish(&self, position: u64, sum: io::Result<u64>) {
        let mut state = self.lock();
        let piece = self.piece_at(position);
        let path = self.file.path.display();
        let problem = match sum {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Some(format!("`{path}` is truncated"))
            }
            Err(error) => Some(format!("cannot read `{path}`: {error}")),
            Ok(sum) if state.sums[piece].is_some_and(|known| known != sum) => {
                Some(format!("`{path}` has other bytes than before in piece {piece}; hint: check the disk"))
            }
            Ok(sum) => {
                state.sums[piece] = Some(sum);
                None
            }
        };
        state.positions.end_read(position, problem.is_none());
        match problem {
            Some(problem) => self.fail(&mut state, position, problem),
            None => self.advance(&mut state),
        }
        self.has_loaded.notify_all();
    }

    /// Counts all pieces as loaded that have been read, and checks the entries that are complete for the first time.
    fn advance(&self, state: &mut State) {
        while state.positions.can_advance() {
            let position = state.positions.loaded();
            let at = position % self.pass_len();
            let damaged = state.unchecked.get(&at).and_then(|entries| {
                // SAFETY: the entry's pieces are in memory until its instruction has run, which waits for this one.
                let is_damaged = |entry: &&CheckedEntry| unsafe {
                    checksum(self.memory.slice(entry.bytes.clone())) != entry.checksum
                };
                entries.iter().map(|entry| &self.entries[*entry]).find(is_damaged)
            });
            if let Some(entry) = damaged {
                let pieces = entry.bytes.start / self.schedule.piece_bytes
                    ..entry.bytes.end.div_ceil(self.schedule.piece_bytes);
                state.sums[pieces].fill(None);
                (self.remove.0)();
                let what = format!(
                    "`{}` has damaged bytes in entry {}; hint: restart the server, which packs the weights again",
                    self.file.path.display(),
                    entry.index
                );
                self.fail(state, position, what);
                return;
            }
            state.unchecked.remove(&at);
            state.positions.advance();
            self.loaded.store(position + 1, Ordering::Release);
        }
    }

    fn fail(&self, state: &mut State, position: u64, message: String) {
        if state.failure.as_ref().is_none_or(|known| position < known.position) {
            state.failure = Some(ReadFailure { position, message });
        }
    }
}

/// Reads pieces until the stream stops.
pub(super) fn reads(reader: &Reader) {
    while let Some(position) = reader.take() {
        let sum = reader.read(position);
        reader.finish(position, sum);
    }
}
