//! Converts sampling parameters from Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use trunkline_contract::TokenMask;
use trunkline_kernels::sampling::{SamplingParams, Watermark};

/// Reads the fields of `SamplingParams` in shard.proto. Missing fields have the value that changes nothing.
pub(super) fn sampling_params(sampling: &Bound<'_, PyDict>) -> PyResult<SamplingParams> {
    let mut params = SamplingParams::default();
    for (name, value) in sampling {
        let name: String = name.extract()?;
        match name.as_str() {
            "temperature" => params.temperature = value.extract()?,
            "top_p" => params.top_p = value.extract()?,
            "top_k" => params.top_k = value.extract()?,
            "min_p" => params.min_p = value.extract()?,
            "seed" => params.seed = value.extract()?,
            "choice" => params.choice = value.extract()?,
            "presence_penalty" => params.presence_penalty = value.extract()?,
            "frequency_penalty" => params.frequency_penalty = value.extract()?,
            "repetition_penalty" => params.repetition_penalty = value.extract()?,
            "min_tokens" => params.min_tokens = value.extract()?,
            "end_token_ids" => params.end_token_ids = value.extract()?,
            "num_top_logprobs" => params.num_top_logprobs = value.extract()?,
            "logprobs" => params.logprobs = value.extract()?,
            "logit_bias" => params.logit_bias = value.extract()?,
            "allowed_tokens" => params.allowed_tokens = allowed_tokens(&value)?,
            "typical_p" => params.typical_p = value.extract()?,
            "top_n_sigma" => params.top_n_sigma = value.extract()?,
            "xtc_probability" => params.xtc_probability = value.extract()?,
            "xtc_threshold" => params.xtc_threshold = value.extract()?,
            "num_top_prompt_logprobs" => params.prompt_logprobs = Some(value.extract()?),
            "watermark" if value.is_none() => params.watermark = None,
            "watermark" => params.watermark = Some(watermark(&value)?),
            _ => return Err(PyValueError::new_err(format!("`sampling` has no field {name:?}"))),
        }
    }
    Ok(params)
}

/// Reads a mask; an empty one is none.
fn allowed_tokens(value: &Bound<'_, PyAny>) -> PyResult<Option<TokenMask>> {
    let bytes = value.cast::<PyBytes>()?.as_bytes();
    Ok((!bytes.is_empty()).then(|| TokenMask(bytes.into())))
}

/// Fails if a parameter is outside its range.
#[pyfunction]
pub(super) fn check_sampling(sampling: &Bound<'_, PyDict>) -> PyResult<()> {
    sampling_params(sampling)?.check().map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Reads the fields of `Watermark` in shard.proto.
fn watermark(fields: &Bound<'_, PyAny>) -> PyResult<Watermark> {
    Ok(Watermark {
        gamma: fields.get_item("gamma")?.extract()?,
        delta: fields.get_item("delta")?.extract()?,
        key: fields.get_item("key")?.extract()?,
    })
}
