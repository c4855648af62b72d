//! Late masks for Python.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use trunkline_kernels::executor::LateMasks;

/// Hands masks to the step that waits for them. All methods may be called from any thread.
#[pyclass(name = "LateMasks", module = "trunkline_server._kernels", frozen)]
pub(super) struct PyLateMasks {
    pub(super) masks: Arc<LateMasks>,
}

#[pymethods]
impl PyLateMasks {
    #[new]
    fn new() -> Self {
        Self { masks: Arc::default() }
    }

    fn tell(&self, sequence_id: u64, mask: Vec<u8>) {
        self.masks.tell(sequence_id, mask);
    }

    fn close(&self) {
        self.masks.close();
    }

    fn wait<'py>(&self, py: Python<'py>, sequence_id: u64) -> Bound<'py, PyBytes> {
        let mask = py.detach(|| self.masks.wait(sequence_id));
        PyBytes::new(py, &mask)
    }
}
