//! Bytes of Python's buffers, borrowed without a copy.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use trunkline_kernels::pack::{self, Format, PackError, SourceBytes};
use trunkline_kernels::threads::{ThreadPool, default_num_threads};

use crate::failure::pack_failure;

/// Returns the buffer of `data`. Fails unless it is C-contiguous.
pub(super) fn buffer_of(data: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(data)?;
    if !buffer.is_c_contiguous() {
        return Err(PyTypeError::new_err("`data` is not C-contiguous; hint: copy it first"));
    }
    Ok(buffer)
}

/// Returns the bytes of a buffer, which do not move while it lives.
pub(super) fn bytes_of(buffer: &PyUntypedBuffer) -> &[u8] {
    if buffer.len_bytes() == 0 {
        return &[];
    }
    // SAFETY: a C-contiguous buffer has `len_bytes` readable bytes at `buf_ptr`.
    unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) }
}

/// The bytes of quants, scales and minima.
type GroupBytes<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Returns the signed quants, f32 scales and f32 minima of blocks of an integer format.
#[pyfunction]
pub(super) fn unpack_groups<'py>(
    py: Python<'py>,
    format: &str,
    blocks: &Bound<'py, PyAny>,
) -> PyResult<GroupBytes<'py>> {
    let buffer = buffer_of(blocks)?;
    let unpack = || {
        let format: Format = format.parse()?;
        pack::unpack_groups(format, bytes_of(&buffer))
    };
    let groups = unpack().map_err(|error: PackError| PyValueError::new_err(error.to_string()))?;
    let groups = groups.ok_or_else(|| PyValueError::new_err(format!("{format} has no groups")))?;
    let quants: Vec<u8> = groups.quants.into_iter().map(i8::cast_unsigned).collect();
    let floats = |floats: Vec<f32>| floats.into_iter().flat_map(f32::to_ne_bytes).collect::<Vec<_>>();
    let new = |bytes: &[u8]| PyBytes::new(py, bytes);
    Ok((new(&quants), new(&floats(groups.scales)), new(&floats(groups.mins))))
}

/// Returns the blocks of Q8_0 or Q4_1 that are nearest to rows of floats.
#[pyfunction]
pub(super) fn quantize_rows<'py>(
    py: Python<'py>,
    stored_as: &str,
    rows: &Bound<'py, PyAny>,
    quantize: &str,
    num_columns: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let buffer = buffer_of(rows)?;
    // SAFETY: this call holds the buffer, whose bytes do not move.
    let source = unsafe { SourceBytes::borrow(bytes_of(&buffer), false) };
    let blocks = py.detach(|| {
        pack::quantize_rows(stored_as.parse()?, source.as_slice(), quantize.parse()?, num_columns)
    });
    let blocks = blocks.map_err(|error: PackError| pack_failure(&error, error.to_string()))?;
    Ok(PyBytes::new(py, &blocks))
}

/// Skips strings, each a length in 8 bytes and its bytes. Returns the offset behind the last one and the number of
/// skipped ones, which is smaller if the next one is longer than `limit` or not complete.
#[pyfunction]
pub(super) fn skip_strings(
    data: &Bound<'_, PyAny>,
    offset: usize,
    count: usize,
    limit: usize,
) -> PyResult<(usize, usize)> {
    let buffer = buffer_of(data)?;
    let mut rest = bytes_of(&buffer).get(offset..).unwrap_or_default();
    let mut num_skipped = 0;
    while num_skipped < count
        && let Some((len, after)) = rest.split_first_chunk()
        && let Some(len) = usize::try_from(u64::from_le_bytes(*len)).ok().filter(|len| *len <= limit)
        && let Some(after) = after.get(len..)
    {
        rest = after;
        num_skipped += 1;
    }
    Ok((buffer.len_bytes() - rest.len(), num_skipped))
}

/// Returns the bytes of a packed matrix.
#[pyfunction]
pub(super) fn packed_bytes(format: &str, out_features: usize, in_features: usize) -> PyResult<usize> {
    let num_bytes = || pack::packed_bytes(format.parse()?, out_features, in_features);
    num_bytes().map_err(|error: PackError| PyValueError::new_err(error.to_string()))
}

/// Returns the checksum of each page of 4 KiB as little-endian u64; see `weights/fingerprint.py`.
#[pyfunction]
#[pyo3(signature = (pages, *, is_mapped=false))]
pub(super) fn page_sums<'py>(
    py: Python<'py>,
    pages: &Bound<'py, PyAny>,
    is_mapped: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let buffer = buffer_of(pages)?;
    // SAFETY: as in `PyProgramBuilder::weight`; this call holds the buffer.
    let source = unsafe { SourceBytes::borrow(bytes_of(&buffer), is_mapped) };
    let bytes = source.as_slice();
    if !bytes.len().is_multiple_of(trunkline_kernels::page_sums::PAGE_BYTES) {
        return Err(PyValueError::new_err(format!(
            "`pages` has {} bytes, expected a multiple of 4096",
            bytes.len()
        )));
    }
    let sums = py.detach(|| {
        let mut pool = ThreadPool::new(default_num_threads())?;
        Ok::<_, std::io::Error>(trunkline_kernels::page_sums::page_sums(&source, &mut pool))
    })?;
    let sums: Vec<u8> = sums.into_iter().flat_map(u64::to_le_bytes).collect();
    Ok(PyBytes::new(py, &sums))
}
