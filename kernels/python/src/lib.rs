//! The Python module `trunkline_server._kernels`. Its types are declared in `server/trunkline_server/_kernels.pyi`.

mod block_io;
mod buffers;
mod failure;
mod late_masks;
mod machine;
mod sampling;
mod store;
mod weight_cache;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use trunkline_contract::{BlockKey, KEY_BYTES};

use crate::buffers::{buffer_of, bytes_of, page_sums};
use crate::failure::Failure;
use crate::late_masks::PyLateMasks;
use crate::machine::{cpu_features, isa, max_parallel_threads};
use crate::sampling::{check_sampling, outcome, sampling_params};
use crate::store::{PyStore, extend_key};
use crate::weight_cache::{PyCacheWriter, PyWeightCache};
use trunkline_kernels::executor::{Chunk, Executor, SequenceResult};
use trunkline_kernels::kv_pool::{KeyScaling, KvGeometry};
use trunkline_kernels::pack::{Format, InterleavedHeads, SourceBytes};
use trunkline_kernels::program::{Experts, ProgramBuilder, ProgramConfig, ProgramError, ValueId, WeightId};
use trunkline_kernels::sampling::TokenScore;
use trunkline_kernels::threads::{Pinning, UnknownPinning, default_num_threads};
use trunkline_kernels::weight_cache::{CacheState, Miss};

fn parse_format(name: &str, format: &str) -> PyResult<Format> {
    format.parse().map_err(|error| PyValueError::new_err(format!("`{name}` is {format:?}: {error}")))
}

/// Records the operations of a model's step. Each method returns the id of its result.
#[pyclass(name = "ProgramBuilder", module = "trunkline_server._kernels")]
struct PyProgramBuilder {
    /// `None` once the program is built.
    builder: Option<ProgramBuilder>,
    /// The buffers that the builder's weights borrow. They are dropped after the builder, while the GIL is held.
    held: Vec<PyUntypedBuffer>,
    /// The names of the weights, for errors.
    names: Vec<String>,
}

impl PyProgramBuilder {
    fn builder(&mut self) -> PyResult<&mut ProgramBuilder> {
        self.builder.as_mut().ok_or_else(|| PyValueError::new_err("the program is already built"))
    }

    /// Names the weight of an error that has one.
    fn named(&self, error: ProgramError) -> Failure {
        match error {
            ProgramError::Weight { weight, source } if !self.names[weight].is_empty() => {
                PyValueError::new_err(format!("weight `{}`: {source}", self.names[weight])).into()
            }
            error => error.into(),
        }
    }
}

#[pymethods]
impl PyProgramBuilder {
    #[new]
    #[pyo3(signature = (*, max_step_tokens, max_step_sequences, block_size, num_blocks, num_layers, num_kv_heads, head_size, kv_dtype))]
    #[allow(clippy::too_many_arguments, reason = "keyword-only in Python")]
    fn new(
        max_step_tokens: usize,
        max_step_sequences: usize,
        block_size: usize,
        num_blocks: usize,
        num_layers: usize,
        num_kv_heads: usize,
        head_size: usize,
        kv_dtype: &str,
    ) -> Result<Self, Failure> {
        let dtype = kv_dtype.parse().map_err(ProgramError::KvPool)?;
        let geometry = KvGeometry { num_layers, num_kv_heads, head_size, block_size, dtype };
        let config = ProgramConfig { max_step_tokens, max_step_sequences, num_blocks, geometry };
        Ok(Self { builder: Some(ProgramBuilder::new(config)?), held: Vec::new(), names: Vec::new() })
    }

    /// `quantize`: Q8_0 or Q4_1, to which a matrix of floats is quantised while it is packed. `name`: for errors.
    #[pyo3(signature = (format, data, shape, *, name="", interleaved_heads=None, is_mapped=false, quantize=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn weight(
        &mut self,
        format: &str,
        data: &Bound<'_, PyAny>,
        shape: Vec<usize>,
        name: &str,
        interleaved_heads: Option<(usize, usize)>,
        is_mapped: bool,
        quantize: Option<&str>,
    ) -> Result<usize, Failure> {
        let format = parse_format("format", format)?;
        let quantize = quantize.map(|format| parse_format("quantize", format)).transpose()?;
        let buffer = buffer_of(data)?;
        // SAFETY: `held` keeps the buffer longer than the builder lives, and the caller states whether it is mapped.
        // The caller must not write to it.
        let bytes = unsafe { SourceBytes::borrow(bytes_of(&buffer), is_mapped) };
        let interleaved_heads =
            interleaved_heads.map(|(head_size, rotary_size)| InterleavedHeads { head_size, rotary_size });
        self.names.push(name.to_owned());
        let builder = self.builder()?;
        let weight = builder
            .weight_from(format, bytes, &shape, interleaved_heads)
            .and_then(|weight| quantize.map_or(Ok(()), |to| builder.quantize(weight, to)).map(|()| weight));
        let weight = weight.map_err(|error| self.named(error))?;
        self.held.push(buffer);
        Ok(weight.0)
    }

    fn keep_windows(&mut self, num_window_parts: usize) -> Result<(), Failure> {
        self.builder()?.keep_windows(num_window_parts);
        Ok(())
    }

    fn embedding(&mut self, w: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.embedding(WeightId(w))?.0)
    }

    fn rms_norm(&mut self, x: usize, w: usize, eps: f32) -> Result<usize, Failure> {
        Ok(self.builder()?.rms_norm(ValueId(x), WeightId(w), eps)?.0)
    }

    fn layer_norm(&mut self, x: usize, w: usize, bias: Option<usize>, eps: f32) -> Result<usize, Failure> {
        Ok(self.builder()?.layer_norm(ValueId(x), WeightId(w), bias.map(WeightId), eps)?.0)
    }

    fn head_rms_norm(&mut self, x: usize, w: usize, eps: f32, head_size: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.head_rms_norm(ValueId(x), WeightId(w), eps, head_size)?.0)
    }

    #[pyo3(signature = (x, w, bias=None))]
    fn linear(&mut self, x: usize, w: usize, bias: Option<usize>) -> Result<usize, Failure> {
        Ok(self.builder()?.linear(ValueId(x), WeightId(w), bias.map(WeightId))?.0)
    }

    fn rope(
        &mut self,
        x: usize,
        inv_freq: Vec<f64>,
        attention_factor: f64,
        head_size: usize,
    ) -> Result<usize, Failure> {
        Ok(self.builder()?.rope(ValueId(x), &inv_freq, attention_factor, head_size)?.0)
    }

    fn write_kv(&mut self, layer: usize, k: usize, v: usize) -> Result<(), Failure> {
        self.builder()?.write_kv(layer, ValueId(k), ValueId(v))?;
        Ok(())
    }

    #[pyo3(signature = (layer, q, scale, window=None, soft_cap=None))]
    fn paged_attention(
        &mut self,
        layer: usize,
        q: usize,
        scale: f32,
        window: Option<usize>,
        soft_cap: Option<f32>,
    ) -> Result<usize, Failure> {
        Ok(self.builder()?.paged_attention(layer, ValueId(q), scale, window, soft_cap)?.0)
    }

    fn silu_mul(&mut self, g: usize, u: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.silu_mul(ValueId(g), ValueId(u))?.0)
    }

    fn gelu_mul(&mut self, g: usize, u: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.gelu_mul(ValueId(g), ValueId(u))?.0)
    }

    fn gelu(&mut self, x: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.gelu(ValueId(x))?.0)
    }

    fn relu_squared(&mut self, x: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.relu_squared(ValueId(x))?.0)
    }

    #[allow(clippy::too_many_arguments, reason = "keyword-only in Python")]
    #[pyo3(signature = (x, logits, *, gate, up, down, num_used, renormalise))]
    fn experts(
        &mut self,
        x: usize,
        logits: usize,
        gate: Vec<usize>,
        up: Vec<usize>,
        down: Vec<usize>,
        num_used: usize,
        renormalise: bool,
    ) -> Result<usize, Failure> {
        let [gate, up, down] =
            [gate, up, down].map(|weights| weights.into_iter().map(WeightId).collect::<Vec<_>>());
        let experts = Experts { gate, up, down, num_used, renormalise };
        Ok(self.builder()?.experts(ValueId(x), ValueId(logits), experts)?.0)
    }

    fn sigmoid_scale(&mut self, x: usize, gate: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.sigmoid_scale(ValueId(x), ValueId(gate))?.0)
    }

    fn scale(&mut self, x: usize, factor: f32) -> Result<usize, Failure> {
        Ok(self.builder()?.scale(ValueId(x), factor)?.0)
    }

    fn add(&mut self, x: usize, y: usize) -> Result<usize, Failure> {
        Ok(self.builder()?.add(ValueId(x), ValueId(y))?.0)
    }

    #[pyo3(signature = (x, w, soft_cap=None))]
    fn logits(&mut self, x: usize, w: usize, soft_cap: Option<f32>) -> Result<usize, Failure> {
        Ok(self.builder()?.logits(ValueId(x), WeightId(w), soft_cap)?.0)
    }

    /// Packs the weights or maps them from the cache, maps the memory and starts the threads. The builder cannot be
    /// used again, even after an error.
    ///
    /// `threads` is one per usable core if None. `pinning` is `auto`, `on` or `off`. `key_scaling` is the attribute of
    /// an executor with the same weights; it is used only with a cache.
    #[pyo3(signature = (threads=None, pinning="off", *, cache=None, key_scaling=None))]
    fn build(
        &mut self,
        py: Python<'_>,
        threads: Option<usize>,
        pinning: &str,
        cache: Option<&PyWeightCache>,
        key_scaling: Option<&[u8]>,
    ) -> Result<PyExecutor, Failure> {
        let geometry = self.builder()?.geometry();
        // A key scaling that does not match the geometry is measured again.
        let key_scaling = key_scaling.and_then(|bytes| {
            let values = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            KeyScaling::from_values(&geometry, values)
        });
        let pinning: Pinning =
            pinning.parse().map_err(|error: UnknownPinning| PyValueError::new_err(error.to_string()))?;
        let threads = threads.unwrap_or_else(default_num_threads);
        let builder =
            self.builder.take().ok_or_else(|| PyValueError::new_err("the program is already built"))?;
        let cache = cache.map(|cache| cache.cache.clone());
        let built = py.detach(|| match cache {
            Some(cache) => builder
                .build_cached(threads, pinning, cache, key_scaling)
                .map(|(executor, state)| (executor, Some(state))),
            None => Ok((builder.build(threads, pinning)?, None)),
        });
        self.held.clear();
        let (executor, cache) = built.map_err(|error| self.named(error))?;
        Ok(PyExecutor { executor, results: Vec::new(), cache })
    }
}

/// A built model with its sequences and KV pool. May only be called by one thread.
#[pyclass(name = "Executor", module = "trunkline_server._kernels")]
struct PyExecutor {
    executor: Executor,
    /// Results of the last step, kept to reuse their memory.
    results: Vec<SequenceResult>,
    /// `None` if there is no cache or its writer was taken.
    cache: Option<CacheState>,
}

type PyChunk = (u64, u32, u32, Vec<u32>, bool, bool, Vec<u32>);

#[pymethods]
impl PyExecutor {
    #[pyo3(signature = (sequence_id, token_ids, num_prompt_tokens, sampling, root_key=None))]
    fn start(
        &mut self,
        sequence_id: u64,
        token_ids: Vec<u32>,
        num_prompt_tokens: usize,
        sampling: &Bound<'_, PyDict>,
        root_key: Option<[u8; KEY_BYTES]>,
    ) -> Result<(), Failure> {
        self.executor.start(sequence_id, token_ids, num_prompt_tokens, sampling_params(sampling)?)?;
        if let Some(root_key) = root_key {
            self.executor.set_root_key(sequence_id, BlockKey::from_bytes(root_key))?;
        }
        Ok(())
    }

    fn attach_store(&mut self, store: &PyStore) -> Result<(), Failure> {
        Ok(self.executor.attach_store(store.transfers.clone())?)
    }

    /// Begins to read blocks from the store, each (slot, block id, key, whether to leave out the window part).
    fn restore(
        &mut self,
        restore_id: u64,
        blocks: Vec<(u32, u32, [u8; KEY_BYTES], bool)>,
    ) -> Result<(), Failure> {
        let blocks: Vec<_> = blocks
            .into_iter()
            .map(|(slot, block_id, key, base_only)| (slot, block_id, BlockKey::from_bytes(key), base_only))
            .collect();
        Ok(self.executor.begin_restore(restore_id, &blocks)?)
    }

    fn discard(&self, slots: Vec<u32>) -> Result<(), Failure> {
        Ok(slots.into_iter().try_for_each(|slot| self.executor.discard(slot))?)
    }

    fn end(&mut self, sequence_id: u64) -> Result<(), Failure> {
        Ok(self.executor.end(sequence_id)?)
    }

    fn await_mask(&mut self, sequence_id: u64, masks: &PyLateMasks) -> Result<(), Failure> {
        Ok(self.executor.await_mask(sequence_id, masks.masks.clone())?)
    }

    fn reset(&mut self, py: Python<'_>) {
        py.detach(|| self.executor.reset());
    }

    /// Sets a sequence back to its first `num_tokens` tokens.
    fn rewind(&mut self, sequence_id: u64, num_tokens: usize) -> Result<(), Failure> {
        Ok(self.executor.rewind(sequence_id, num_tokens)?)
    }

    fn copy_block(&mut self, source: u32, destination: u32, num_tokens: usize) -> Result<(), Failure> {
        Ok(self.executor.copy_block(source, destination, num_tokens)?)
    }

    fn drop_window_parts(&mut self, block_ids: Vec<u32>) -> Result<(), Failure> {
        Ok(self.executor.drop_window_parts(&block_ids)?)
    }

    /// Appends the tokens of `appends` (sequence id, token ids), restricts the next samples by `masks` (sequence id,
    /// bytes) and those after drafts by `draft_masks` (sequence id, bytes of each), runs one step, and begins the
    /// `stores` (sequence id, block index, slot). Stores of chunks that failed are refused and reported as not stored.
    #[pyo3(signature = (chunks, stores=Vec::new(), appends=Vec::new(), masks=Vec::new(), draft_masks=Vec::new()))]
    fn step<'py>(
        &mut self,
        py: Python<'py>,
        chunks: Vec<PyChunk>,
        stores: Vec<(u64, u32, u32)>,
        appends: Vec<(u64, Vec<u32>)>,
        masks: Vec<(u64, Bound<'py, PyBytes>)>,
        draft_masks: Vec<(u64, Vec<Vec<u8>>)>,
    ) -> Result<Bound<'py, PyList>, Failure> {
        stores
            .iter()
            .try_for_each(|(sequence_id, _, slot)| self.executor.check_store(*sequence_id, *slot))?;
        for (sequence_id, token_ids) in appends {
            self.executor.append(sequence_id, &token_ids)?;
        }
        for (sequence_id, mask) in masks {
            self.executor.allow(sequence_id, mask.as_bytes().to_vec())?;
        }
        let mut chunks: Vec<Chunk> = chunks
            .into_iter()
            .map(
                |(sequence_id, first_position, num_tokens, new_block_ids, sample, score, draft_token_ids)| {
                    Chunk {
                        sequence_id,
                        first_position,
                        num_tokens,
                        new_block_ids,
                        sample,
                        score,
                        draft_token_ids,
                        draft_masks: Vec::new(),
                    }
                },
            )
            .collect();
        for (sequence_id, masks) in draft_masks {
            let chunk = chunks.iter_mut().find(|chunk| chunk.sequence_id == sequence_id);
            if let Some(chunk) = chunk {
                chunk.draft_masks = masks;
            }
        }
        let Self { executor, results, .. } = self;
        py.detach(|| {
            executor.step_into(&chunks, results);
            let has_failed = |sequence_id| {
                let mut failed = results.iter().filter(|result| result.outcome.is_err());
                failed.any(|failed| failed.sequence_id == sequence_id)
            };
            executor.begin_stores(&stores, has_failed)
        })?;
        let results = results.iter().map(|result| outcome(py, result)).collect::<PyResult<Vec<_>>>()?;
        Ok(PyList::new(py, results)?)
    }

    /// Returns the scores of the last step: [(sequence id, [(logprob, rank, [(id, logprob)...])...])...].
    fn scores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let token = |token: &TokenScore| (token.logprob, token.rank, token.top_logprobs.clone());
        let scores = self.executor.scores().iter();
        PyList::new(
            py,
            scores.map(|chunk| (chunk.sequence_id, chunk.tokens.iter().map(token).collect::<Vec<_>>())),
        )
    }

    fn score<'py>(&mut self, py: Python<'py>, token_ids: Vec<u32>) -> Result<Bound<'py, PyBytes>, Failure> {
        let executor = &mut self.executor;
        let scores = py.detach(|| executor.score(&token_ids))?;
        let bytes = PyBytes::new_with(py, size_of_val(&scores[..]), |bytes| {
            for (target, score) in bytes.chunks_exact_mut(size_of::<f32>()).zip(&scores) {
                target.copy_from_slice(&score.to_ne_bytes());
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    /// The note stored with the weights that were mapped from the cache; None if they were packed.
    #[getter]
    fn cache_note(&self) -> Option<&str> {
        match &self.cache {
            Some(CacheState::Mapped(note)) => Some(note),
            _ => None,
        }
    }

    /// Returns (reason of the cache miss, whether it is a fault, writer for the packed weights) at the first call.
    /// Returns None later, if the weights were mapped, or if there is no cache.
    fn take_cache_miss(&mut self) -> Option<(String, bool, PyCacheWriter)> {
        match self.cache.take() {
            Some(CacheState::Missed(miss, writer)) => {
                Some((miss.to_string(), !matches!(miss, Miss::Absent), PyCacheWriter { writer }))
            }
            other => {
                self.cache = other;
                None
            }
        }
    }

    /// The scaling of keys before they are rounded, as little-endian f32; None unless the KV dtype is int4.
    #[getter]
    fn key_scaling<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let scaling = self.executor.key_scaling()?;
        let bytes: Vec<u8> = scaling.values().iter().flat_map(|x| x.to_le_bytes()).collect();
        Some(PyBytes::new(py, &bytes))
    }

    #[getter]
    fn bytes_per_block(&self) -> usize {
        self.executor.bytes_per_block()
    }

    #[getter]
    fn bytes_per_window_part(&self) -> usize {
        self.executor.bytes_per_window_part()
    }

    #[getter]
    fn weight_bytes(&self) -> usize {
        self.executor.weight_bytes()
    }

    /// The number of threads, whether they are pinned, and the NUMA nodes that they may use.
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

/// CPU kernels and step executor.
#[pymodule]
fn _kernels(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("NUMERICS_VERSION", trunkline_kernels::NUMERICS_VERSION)?;
    module.add_function(wrap_pyfunction!(cpu_features, module)?)?;
    module.add_function(wrap_pyfunction!(isa, module)?)?;
    module.add_function(wrap_pyfunction!(max_parallel_threads, module)?)?;
    module.add_class::<PyProgramBuilder>()?;
    module.add_function(wrap_pyfunction!(page_sums, module)?)?;
    module.add_function(wrap_pyfunction!(check_sampling, module)?)?;
    module.add_class::<PyWeightCache>()?;
    module.add_class::<PyCacheWriter>()?;
    module.add_class::<PyStore>()?;
    module.add_function(wrap_pyfunction!(extend_key, module)?)?;
    module.add_class::<PyLateMasks>()?;
    module.add_class::<PyExecutor>()
}
