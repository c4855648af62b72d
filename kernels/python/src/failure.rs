//! Converts errors of the kernels to Python exceptions.

use pyo3::exceptions::{PyFloatingPointError, PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use trunkline_kernels::adapter::AdapterError;
use trunkline_kernels::executor::ExecutorError;
use trunkline_kernels::kv_pool::KvPoolError;
use trunkline_kernels::pack::PackError;
use trunkline_kernels::program::ProgramError;

pub(crate) struct Failure(PyErr);

/// Returns the exception of a weight that cannot be packed: `FloatingPointError` for numbers that are not finite.
pub(crate) fn pack_failure(error: &PackError, text: String) -> PyErr {
    match error {
        PackError::NotFinite { .. } => PyFloatingPointError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        failure.0
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self(error)
    }
}

impl From<PackError> for Failure {
    fn from(error: PackError) -> Self {
        Self(pack_failure(&error, error.to_string()))
    }
}

impl From<AdapterError> for Failure {
    fn from(error: AdapterError) -> Self {
        Self(PyValueError::new_err(error.to_string()))
    }
}

impl From<ProgramError> for Failure {
    fn from(error: ProgramError) -> Self {
        Self(match error {
            ProgramError::Map { .. } | ProgramError::KvPool(KvPoolError::Map { .. }) => {
                PyMemoryError::new_err(error.to_string())
            }
            ProgramError::Image(_) | ProgramError::Stream { .. } | ProgramError::Spill(_) => {
                PyOSError::new_err(error.to_string())
            }
            ProgramError::Threads { .. } => PyRuntimeError::new_err(error.to_string()),
            _ => PyValueError::new_err(error.to_string()),
        })
    }
}

impl From<ExecutorError> for Failure {
    fn from(error: ExecutorError) -> Self {
        Self(match error {
            ExecutorError::LostKv { .. } => PyOSError::new_err(error.to_string()),
            _ => PyValueError::new_err(error.to_string()),
        })
    }
}
