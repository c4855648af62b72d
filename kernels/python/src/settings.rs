//! The file with the settings, read as the router reads it.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use trunkline_settings::ServeSettings;

/// Returns the settings of a file as JSON, with the defaults of those that it leaves out. Fails if a name is unknown or
/// a value is outside its range.
#[pyfunction]
pub(super) fn read_settings(text: &[u8]) -> PyResult<String> {
    let unreadable = |error: serde_json::Error| {
        PyValueError::new_err(format!("{error}; hint: check that launcher and shard have the same version"))
    };
    let settings: ServeSettings = serde_json::from_slice(text).map_err(unreadable)?;
    settings.check().map_err(|error| PyValueError::new_err(error.to_string()))?;
    serde_json::to_string(&settings).map_err(unreadable)
}
