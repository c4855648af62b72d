//! The store of blocks, for Python.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyBlockingIOError, PyOSError, PyValueError};
use pyo3::prelude::*;
use trunkline_store::{Found, Geometry, OpenError, Store, Transfers};

/// Longest wait; more is the same to everybody.
const MAX_WAIT_S: f64 = 3600.0;

type Stored = (u32, bool);
type Restored = (u64, u32, u64);

/// An open store of KV blocks with its threads: see `store/`. All methods may be called from any thread.
#[pyclass(name = "Store", module = "trunkline_server._kernels", frozen)]
pub(super) struct PyStore {
    pub(super) transfers: Arc<Transfers>,
    found: Found,
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
