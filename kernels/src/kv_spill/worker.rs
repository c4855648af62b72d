//! The memory and the file of units, and the threads that move them between both.

use std::io;
use std::ptr::NonNull;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::xxh3_64;

use super::residency::{Load, Residency, Victim};
use crate::direct_file::DirectFile;

/// The memory of all units.
#[derive(Debug)]
pub(super) struct UnitMemory {
    start: NonNull<u8>,
    len: usize,
    unit_bytes: usize,
}

// SAFETY: the pool owns the bytes and outlives this value, and the callers of the unsafe methods keep accesses apart.
unsafe impl Send for UnitMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for UnitMemory {}

impl UnitMemory {
    /// `memory` begins at a page.
    pub(super) fn new(memory: NonNull<[u8]>, unit_bytes: usize) -> Self {
        Self { start: memory.cast(), len: memory.len(), unit_bytes }
    }

    fn offset(&self, unit: u32) -> usize {
        let offset = unit as usize * self.unit_bytes;
        assert!(offset + self.unit_bytes <= self.len, "a unit of the pool");
        offset
    }

    /// # Safety
    /// Nobody else reads, writes or drops the unit while it is borrowed.
    #[allow(clippy::mut_from_ref, reason = "the caller keeps accesses apart")]
    unsafe fn unit_mut(&self, unit: u32) -> &mut [u8] {
        // SAFETY: the range is inside the mapping, and the caller rules out aliases.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(self.offset(unit)), self.unit_bytes) }
    }

    /// Gives the memory of a unit back. Its bytes are zeros until they are written again.
    ///
    /// # Safety
    /// Nobody borrows the bytes.
    #[cfg(target_os = "linux")]
    unsafe fn drop_unit(&self, unit: u32) {
        let offset = self.offset(unit);
        // SAFETY: the range is inside the mapping, and the caller rules out borrows.
        unsafe {
            libc::madvise(self.start.as_ptr().add(offset).cast(), self.unit_bytes, libc::MADV_DONTNEED)
        };
    }

    /// # Safety
    /// Nobody borrows the bytes.
    #[cfg(not(target_os = "linux"))]
    unsafe fn drop_unit(&self, _unit: u32) {}
}

#[derive(Debug)]
struct State {
    residency: Residency,
    /// The checksums of the units in the file.
    sums: Vec<u64>,
    failure: Option<Failure>,
    /// True once the threads are to end.
    is_stopping: bool,
}

#[derive(Debug)]
struct Failure {
    position: usize,
    message: String,
}

#[derive(Debug)]
pub(super) struct Shared {
    memory: UnitMemory,
    file: DirectFile,
    state: Mutex<State>,
    /// There may be something to read or to write.
    has_work: Condvar,
    /// A unit was read, or could not be.
    has_moved: Condvar,
}

impl Shared {
    pub(super) fn new(memory: UnitMemory, file: DirectFile, residency: Residency) -> Self {
        let sums = vec![0; memory.len / memory.unit_bytes];
        Self {
            memory,
            file,
            state: Mutex::new(State { residency, sums, failure: None, is_stopping: false }),
            has_work: Condvar::new(),
            has_moved: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin_pass(&self, stages: impl Iterator<Item = impl Iterator<Item = u32>>) {
        let mut state = self.lock();
        state.residency.begin_pass(stages);
        if state.residency.skip().is_some() {
            self.has_work.notify_all();
        }
    }

    /// Waits until the units of a stage are in memory. Returns false if they cannot be read. The leader, which has
    /// `written`, ends the earlier stages and marks these units of the stage as written to.
    pub(super) fn enter(&self, stage: usize, written: Option<impl Iterator<Item = u32>>) -> bool {
        let mut state = self.lock();
        if written.is_some() {
            state.residency.enter(stage);
            if state.residency.skip().is_some() {
                self.has_work.notify_all();
            }
        }
        let end = state.residency.positions(stage).end;
        while state.residency.loaded() < end {
            // What fails behind the stage does not concern it.
            if state.failure.as_ref().is_some_and(|failure| failure.position < end) {
                return false;
            }
            state = self.has_moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        written.into_iter().flatten().for_each(|unit| state.residency.mark_dirty(unit));
        true
    }

    pub(super) fn end_pass(&self) -> Result<(), String> {
        let mut state = self.lock();
        state.residency.stop();
        while !state.residency.is_idle() {
            state = self.has_moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.residency.end_pass();
        state.failure.take().map_or(Ok(()), |failure| Err(failure.message))
    }

    pub(super) fn stop(&self) {
        self.lock().is_stopping = true;
        self.has_work.notify_all();
    }

    /// Waits until a unit has to be read. `None` ends the thread.
    fn take(&self) -> Option<Load> {
        let mut state = self.lock();
        loop {
            if state.is_stopping {
                return None;
            }
            let load = if state.failure.is_none() { state.residency.take() } else { None };
            // Units that were found in memory may be the last ones that a stage waits for.
            self.has_moved.notify_all();
            if load.is_some() {
                return load;
            }
            state = self.has_work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn evict(&self, Victim { unit, is_dirty }: Victim) -> io::Result<()> {
        let mut sum = None;
        if is_dirty {
            // SAFETY: the unit is moving, so neither steps nor other threads use it.
            let bytes = unsafe { self.memory.unit_mut(unit) };
            let written = self.file.write(bytes, self.memory.offset(unit) as u64);
            if let Err(error) = written {
                self.lock().residency.evicted(unit, false);
                return Err(error);
            }
            sum = Some(xxh3_64(bytes));
        }
        // SAFETY: as above.
        unsafe { self.memory.drop_unit(unit) };
        let mut state = self.lock();
        if let Some(sum) = sum {
            state.sums[unit as usize] = sum;
        }
        state.residency.evicted(unit, true);
        Ok(())
    }

    /// Reads a unit. Returns what is wrong, if anything is.
    fn read(&self, unit: u32) -> Result<(), String> {
        let folder = self.file.path.display();
        // SAFETY: the unit is moving, so neither steps nor other threads use it.
        let bytes = unsafe { self.memory.unit_mut(unit) };
        let len = bytes.len();
        let read = self.file.read(bytes, self.memory.offset(unit) as u64, len);
        read.map_err(|error| format!("cannot read the KV cache's file in `{folder}`: {error}"))?;
        let sum = self.lock().sums[unit as usize];
        if xxh3_64(bytes) == sum {
            return Ok(());
        }
        Err(format!(
            "the KV cache's file in `{folder}` has other bytes than were written; hint: check the disk"
        ))
    }

    fn load(&self, load: Load) {
        let moved = match load.victim.map_or(Ok(()), |victim| self.evict(victim)) {
            Ok(()) if load.is_stored => self.read(load.unit),
            Ok(()) => Ok(()),
            Err(error) => {
                Err(format!("cannot write the KV cache's file in `{}`: {error}", self.file.path.display()))
            }
        };
        let mut state = self.lock();
        match moved {
            Ok(()) => state.residency.end_read(load.position),
            Err(message) => {
                state.residency.give_up(load.position);
                if state.failure.as_ref().is_none_or(|known| load.position < known.position) {
                    state.failure = Some(Failure { position: load.position, message });
                }
            }
        }
        self.has_moved.notify_all();
        // What waited for the victim, or for room, goes on.
        self.has_work.notify_all();
    }
}

/// Moves units until the pool's owner stops.
pub(super) fn work(shared: &Shared) {
    while let Some(load) = shared.take() {
        shared.load(load);
    }
}
