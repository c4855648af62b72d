//! Threads that write and read blocks beside the steps.
//!
//! One thread writes, in the order of the requests; two threads read. Requests return at once, and the outcome of each
//! transfer is collected later.

use std::collections::{HashMap, HashSet, VecDeque};
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::store::{NewBlock, Store};
use crate::transfer::{
    NotComputed, Outcomes, Piece, QueueFull, RestoreBlock, RestoreOutcome, StoreBlock, StoreOutcome,
    TransferError,
};
use crate::trouble::{Counts, Troubles};

/// The most blocks that may wait to be written. Further blocks are not stored.
pub const MAX_QUEUED_STORES: usize = 1024;
/// The same limit in bytes, some hundred milliseconds of a disk's work. One block may always wait.
pub const MAX_QUEUED_BYTES: usize = 128 << 20;
/// The most restores that may wait for a reader. Further ones restore nothing.
pub const MAX_QUEUED_RESTORES: usize = 1024;
/// The number of block buffers that are kept for reuse. A step allocates none as long as the disk keeps up.
const MAX_SPARE_BUFFERS: usize = 16;
const NUM_READERS: usize = 2;
/// A thread with this niceness has a third of the share of a core that a thread with the usual 0 has.
const NICENESS: libc::c_int = 5;
/// The number of blocks that are read ahead.
const READ_AHEAD: usize = 4;

struct StoreJob {
    block: StoreBlock,
    bytes: Vec<u8>,
}

struct RestoreJob {
    restore_id: u64,
    blocks: Vec<RestoreBlock>,
    /// The folder of another store that has the blocks.
    folder: Option<PathBuf>,
}
// SAFETY: the caller of `Transfers::begin_restore` promises that the bytes may be written from any thread.
unsafe impl Send for RestoreJob {}

#[derive(Default)]
struct State {
    stores: VecDeque<StoreJob>,
    /// Block buffers for reuse.
    buffers: Vec<Vec<u8>>,
    restores: VecDeque<RestoreJob>,
    num_running: usize,
    /// The number of stores that are queued or in progress.
    num_stores: usize,
    /// The slots of stores that are queued or in progress.
    written: HashSet<u32>,
    /// The slots that restores will read, with the number of restores of each.
    read: HashMap<u32, usize>,
    outcomes: Outcomes,
    /// A caller is about to take the outcomes, so no other one needs to be woken.
    is_held: bool,
    /// Set by [`Transfers::wake`] and cleared by the call that it ends.
    is_woken: bool,
    is_stopping: bool,
    counts: Counts,
    troubles: Troubles,
}

impl State {
    fn is_idle(&self) -> bool {
        self.stores.is_empty() && self.restores.is_empty() && self.num_running == 0
    }

    fn end_store(&mut self, slot: u32, result: Result<(), &dyn std::error::Error>) {
        match result {
            Ok(()) => self.counts.stored += 1,
            Err(failure) => {
                self.counts.not_stored += 1;
                self.troubles.note(failure);
            }
        }
        self.outcomes.stores.push(StoreOutcome { slot, is_stored: result.is_ok() });
    }

    fn release(&mut self, job: &RestoreJob) {
        for block in job.blocks.iter().filter(|_| job.folder.is_none()) {
            let readers = self.read.get_mut(&block.slot).expect("counted when it was queued");
            *readers -= 1;
            if *readers == 0 {
                self.read.remove(&block.slot);
            }
        }
    }
}

struct Shared {
    store: Store,
    /// The other stores that were read, by their folders.
    others: Mutex<HashMap<PathBuf, Arc<Store>>>,
    state: Mutex<State>,
    store_queued: Condvar,
    restore_queued: Condvar,
    ended: Condvar,
    /// Returns true if there are outcomes that no caller is about to take.
    outcome: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread of transfers panics while it holds the lock")
    }

    /// Wakes callers that wait for outcomes, unless one is about to take them.
    fn tell(&self, state: &State) {
        if !state.is_held {
            self.outcome.notify_all();
        }
    }
}

/// An open store and its threads. Dropping it finishes the transfers in progress, discards queued ones and ends the
/// threads.
pub struct Transfers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Transfers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfers").field("store", &self.shared.store).finish_non_exhaustive()
    }
}

impl Transfers {
    pub fn start(store: Store) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            store,
            others: Mutex::default(),
            state: Mutex::default(),
            store_queued: Condvar::new(),
            restore_queued: Condvar::new(),
            ended: Condvar::new(),
            outcome: Condvar::new(),
        });
        let mut transfers = Self { shared, threads: Vec::new() };
        for reader in 0..=NUM_READERS {
            let shared = Arc::clone(&transfers.shared);
            let builder = std::thread::Builder::new();
            transfers.threads.push(match reader {
                0 => builder.name("store-writer".to_owned()).spawn(move || write_blocks(&shared)),
                _ => builder.name(format!("store-reader-{reader}")).spawn(move || read_blocks(&shared)),
            }?);
        }
        Ok(transfers)
    }

    /// Returns the store. The caller must not touch slots that are in a transfer.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    fn check_slot(&self, slot: u32) -> Result<(), TransferError> {
        let num_slots = self.shared.store.geometry().num_slots;
        if slot < num_slots { Ok(()) } else { Err(TransferError::UnknownSlot { slot, num_slots }) }
    }

    /// Fails if `slot` does not exist or another transfer uses it.
    pub fn check_free(&self, slot: u32) -> Result<(), TransferError> {
        self.check_slot(slot)?;
        let state = self.shared.lock();
        if state.written.contains(&slot) || state.read.contains_key(&slot) {
            return Err(TransferError::InTransfer { slot });
        }
        Ok(())
    }

    /// Queues a block for writing. Its bytes are the concatenation of the pieces and are copied, so that a disk that
    /// hangs holds no memory of the caller. If the queue is full, the block fails at once.
    ///
    /// Panics if the pieces together are not as long as a block.
    pub fn begin_store<'a>(
        &self,
        block: StoreBlock,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), TransferError> {
        let num_bytes = self.shared.store.geometry().block_bytes as usize;
        let most = MAX_QUEUED_STORES.min((MAX_QUEUED_BYTES / num_bytes).max(1));
        self.check_free(block.slot)?;
        let mut state = self.shared.lock();
        if state.stores.len() >= most {
            drop(state);
            return self.refuse_store(block.slot, &QueueFull { most });
        }
        state.written.insert(block.slot);
        state.num_stores += 1;
        let mut buffer = state.buffers.pop().unwrap_or_default();
        drop(state);
        // The bytes are copied outside the lock, which the writer takes between two blocks.
        buffer.clear();
        pieces.into_iter().for_each(|piece| buffer.extend_from_slice(piece));
        assert!(buffer.len() == num_bytes, "a block of {} bytes", buffer.len());
        self.shared.lock().stores.push_back(StoreJob { block, bytes: buffer });
        self.shared.store_queued.notify_one();
        Ok(())
    }

    /// Adds a failed outcome for a block that was never computed.
    pub fn fail_store(&self, slot: u32) -> Result<(), TransferError> {
        self.refuse_store(slot, &NotComputed)
    }

    /// The slot keeps its old content until it is written again, because erasing it now would wait for the disk.
    fn refuse_store(&self, slot: u32, why: &dyn std::error::Error) -> Result<(), TransferError> {
        self.check_free(slot)?;
        let mut state = self.shared.lock();
        state.end_store(slot, Err(why));
        self.shared.tell(&state);
        Ok(())
    }

    /// Queues blocks for reading. They are read in order up to the first one that is missing or damaged. `folder` is
    /// that of another store, if it has the blocks.
    ///
    /// # Safety
    /// The bytes at each piece's `destination` are initialised. They stay valid, and no other code reads or writes
    /// them, until the outcome has been taken or until [`Transfers::finish`] or the drop of `self` has returned.
    pub unsafe fn begin_restore(
        &self,
        restore_id: u64,
        blocks: Vec<RestoreBlock>,
        folder: Option<PathBuf>,
    ) -> Result<(), TransferError> {
        let own = || blocks.iter().filter(|_| folder.is_none());
        own().try_for_each(|block| self.check_slot(block.slot))?;
        let mut state = self.shared.lock();
        if let Some(RestoreBlock { slot, .. }) = own().find(|block| state.written.contains(&block.slot)) {
            return Err(TransferError::InTransfer { slot: *slot });
        }
        if state.restores.len() == MAX_QUEUED_RESTORES {
            state.counts.not_restored += 1;
            state.troubles.note(&QueueFull { most: MAX_QUEUED_RESTORES });
            state.outcomes.restores.push(RestoreOutcome { restore_id, num_blocks: 0, time: Duration::ZERO });
            self.shared.tell(&state);
            return Ok(());
        }
        for block in own() {
            *state.read.entry(block.slot).or_default() += 1;
        }
        state.restores.push_back(RestoreJob { restore_id, blocks, folder });
        self.shared.restore_queued.notify_one();
        Ok(())
    }

    /// Empties a slot at once. A failure is recorded for the log.
    pub fn discard(&self, slot: u32) -> Result<(), TransferError> {
        self.check_free(slot)?;
        if let Err(error) = self.shared.store.erase(slot) {
            self.shared.lock().troubles.note(&error);
        }
        Ok(())
    }

    /// Returns true if a store is queued or in progress.
    pub fn is_storing(&self) -> bool {
        self.shared.lock().num_stores > 0
    }

    /// Waits until no store is queued or in progress, at most for `timeout`.
    pub fn wait_stores(&self, timeout: Duration) {
        let state = self.shared.lock();
        let waited = self.shared.ended.wait_timeout_while(state, timeout, |state| state.num_stores > 0);
        drop(waited.expect("as in `lock`"));
    }

    /// Announces that the caller will take the outcomes. Until it does, [`Transfers::wait_outcomes`] sees none.
    pub fn hold_outcomes(&self) {
        self.shared.lock().is_held = true;
    }

    /// Waits for outcomes or for a call of [`Transfers::wake`], at most for `timeout`.
    pub fn wait_outcomes(&self, timeout: Duration) {
        let state = self.shared.lock();
        let is_quiet = |state: &mut State| {
            !state.is_woken && !state.is_stopping && (state.is_held || state.outcomes.is_empty())
        };
        let waited = self.shared.outcome.wait_timeout_while(state, timeout, is_quiet);
        waited.expect("as in `lock`").0.is_woken = false;
    }

    /// Makes the current or the next call of [`Transfers::wait_outcomes`] return.
    pub fn wake(&self) {
        self.shared.lock().is_woken = true;
        self.shared.outcome.notify_all();
    }

    /// Takes the outcomes since the last call.
    pub fn take_outcomes(&self) -> Outcomes {
        let mut state = self.shared.lock();
        state.is_held = false;
        std::mem::take(&mut state.outcomes)
    }

    /// Waits until no transfer is left. Queued stores are written; queued restores are discarded and have no outcome.
    pub fn finish(&self) {
        let mut state = self.shared.lock();
        while let Some(job) = state.restores.pop_front() {
            state.release(&job);
        }
        drop(self.shared.ended.wait_while(state, |state| !state.is_idle()).expect("as in `lock`"));
    }

    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// Returns a log line about recent failures, at most once a minute.
    pub fn take_warning(&self) -> Option<String> {
        self.shared.lock().troubles.take_line(Instant::now())
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.is_stopping = true;
            state.stores.clear();
            state.restores.clear();
        }
        for condition in [&self.shared.store_queued, &self.shared.restore_queued, &self.shared.outcome] {
            condition.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it already.
            drop(thread.join());
        }
    }
}

/// Makes the calling thread yield the core to those that compute steps. While they wait, it has the core for itself.
fn lower_priority() {
    // SAFETY: the call takes no pointers. Process 0 is the calling thread on Linux.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
    debug_assert_eq!(result, 0, "a thread may always lower its own priority");
}

fn write_blocks(shared: &Shared) {
    lower_priority();
    let mut state = shared.lock();
    loop {
        let job = state.stores.pop_front();
        let Some(StoreJob { block, bytes }) = job else {
            if state.is_stopping {
                return;
            }
            state = shared.store_queued.wait(state).expect("as in `lock`");
            continue;
        };
        state.num_running += 1;
        drop(state);
        let new = NewBlock {
            key: block.key,
            parent: block.parent,
            root: block.root,
            depth: block.depth,
            token_ids: &block.token_ids,
        };
        let result = shared.store.write(block.slot, &new, &bytes);
        state = shared.lock();
        if state.buffers.len() < MAX_SPARE_BUFFERS {
            state.buffers.push(bytes);
        }
        state.num_stores -= 1;
        state.written.remove(&block.slot);
        state.end_store(block.slot, result.as_ref().copied().map_err(|error| error as _));
        shared.tell(&state);
        shared.ended.notify_all();
        // No caller waits for this part, but the job counts as in progress, so that the disk is idle after `finish`.
        drop(state);
        if result.is_ok() {
            shared.store.begin_write_back(block.slot);
        }
        state = shared.lock();
        state.num_running -= 1;
        shared.ended.notify_all();
    }
}

fn read_blocks(shared: &Shared) {
    lower_priority();
    let mut state = shared.lock();
    loop {
        if state.is_stopping {
            return;
        }
        let Some(job) = state.restores.pop_front() else {
            state = shared.restore_queued.wait(state).expect("as in `lock`");
            continue;
        };
        state.num_running += 1;
        drop(state);
        let began = Instant::now();
        let (num_blocks, failure) = read(shared, &job);
        let time = began.elapsed();
        state = shared.lock();
        state.num_running -= 1;
        state.release(&job);
        state.counts.restored += u64::from(num_blocks);
        if let Some(failure) = failure {
            state.counts.not_restored += 1;
            state.troubles.note(&*failure);
        }
        state.outcomes.restores.push(RestoreOutcome { restore_id: job.restore_id, num_blocks, time });
        shared.tell(&state);
        shared.ended.notify_all();
    }
}

/// Reads the blocks of a job up to the first failure.
fn read(shared: &Shared, job: &RestoreJob) -> (u32, Option<Box<dyn Error>>) {
    let Some(folder) = &job.folder else {
        let (num_blocks, failure) = read_up_to_failure(&shared.store, &job.blocks);
        return (num_blocks, failure.map(Into::into));
    };
    let lock = || shared.others.lock().expect("no thread of transfers panics while it holds the lock");
    let known = lock().get(folder).cloned();
    let other = match known.map_or_else(|| shared.store.attach_beside(folder).map(Arc::new), Ok) {
        Ok(other) => other,
        Err(error) => return (0, Some(error.into())),
    };
    let num_slots = other.geometry().num_slots;
    let (num_blocks, failure) = match job.blocks.iter().find(|block| block.slot >= num_slots) {
        Some(&RestoreBlock { slot, .. }) => (0, Some(TransferError::UnknownSlot { slot, num_slots }.into())),
        None => {
            let (num_blocks, failure) = read_up_to_failure(&other, &job.blocks);
            (num_blocks, failure.map(Into::into))
        }
    };
    // After a failure the folder is opened anew, because its files may have been replaced.
    match failure {
        None => lock().insert(folder.clone(), other),
        Some(_) => lock().remove(folder),
    };
    (num_blocks, failure)
}

/// Reads one block and copies its pieces to their destinations. `whole` buffers a block that is not contiguous there.
fn read_one(store: &Store, block: &RestoreBlock, whole: &mut Vec<u8>) -> Result<(), crate::error::ReadError> {
    let num_bytes = store.geometry().block_bytes as usize;
    if let [Piece { offset: 0, num_bytes: len, destination }] = block.pieces[..]
        && len == num_bytes
    {
        // SAFETY: the caller of `Transfers::begin_restore` promised that the destination is valid and unused.
        let bytes = unsafe { std::slice::from_raw_parts_mut(destination, num_bytes) };
        return store.read(block.slot, block.key, bytes).map(drop);
    }
    whole.resize(num_bytes, 0);
    store.read(block.slot, block.key, whole)?;
    for piece in &block.pieces {
        // SAFETY: the caller of `Transfers::begin_restore` promised that the destination is valid and unused.
        let bytes = unsafe { std::slice::from_raw_parts_mut(piece.destination, piece.num_bytes) };
        bytes.copy_from_slice(&whole[piece.offset..][..piece.num_bytes]);
    }
    Ok(())
}

fn read_up_to_failure(store: &Store, blocks: &[RestoreBlock]) -> (u32, Option<crate::error::ReadError>) {
    let mut whole = Vec::new();
    blocks.iter().take(READ_AHEAD).for_each(|block| store.will_need(block.slot));
    for (index, block) in blocks.iter().enumerate() {
        if let Some(ahead) = blocks.get(index + READ_AHEAD) {
            store.will_need(ahead.slot);
        }
        if let Err(error) = read_one(store, block, &mut whole) {
            return (index as u32, Some(error));
        }
    }
    (blocks.len() as u32, None)
}
