//! Adapters, as Python sees them.

use std::sync::Arc;

use pyo3::prelude::*;
use trunkline_kernels::adapter::Adapter;
use trunkline_kernels::pack::{InterleavedHeads, SourceRows};
use trunkline_kernels::program::WeightId;

use crate::buffers::{buffer_of, bytes_of};
use crate::builder::parse_format;
use crate::failure::Failure;

/// An adapter that is packed for steps. Any thread may make one while steps run.
#[pyclass(name = "Adapter", module = "trunkline_server._kernels")]
#[derive(Default)]
pub(super) struct PyAdapter {
    /// Shared with the executors that have it in a slot.
    pub(super) adapter: Arc<Adapter>,
}

#[pymethods]
impl PyAdapter {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Adds what the adapter does to a weight: `a` is (format, buffer, rank, columns), `b` is (format, buffer, rows).
    #[pyo3(signature = (weight, a, b, scale, interleaved_heads=None))]
    fn add(
        &mut self,
        py: Python<'_>,
        weight: usize,
        a: (String, Bound<'_, PyAny>, usize, usize),
        b: (String, Bound<'_, PyAny>, usize),
        scale: f32,
        interleaved_heads: Option<(usize, usize)>,
    ) -> Result<(), Failure> {
        let ((a_format, a, rank, num_columns), (b_format, b, num_rows)) = (a, b);
        let (a_format, b_format) = (parse_format("a", &a_format)?, parse_format("b", &b_format)?);
        let (a, b) = (buffer_of(&a)?, buffer_of(&b)?);
        let down = SourceRows::new(a_format, bytes_of(&a), rank, num_columns)?;
        let mut up = SourceRows::new(b_format, bytes_of(&b), num_rows, rank)?;
        if let Some((head_size, rotary_size)) = interleaved_heads {
            up = up.interleaved(InterleavedHeads { head_size, rotary_size })?;
        }
        let adapter = Arc::get_mut(&mut self.adapter)
            .ok_or_else(|| pyo3::exceptions::PyValueError::new_err("the adapter is in use"))?;
        py.detach(|| adapter.add(WeightId(weight), (a_format, &down), (b_format, &up), num_columns, scale))?;
        Ok(())
    }
}
