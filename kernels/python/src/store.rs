//! The store of blocks, for Python.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyBlockingIOError, PyOSError, PyValueError};
use pyo3::prelude::*;
use trunkline_contract::{BlockKey, KEY_BYTES};
use trunkline_store::{Found, Geometry, NewBlock, OpenError, Store, Transfers, WriteError};

use crate::block_io::{Lent, Wanted, check_apart, read_side_by_side};

/// Longest wait; more is the same to everybody.
const MAX_WAIT_S: f64 = 3600.0;

type Key = [u8; KEY_BYTES];
type Stored = (u32, bool);
type Restored = (u64, u32, u64);

/// An open store of KV blocks with its threads: see `store/`. All methods may be called from any thread.
#[pyclass(name = "Store", module = "trunkline_server._kernels", frozen)]
pub(super) struct PyStore {
    pub(super) transfers: Arc<Transfers>,
    found: Found,
}

impl PyStore {
    fn check_slot(&self, slot: u32) -> PyResult<()> {
        let num_slots = self.transfers.store().geometry().num_slots;
        if slot < num_slots {
            return Ok(());
        }
        Err(PyValueError::new_err(format!("slot {slot} does not exist: there are {num_slots}")))
    }
}

/// The key of the block of `token_ids` that follows the one with `key`.
#[pyfunction]
pub(super) fn extend_key(key: Key, token_ids: Vec<u32>) -> Key {
    *BlockKey::from_bytes(key).extend(&token_ids).as_bytes()
}

#[pymethods]
impl PyStore {
    /// Raises BlockingIOError if another process uses the folder, OSError if the system refuses, ValueError for sizes
    /// that cannot be.
    #[new]
    #[pyo3(signature = (folder, *, fingerprint, block_bytes, block_size, num_slots))]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        fingerprint: String,
        block_bytes: u64,
        block_size: u32,
        num_slots: u32,
    ) -> PyResult<Self> {
        let geometry = Geometry { fingerprint, block_bytes, block_size, num_slots };
        let opened = py.detach(|| Store::open(&folder, geometry));
        let (store, found) = opened.map_err(|error| match error {
            OpenError::InUse { .. } => PyBlockingIOError::new_err(error.to_string()),
            OpenError::Geometry { .. } => PyValueError::new_err(error.to_string()),
            _ => PyOSError::new_err(error.to_string()),
        })?;
        let transfers = Transfers::start(store)?;
        Ok(Self { transfers: Arc::new(transfers), found })
    }

    /// Writes a block into a slot, which holds it when this returns. keys: of its path's root, of the block before it,
    /// its own. Raises OSError if the disk refuses, and ValueError, TypeError for what is no block of this store. A
    /// slot and its memory are in one call at a time.
    fn write(
        &self,
        py: Python<'_>,
        slot: u32,
        keys: [Key; 3],
        depth: u32,
        token_ids: Vec<u32>,
        memory: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.check_slot(slot)?;
        let geometry = self.transfers.store().geometry();
        if token_ids.is_empty() || token_ids.len() > geometry.block_size as usize {
            let (count, most) = (token_ids.len(), geometry.block_size);
            return Err(PyValueError::new_err(format!("a block of {count} tokens, expected 1 to {most}")));
        }
        let memory = Lent::new(memory, geometry.block_bytes, false)?;
        let [root, parent, key] = keys.map(BlockKey::from_bytes);
        let bytes = memory.bytes();
        let written = py.detach(|| {
            let block = NewBlock { key, parent, root, depth, token_ids: &token_ids };
            self.transfers.store().write(slot, &block, bytes)?;
            self.transfers.store().begin_write_back(slot);
            Ok::<(), WriteError>(())
        });
        written.map_err(|error| PyOSError::new_err(error.to_string()))
    }

    /// Reads blocks (slot, key, memory), each checked. Returns how many from the first on are there, and why the next
    /// one is not. The memory of those behind them may hold anything. Raises ValueError, TypeError for what cannot be.
    fn read(
        &self,
        py: Python<'_>,
        blocks: Vec<(u32, Key, Bound<'_, PyAny>)>,
    ) -> PyResult<(usize, Option<String>)> {
        let num_bytes = self.transfers.store().geometry().block_bytes;
        let wanted = blocks.into_iter().map(|(slot, key, memory)| {
            self.check_slot(slot)?;
            let memory = Lent::new(&memory, num_bytes, true)?;
            Ok(Wanted { slot, key: BlockKey::from_bytes(key), memory })
        });
        let wanted: Vec<Wanted> = wanted.collect::<PyResult<_>>()?;
        check_apart(&wanted)?;
        let (count, failure) = py.detach(|| read_side_by_side(self.transfers.store(), &wanted));
        Ok((count, failure.map(|failure| failure.to_string())))
    }

    /// Empties a slot that nobody reads or writes. Raises OSError.
    fn erase(&self, slot: u32) -> PyResult<()> {
        self.check_slot(slot)?;
        Ok(self.transfers.store().erase(slot)?)
    }

    /// Blocks found at opening.
    #[getter]
    fn num_blocks(&self) -> usize {
        self.found.num_blocks
    }

    /// Records that were found to be damaged.
    #[getter]
    fn num_damaged(&self) -> usize {
        self.found.num_damaged
    }

    /// Why what was there could not be kept; None if it was.
    #[getter]
    fn lost(&self) -> Option<&str> {
        self.found.lost.as_deref()
    }

    /// Returns when there are outcomes that nobody is about to take, after `timeout_s`, or after `wake`.
    fn wait_outcomes(&self, py: Python<'_>, timeout_s: f64) -> PyResult<()> {
        let timeout = Duration::try_from_secs_f64(timeout_s.min(MAX_WAIT_S))
            .map_err(|error| PyValueError::new_err(format!("`timeout_s` is {timeout_s}: {error}")))?;
        py.detach(|| self.transfers.wait_outcomes(timeout));
        Ok(())
    }

    /// Lets `wait_outcomes` return.
    fn wake(&self) {
        self.transfers.wake();
    }

    /// ([(slot, is stored)...], [(restore id, number of blocks, microseconds)...]) since the last call.
    fn take_outcomes(&self) -> (Vec<Stored>, Vec<Restored>) {
        let outcomes = self.transfers.take_outcomes();
        let stores = outcomes.stores.iter().map(|outcome| (outcome.slot, outcome.is_stored));
        let restores = outcomes.restores.iter().map(|outcome| {
            let microseconds = u64::try_from(outcome.time.as_micros()).unwrap_or(u64::MAX);
            (outcome.restore_id, outcome.num_blocks, microseconds)
        });
        (stores.collect(), restores.collect())
    }

    /// What went wrong lately, at most once a minute.
    fn take_warning(&self) -> Option<String> {
        self.transfers.take_warning()
    }

    /// Blocks (stored, not stored, restored, not restored) so far.
    #[getter]
    fn counts(&self) -> (u64, u64, u64, u64) {
        let counts = self.transfers.counts();
        (counts.stored, counts.not_stored, counts.restored, counts.not_restored)
    }

    /// Ends all transfers, then returns when what was written would survive a loss of power. Raises OSError.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            self.transfers.finish();
            self.transfers.store().sync()
        })?;
        Ok(())
    }
}
