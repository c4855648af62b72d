//! This module describes the machine to Python.

use std::collections::BTreeMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use trunkline_kernels::cpus::UsableCpus;
use trunkline_kernels::isa::Isa;

/// Returns the CPU features that affect the choice of kernels, and whether this CPU has them.
#[pyfunction]
pub(super) fn cpu_features() -> BTreeMap<&'static str, bool> {
    trunkline_kernels::isa::cpu_features().into_iter().collect()
}

/// Returns the name of the instruction set in use: the one that `TRUNKLINE_ISA` names, or the fastest.
#[pyfunction]
pub(super) fn isa() -> PyResult<&'static str> {
    Isa::detect().map(Isa::name).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Returns the number of threads that can run at the same time, within affinity and quota.
#[pyfunction]
pub(super) fn max_parallel_threads() -> usize {
    UsableCpus::detect().max_parallel_threads()
}
