//! The Python module `trunkline_server._kernels`. Its types are declared in `server/trunkline_server/_kernels.pyi`.

mod block_io;
mod buffers;
mod builder;
mod failure;
mod late_masks;
mod machine;
mod sampling;
mod store;
mod weight_cache;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use trunkline_contract::{BlockKey, KEY_BYTES};

use crate::buffers::{packed_bytes, page_sums, quantize_rows, unpack_groups};
use crate::builder::PyProgramBuilder;
use crate::failure::Failure;
use crate::late_masks::PyLateMasks;
use crate::machine::{cpu_features, isa, max_parallel_threads};
use crate::sampling::{check_sampling, outcome, sampling_params};
use crate::store::{PyStore, extend_key};
use crate::weight_cache::{PyCacheWriter, PyWeightCache};
use trunkline_kernels::executor::{Chunk, Executor, SequenceResult};
use trunkline_kernels::sampling::TokenScore;
use trunkline_kernels::weight_cache::{CacheState, Miss};

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
    #[pyo3(signature = (sequence_id, token_ids, num_prompt_tokens, sampling, root_key=None, *, pool=None))]
    fn start(
        &mut self,
        sequence_id: u64,
        token_ids: Vec<u32>,
        num_prompt_tokens: usize,
        sampling: &Bound<'_, PyDict>,
        root_key: Option<[u8; KEY_BYTES]>,
        pool: Option<u32>,
    ) -> Result<(), Failure> {
        self.executor.start(sequence_id, token_ids, num_prompt_tokens, sampling_params(sampling)?)?;
        // 0: there is no second text.
        let second_text = |at: u32| (at > 0).then_some(at as usize);
        if let Some(at) = pool
            && let Err(error) = self.executor.set_pooled(sequence_id, second_text(at))
        {
            self.executor.end(sequence_id)?;
            return Err(error.into());
        }
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

    /// The vectors of the last step, each (sequence id, elements).
    fn vectors(&self) -> Vec<(u64, Vec<f32>)> {
        let vectors = self.executor.vectors().iter();
        vectors.map(|vector| (vector.sequence_id, vector.values.clone())).collect()
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

    /// Microseconds by which late masks delayed the last step.
    #[getter]
    fn waited_us(&self) -> u64 {
        self.executor.waited().as_micros() as u64
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
    module.add("MAX_PLAN_MESSAGE_BYTES", trunkline_contract::MAX_PLAN_MESSAGE_BYTES)?;
    module.add("MAX_RESULT_MESSAGE_BYTES", trunkline_contract::MAX_RESULT_MESSAGE_BYTES)?;
    module.add("MAX_ERROR_MESSAGE_BYTES", trunkline_contract::MAX_ERROR_MESSAGE_BYTES)?;
    module.add_function(wrap_pyfunction!(cpu_features, module)?)?;
    module.add_function(wrap_pyfunction!(isa, module)?)?;
    module.add_function(wrap_pyfunction!(max_parallel_threads, module)?)?;
    module.add_class::<PyProgramBuilder>()?;
    module.add_function(wrap_pyfunction!(page_sums, module)?)?;
    module.add_function(wrap_pyfunction!(packed_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(unpack_groups, module)?)?;
    module.add_function(wrap_pyfunction!(quantize_rows, module)?)?;
    module.add_function(wrap_pyfunction!(check_sampling, module)?)?;
    module.add_class::<PyWeightCache>()?;
    module.add_class::<PyCacheWriter>()?;
    module.add_class::<PyStore>()?;
    module.add_function(wrap_pyfunction!(extend_key, module)?)?;
    module.add_class::<PyLateMasks>()?;
    module.add_class::<PyExecutor>()
}
