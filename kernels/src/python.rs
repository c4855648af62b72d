//! The Python module `trunkline_server._kernels`; its types are in `server/trunkline_server/_kernels.pyi`.

use std::collections::BTreeMap;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::executor::{Chunk, Executor, ExecutorError, SequenceResult};
use crate::isa::Isa;
use crate::kv_pool::{KvGeometry, KvPoolError};
use crate::pack::Format;
use crate::program::{ProgramBuilder, ProgramConfig, ProgramError, ValueId, WeightId};
use crate::sampling::SamplingParams;
use crate::threads::{Pinning, UnknownPinning, default_num_threads};

impl From<ProgramError> for PyErr {
    fn from(error: ProgramError) -> Self {
        match error {
            ProgramError::Map { .. } | ProgramError::KvPool(KvPoolError::Map { .. }) => {
                PyMemoryError::new_err(error.to_string())
            }
            ProgramError::Threads { .. } => PyRuntimeError::new_err(error.to_string()),
            _ => PyValueError::new_err(error.to_string()),
        }
    }
}

impl From<ExecutorError> for PyErr {
    fn from(error: ExecutorError) -> Self {
        PyValueError::new_err(error.to_string())
    }
}

/// Features of this CPU that decide between kernels, and whether it has them.
#[pyfunction]
fn cpu_features() -> BTreeMap<&'static str, bool> {
    crate::isa::cpu_features().into_iter().collect()
}

/// Name of the instruction set that is used: the best one, or the one that `TRUNKLINE_ISA` forces.
#[pyfunction]
fn isa() -> PyResult<&'static str> {
    Isa::detect().map(Isa::name).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The bytes of a C-contiguous buffer, copied.
fn bytes_of(data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let buffer = PyUntypedBuffer::get(data)?;
    if !buffer.is_c_contiguous() {
        return Err(PyTypeError::new_err("`data` is not C-contiguous; hint: copy it first"));
    }
    let len = buffer.len_bytes();
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: a C-contiguous buffer is `len_bytes` readable bytes from `buf_ptr`, held by `buffer` meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), len) };
    Ok(bytes.to_vec())
}

/// Records a model's step, one call per operation; each returns the id of its result.
#[pyclass(name = "ProgramBuilder", module = "trunkline_server._kernels")]
struct PyProgramBuilder {
    /// `None` once built.
    builder: Option<ProgramBuilder>,
}

impl PyProgramBuilder {
    fn builder(&mut self) -> PyResult<&mut ProgramBuilder> {
        self.builder.as_mut().ok_or_else(|| PyValueError::new_err("the program is built already"))
    }
}

#[pymethods]
impl PyProgramBuilder {
    #[new]
    #[pyo3(signature = (*, max_step_tokens, max_step_sequences, block_size, num_blocks, num_layers, num_kv_heads, head_size))]
    #[allow(clippy::too_many_arguments, reason = "keyword-only in Python")]
    fn new(
        max_step_tokens: usize,
        max_step_sequences: usize,
        block_size: usize,
        num_blocks: usize,
        num_layers: usize,
        num_kv_heads: usize,
        head_size: usize,
    ) -> PyResult<Self> {
        let geometry = KvGeometry { num_layers, num_kv_heads, head_size, block_size };
        let config = ProgramConfig { max_step_tokens, max_step_sequences, num_blocks, geometry };
        Ok(Self { builder: Some(ProgramBuilder::new(config)?) })
    }

    fn weight(&mut self, format: &str, data: &Bound<'_, PyAny>, shape: Vec<usize>) -> PyResult<usize> {
        let format: Format = format
            .parse()
            .map_err(|error| PyValueError::new_err(format!("`format` is {format:?}: {error}")))?;
        let builder = self.builder()?;
        Ok(builder.weight(format, bytes_of(data)?, &shape)?.0)
    }

    fn embedding(&mut self, w: usize) -> PyResult<usize> {
        Ok(self.builder()?.embedding(WeightId(w))?.0)
    }

    fn rms_norm(&mut self, x: usize, w: usize, eps: f32) -> PyResult<usize> {
        Ok(self.builder()?.rms_norm(ValueId(x), WeightId(w), eps)?.0)
    }

    fn head_rms_norm(&mut self, x: usize, w: usize, eps: f32, head_size: usize) -> PyResult<usize> {
        Ok(self.builder()?.head_rms_norm(ValueId(x), WeightId(w), eps, head_size)?.0)
    }

    #[pyo3(signature = (x, w, bias=None))]
    fn linear(&mut self, x: usize, w: usize, bias: Option<usize>) -> PyResult<usize> {
        Ok(self.builder()?.linear(ValueId(x), WeightId(w), bias.map(WeightId))?.0)
    }

    fn rope(
        &mut self,
        x: usize,
        inv_freq: Vec<f64>,
        attention_factor: f64,
        head_size: usize,
    ) -> PyResult<usize> {
        Ok(self.builder()?.rope(ValueId(x), &inv_freq, attention_factor, head_size)?.0)
    }

    fn write_kv(&mut self, layer: usize, k: usize, v: usize) -> PyResult<()> {
        self.builder()?.write_kv(layer, ValueId(k), ValueId(v))?;
        Ok(())
    }

    fn paged_attention(&mut self, layer: usize, q: usize, scale: f32) -> PyResult<usize> {
        Ok(self.builder()?.paged_attention(layer, ValueId(q), scale)?.0)
    }

    fn silu_mul(&mut self, g: usize, u: usize) -> PyResult<usize> {
        Ok(self.builder()?.silu_mul(ValueId(g), ValueId(u))?.0)
    }

    fn add(&mut self, x: usize, y: usize) -> PyResult<usize> {
        Ok(self.builder()?.add(ValueId(x), ValueId(y))?.0)
    }

    fn logits(&mut self, x: usize, w: usize) -> PyResult<usize> {
        Ok(self.builder()?.logits(ValueId(x), WeightId(w))?.0)
    }

    /// Packs the weights, maps the memory, starts the threads. The builder is used up, also on an error.
    /// `threads`: None takes one per usable core. `pinning`: `auto`, `on` or `off`.
    #[pyo3(signature = (threads=None, pinning="auto"))]
    fn build(&mut self, py: Python<'_>, threads: Option<usize>, pinning: &str) -> PyResult<PyExecutor> {
        self.builder()?;
        let pinning: Pinning =
            pinning.parse().map_err(|error: UnknownPinning| PyValueError::new_err(error.to_string()))?;
        let threads = threads.unwrap_or_else(default_num_threads);
        let builder = self.builder.take();
        let built = py.detach(|| builder.map(|builder| builder.build(threads, pinning)));
        let executor = built.ok_or_else(|| PyValueError::new_err("the program is built already"))??;
        Ok(PyExecutor { executor, results: Vec::new() })
    }
}

/// A built model: sequences, KV pool and steps. One thread calls it.
#[pyclass(name = "Executor", module = "trunkline_server._kernels")]
struct PyExecutor {
    executor: Executor,
    /// Of the last step: kept for its memory.
    results: Vec<SequenceResult>,
}

type PyChunk = (u64, u32, u32, Vec<u32>, bool);

#[pymethods]
impl PyExecutor {
    fn start(
        &mut self,
        sequence_id: u64,
        token_ids: Vec<u32>,
        num_prompt_tokens: usize,
        sampling: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        Ok(self.executor.start(sequence_id, token_ids, num_prompt_tokens, sampling_params(sampling)?)?)
    }

    fn end(&mut self, sequence_id: u64) -> PyResult<()> {
        Ok(self.executor.end(sequence_id)?)
    }

    fn reset(&mut self) {
        self.executor.reset();
    }

    fn copy_block(&mut self, source: u32, destination: u32, num_tokens: usize) -> PyResult<()> {
        Ok(self.executor.copy_block(source, destination, num_tokens)?)
    }

    fn step<'py>(&mut self, py: Python<'py>, chunks: Vec<PyChunk>) -> PyResult<Bound<'py, PyList>> {
        let chunks: Vec<Chunk> = chunks
            .into_iter()
            .map(|(sequence_id, first_position, num_tokens, new_block_ids, sample)| Chunk {
                sequence_id,
                first_position,
                num_tokens,
                new_block_ids,
                sample,
            })
            .collect();
        let Self { executor, results } = self;
        py.detach(|| executor.step_into(&chunks, results));
        let results = results.iter().map(|result| outcome(py, result)).collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, results)
    }

    fn score<'py>(&mut self, py: Python<'py>, token_ids: Vec<u32>) -> PyResult<Bound<'py, PyBytes>> {
        let executor = &mut self.executor;
        let scores = py.detach(|| executor.score(&token_ids))?;
        PyBytes::new_with(py, size_of_val(&scores[..]), |bytes| {
            for (target, score) in bytes.chunks_exact_mut(size_of::<f32>()).zip(&scores) {
                target.copy_from_slice(&score.to_ne_bytes());
            }
            Ok(())
        })
    }

    #[getter]
    fn bytes_per_block(&self) -> usize {
        self.executor.bytes_per_block()
    }

    #[getter]
    fn weight_bytes(&self) -> usize {
        self.executor.weight_bytes()
    }

    /// Threads that compute, whether they are pinned, and the NUMA nodes that they may use.
    #[getter]
    fn threads(&self) -> (usize, bool, Vec<usize>) {
        let threads = self.executor.threads();
        (threads.num_threads(), threads.is_pinned(), threads.nodes().to_vec())
    }

    #[getter]
    fn device(&self) -> String {
        self.executor.device()
    }
}

/// (sequence_id, token_id, logprob, [(id, logprob)...]) or (sequence_id, code, message).
fn outcome<'py>(py: Python<'py>, result: &SequenceResult) -> PyResult<Bound<'py, PyTuple>> {
    match &result.outcome {
        Ok(token) => {
            let likeliest = &token.top_logprobs[..];
            (result.sequence_id, token.token_id, token.logprob, likeliest).into_pyobject(py)
        }
        Err(failure) => (result.sequence_id, failure.code(), failure.message()).into_pyobject(py),
    }
}

/// Reads the fields of `SamplingParams` in shard.proto; absent ones have the value that changes nothing.
fn sampling_params(sampling: &Bound<'_, PyDict>) -> PyResult<SamplingParams> {
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
            _ => return Err(PyValueError::new_err(format!("`sampling` has no field {name:?}"))),
        }
    }
    Ok(params)
}

/// CPU kernels and step executor.
#[pymodule]
fn _kernels(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("NUMERICS_VERSION", crate::NUMERICS_VERSION)?;
    module.add_function(wrap_pyfunction!(cpu_features, module)?)?;
    module.add_function(wrap_pyfunction!(isa, module)?)?;
    module.add_class::<PyProgramBuilder>()?;
    module.add_class::<PyExecutor>()
}
