//! Adapters, as Python sees them.

use std::fs::File;
use std::io::ErrorKind;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::sync::Arc;

use pyo3::exceptions::PyEOFError;
use pyo3::prelude::*;
use trunkline_kernels::adapter::{self, Adapter, SourceFactors, StoredTensor};
use trunkline_kernels::pack::{InterleavedHeads, SourceRows};
use trunkline_kernels::program::WeightId;

use crate::buffers::{buffer_of, bytes_of};
use crate::builder::parse_format;
use crate::failure::Failure;

/// An adapter that is packed for steps. Any thread may make one while steps run.
#[pyclass(name = "Adapter", module = "trunkline_server._kernels")]
pub(super) struct PyAdapter {
    /// Shared with the executors that have it in a slot.
    pub(super) adapter: Arc<Adapter>,
}

#[pymethods]
impl PyAdapter {
    /// Packs what an adapter does to weights. Each is (weight, a, b, scale, interleaved heads, gain), where `a` is
    /// (format, buffer, rank, columns), `b` is (format, buffer, rows), and the gain is a buffer of f32.
    #[new]
    fn new(py: Python<'_>, weights: Vec<Weight<'_>>) -> Result<Self, Failure> {
        let buffers = weights.iter().map(|(_, a, b, ..)| Ok([buffer_of(&a.1)?, buffer_of(&b.1)?]));
        let buffers = buffers.collect::<Result<Vec<_>, Failure>>()?;
        let mut sources = Vec::with_capacity(weights.len());
        for ((weight, a, b, scale, heads, gain), [down, up]) in weights.iter().zip(&buffers) {
            let (down_format, up_format) = (parse_format("a", &a.0)?, parse_format("b", &b.0)?);
            let (rank, num_inputs) = (a.2, a.3);
            let down = SourceRows::new(down_format, bytes_of(down), rank, num_inputs)?;
            let mut up = SourceRows::new(up_format, bytes_of(up), b.2, rank)?;
            if let Some((head_size, rotary_size)) = *heads {
                up = up.interleaved(InterleavedHeads { head_size, rotary_size })?;
            }
            sources.push(SourceFactors {
                weight: WeightId(*weight),
                down: (down_format, down),
                up: (up_format, up),
                num_inputs,
                scale: *scale,
                gain: gain.as_ref().map(floats_of).transpose()?,
            });
        }
        let adapter = Arc::new(py.detach(|| Adapter::pack(&sources))?);
        Ok(Self { adapter })
    }
}

fn floats_of(buffer: &Bound<'_, PyAny>) -> Result<Vec<f32>, Failure> {
    let buffer = buffer_of(buffer)?;
    let (floats, _) = bytes_of(&buffer).as_chunks();
    Ok(floats.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
}

/// A weight's id, A, B, scale, the head size and rotary size if B's rows have interleaved heads, and a gain.
type Weight<'py> = (
    usize,
    (String, Bound<'py, PyAny>, usize, usize),
    (String, Bound<'py, PyAny>, usize),
    f32,
    Option<(usize, usize)>,
    Option<Bound<'py, PyAny>>,
);

/// Hashes `prefix` and tensors of an open file, each given as offset, size, and exponent bits.
#[pyfunction]
pub(super) fn hash_tensors(
    py: Python<'_>,
    descriptor: RawFd,
    prefix: &[u8],
    tensors: Vec<(u64, usize, Vec<u8>)>,
) -> PyResult<(String, Option<usize>)> {
    let tensors: Vec<StoredTensor> = tensors
        .into_iter()
        .map(|(offset, num_bytes, exponent)| StoredTensor { offset, num_bytes, exponent })
        .collect();
    // SAFETY: the caller keeps its file open during the call, which does not close it.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    py.detach(|| adapter::hash_tensors(&file, prefix, &tensors)).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => PyEOFError::new_err(()),
        _ => error.into(),
    })
}
