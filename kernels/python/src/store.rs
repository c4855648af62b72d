//! The block store for Python.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use pyo3::exceptions::{PyBlockingIOError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use trunkline_contract::{BlockKey, KEY_BYTES, proto};
use trunkline_store::{Found, Geometry, NewBlock, OpenError, Store, Transfers, WriteError};

use crate::block_io::{BlockRead, Borrowed, check_disjoint, read_in_parallel};

/// The upper bound of waits. `Duration` cannot represent every float.
const MAX_WAIT_S: f64 = 3600.0;

type Key = [u8; KEY_BYTES];

/// An open store of KV blocks with its threads; see `store/`. All methods may be called from any thread.
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

fn to_python(error: OpenError) -> PyErr {
    match error {
        OpenError::InUse { .. } => PyBlockingIOError::new_err(error.to_string()),
        OpenError::Geometry { .. } => PyValueError::new_err(error.to_string()),
        _ => PyOSError::new_err(error.to_string()),
    }
}

/// Returns the key of the block of `token_ids` that follows the block with `key`.
#[pyfunction]
pub(super) fn extend_key(key: Key, token_ids: Vec<u32>) -> Key {
    *BlockKey::from_bytes(key).extend(&token_ids).as_bytes()
}

#[pymethods]
impl PyStore {
    /// Opens the store. With `shared_bytes`, it shares that room with the stores beside it, of which unused ones give
    /// way to it. Raises BlockingIOError if another process uses the folder, ValueError for invalid sizes, and
    /// OSError for other failures.
    #[new]
    #[pyo3(signature = (folder, *, fingerprint, block_bytes, block_size, num_slots, shared_bytes=None))]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        fingerprint: String,
        block_bytes: u64,
        block_size: u32,
        num_slots: u32,
        shared_bytes: Option<u64>,
    ) -> PyResult<Self> {
        let geometry = Geometry { fingerprint, block_bytes, block_size, num_slots };
        let opened = py.detach(|| {
            let (mut store, found) = Store::open(&folder, geometry)?;
            if let Some(shared_bytes) = shared_bytes {
                store.share(&folder, shared_bytes);
            }
            Ok((store, found))
        });
        let (store, found) = opened.map_err(to_python)?;
        let transfers = Transfers::start(store)?;
        Ok(Self { transfers: Arc::new(transfers), found })
    }

    /// Writes a block to a slot before it returns. `keys` are the root key of the path, the key of the previous block
    /// and the block's own key. Raises OSError if the disk fails, and ValueError or TypeError if the arguments are not
    /// a block of this store. Calls must not use the same slot or memory at the same time.
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
        let memory = Borrowed::new(memory, geometry.block_bytes, false)?;
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

    /// Reads and checks blocks, each (slot, key, memory). Returns the number of blocks before the first missing or
    /// damaged one, and why that one failed. The memory of later blocks may hold anything. Raises ValueError or
    /// TypeError for invalid arguments.
    fn read(
        &self,
        py: Python<'_>,
        blocks: Vec<(u32, Key, Bound<'_, PyAny>)>,
    ) -> PyResult<(usize, Option<String>)> {
        let num_bytes = self.transfers.store().geometry().block_bytes;
        let wanted = blocks.into_iter().map(|(slot, key, memory)| {
            self.check_slot(slot)?;
            let memory = Borrowed::new(&memory, num_bytes, true)?;
            Ok(BlockRead { slot, key: BlockKey::from_bytes(key), memory })
        });
        let wanted: Vec<BlockRead> = wanted.collect::<PyResult<_>>()?;
        check_disjoint(&wanted)?;
        let (count, failure) = py.detach(|| read_in_parallel(self.transfers.store(), &wanted));
        Ok((count, failure.map(|failure| failure.to_string())))
    }

    /// Empties a slot, which no other call may be using. Raises OSError if the disk fails.
    fn erase(&self, slot: u32) -> PyResult<()> {
        self.check_slot(slot)?;
        Ok(self.transfers.store().erase(slot)?)
    }

    /// Returns the blocks of up to `num_slots` slots from `first_slot` on, as the bytes of a `StoreContentsResponse`.
    /// Raises OSError if the disk fails.
    fn contents<'py>(
        &self,
        py: Python<'py>,
        first_slot: u32,
        num_slots: u32,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let store = self.transfers.store();
        let end = first_slot.saturating_add(num_slots).min(store.geometry().num_slots);
        let blocks = py.detach(|| store.contents(first_slot..end))?;
        let contents = proto::StoreContentsResponse {
            slots: blocks.iter().map(|block| block.slot).collect(),
            keys: blocks.iter().flat_map(|block| *block.key.as_bytes()).collect(),
            parent_keys: blocks.iter().flat_map(|block| *block.parent.as_bytes()).collect(),
            depths: blocks.iter().map(|block| block.depth).collect(),
            sequences: blocks.iter().map(|block| block.sequence).collect(),
        };
        Ok(PyBytes::new(py, &contents.encode_to_vec()))
    }

    #[getter]
    fn num_slots(&self) -> u32 {
        self.transfers.store().geometry().num_slots
    }

    /// Number of blocks found when the store was opened.
    #[getter]
    fn num_blocks(&self) -> usize {
        self.found.num_blocks
    }

    /// Number of damaged records found when the store was opened.
    #[getter]
    fn num_damaged(&self) -> usize {
        self.found.num_damaged
    }

    /// The reason why the previous contents were lost; None if they were kept.
    #[getter]
    fn lost(&self) -> Option<&str> {
        self.found.lost.as_deref()
    }

    /// Waits until there are outcomes that no other call is about to take, until `timeout_s` has passed, or until
    /// `wake`.
    fn wait_outcomes(&self, py: Python<'_>, timeout_s: f64) -> PyResult<()> {
        let timeout = Duration::try_from_secs_f64(timeout_s.min(MAX_WAIT_S))
            .map_err(|error| PyValueError::new_err(format!("`timeout_s` is {timeout_s}: {error}")))?;
        py.detach(|| self.transfers.wait_outcomes(timeout));
        Ok(())
    }

    /// Makes a running call of `wait_outcomes` return.
    fn wake(&self) {
        self.transfers.wake();
    }

    /// Returns the outcomes since the last call as the bytes of `Transfers`.
    fn take_outcomes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let outcomes = self.transfers.take_outcomes();
        let stores = outcomes.stores.iter();
        let restores = outcomes.restores.iter();
        let transfers = proto::Transfers {
            stores: stores
                .map(|outcome| proto::StoreOutcome { slot: outcome.slot, is_stored: outcome.is_stored })
                .collect(),
            restores: restores
                .map(|outcome| proto::RestoreOutcome {
                    restore_id: outcome.restore_id,
                    num_blocks: outcome.num_blocks,
                    time_us: u64::try_from(outcome.time.as_micros()).unwrap_or(u64::MAX),
                })
                .collect(),
            adapters: Vec::new(),
        };
        PyBytes::new(py, &transfers.encode_to_vec())
    }

    /// Returns a message about recent failures, at most once a minute.
    fn take_warning(&self) -> Option<String> {
        self.transfers.take_warning()
    }

    /// Returns the other stores that gave way since the last call: their folders, the bytes that their blocks took, and
    /// why a store could not be removed, or None.
    fn take_removed(&self) -> Vec<(PathBuf, u64, Option<String>)> {
        let removed = self.transfers.store().take_removed().into_iter();
        let removed = removed
            .map(|removed| (removed.folder, removed.num_bytes, removed.error.map(|error| error.to_string())));
        removed.collect()
    }

    /// The numbers of blocks (stored, not stored, restored, not restored) so far.
    #[getter]
    fn counts(&self) -> (u64, u64, u64, u64) {
        let counts = self.transfers.counts();
        (counts.stored, counts.not_stored, counts.restored, counts.not_restored)
    }

    /// Releases the folder to another process. All later reads and writes fail.
    fn give_up(&self, py: Python<'_>) {
        py.detach(|| self.transfers.store().give_up());
    }

    /// Takes a folder back that was released. Raises BlockingIOError if another process uses it, and OSError for other
    /// failures.
    fn take_back(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.transfers.store().take_back()).map_err(to_python)
    }

    /// Waits for all transfers and makes everything written durable. Raises OSError if the disk fails.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            self.transfers.finish();
            self.transfers.store().sync()
        })?;
        Ok(())
    }
}
