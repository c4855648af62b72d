//! The cache of packed weights, for Python.

use std::path::PathBuf;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use trunkline_kernels::weight_cache::{CacheWriter, KEY_BYTES, Kept, MAX_NOTE_BYTES, WeightCache};

/// The location of packed weights; see `kernels/src/weight_cache.rs`.
#[pyclass(name = "WeightCache", module = "trunkline_server._kernels", frozen)]
pub(super) struct PyWeightCache {
    pub(super) cache: WeightCache,
}

#[pymethods]
impl PyWeightCache {
    #[new]
    #[pyo3(signature = (folder, *, key, max_bytes, memory=None))]
    fn new(folder: PathBuf, key: [u8; KEY_BYTES], max_bytes: u64, memory: Option<u64>) -> Self {
        Self { cache: WeightCache { folder, key, max_bytes, memory } }
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.cache.path()
    }
}

/// Stores packed weights. May be called from any thread.
#[pyclass(name = "CacheWriter", module = "trunkline_server._kernels", frozen)]
pub(super) struct PyCacheWriter {
    pub(super) writer: CacheWriter,
}

#[pymethods]
impl PyCacheWriter {
    /// Returns the size of the written file, or None if another process has already written it.
    fn keep(&self, py: Python<'_>, note: &str) -> PyResult<Option<u64>> {
        if note.len() > MAX_NOTE_BYTES {
            return Err(PyValueError::new_err(format!("`note` has {} bytes", note.len())));
        }
        match py.detach(|| self.writer.keep(note)) {
            Ok(Kept::Written(num_bytes)) => Ok(Some(num_bytes)),
            Ok(Kept::AlreadyThere) => Ok(None),
            Err(error) => Err(PyOSError::new_err(error.to_string())),
        }
    }
}
