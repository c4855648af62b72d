//! The Python module `trunkline_server._kernels`. Its types are declared in `server/trunkline_server/_kernels.pyi`.
//!
//! A file here has the Python side of one thing: `builder.rs` of the program of a model, `adapter.rs` of adapters,
//! `messages.rs` of a step's plan and result, `weight_cache.rs` of packed weights, `store.rs` of the store on disk,
//! `settings.rs` of the file with the settings. Errors become exceptions in `failure.rs`. The crate computes nothing
//! itself: it uses the kernels, the store, the settings and the contract, and only Python uses it.
//!
//! Begin with `PyExecutor`.

mod adapter;
mod block_io;
mod buffers;
mod builder;
mod failure;
mod late_masks;
mod machine;
mod messages;
mod settings;
mod store;
mod weight_cache;

use prost::Message;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use trunkline_contract::proto;

use crate::adapter::{PyAdapter, hash_tensors};
use crate::buffers::{packed_bytes, page_sums, quantize_rows, skip_strings, unpack_groups};
use crate::builder::PyProgramBuilder;
use crate::failure::Failure;
use crate::late_masks::PyLateMasks;
use crate::machine::{cpu_features, isa, max_parallel_threads};
use crate::messages::{block_key, check_sampling, decode, neutral_sampling};
use crate::settings::read_settings;
use crate::store::{PyStore, extend_key};
use crate::weight_cache::{PyCacheWriter, PyWeightCache};
use trunkline_kernels::executor::{Chunk, Executor, ExecutorError, SequenceResult};
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

#[pymethods]
impl PyExecutor {
    /// Starts the sequence of a `SequenceStart` of shard.proto, given as its bytes.
    fn start(&mut self, start: &[u8]) -> Result<(), Failure> {
        let start: proto::SequenceStart = decode(start)?;
        let sequence_id = start.sequence_id;
        let sampling =
            start.sampling.ok_or_else(|| PyValueError::new_err("the sequence has no `sampling`"))?;
        let root_key = (!start.root_key.is_empty()).then(|| block_key(&start.root_key)).transpose()?;
        self.executor.start(
            sequence_id,
            start.token_ids,
            start.num_prompt_tokens as usize,
            sampling.into(),
        )?;
        // 0: there is no second text.
        let second_text = |at: u32| (at > 0).then_some(at as usize);
        if let Some(pooled) = start.pooled
            && let Err(error) = self.executor.set_pooled(sequence_id, second_text(pooled.second_text))
        {
            self.executor.end(sequence_id)?;
            return Err(error.into());
        }
        if start.adapter_slot > 0
            && let Err(error) =
                self.executor.use_adapter(sequence_id, start.adapter_slot as usize, start.adapter_scale)
        {
            self.executor.end(sequence_id)?;
            return Err(error.into());
        }
        if let Some(root_key) = root_key {
            self.executor.set_root_key(sequence_id, root_key)?;
        }
        Ok(())
    }

    fn set_num_adapter_slots(&mut self, num_slots: usize) {
        self.executor.set_num_adapter_slots(num_slots);
    }

    /// Puts an adapter into a slot, or empties it with None.
    #[pyo3(signature = (slot, adapter))]
    fn set_adapter(&mut self, slot: usize, adapter: Option<&PyAdapter>) -> Result<(), Failure> {
        Ok(self.executor.set_adapter(slot, adapter.map(|adapter| adapter.adapter.clone()))?)
    }

    fn attach_store(&mut self, store: &PyStore) -> Result<(), Failure> {
        Ok(self.executor.attach_store(store.transfers.clone())?)
    }

    /// Begins a `Restore` of shard.proto, given as its bytes.
    fn restore(&mut self, restore: &[u8]) -> Result<(), Failure> {
        let proto::Restore { restore_id, blocks, store_folder } = decode(restore)?;
        let block = |block: proto::BlockRestore| {
            Ok((block.slot, block.block_id, block_key(&block.key)?, block.base_only))
        };
        let blocks = blocks.into_iter().map(block).collect::<PyResult<Vec<_>>>()?;
        let folder = (!store_folder.is_empty()).then(|| store_folder.into());
        Ok(self.executor.begin_restore(restore_id, &blocks, folder)?)
    }

    fn discard(&self, slots: Vec<u32>) -> Result<(), Failure> {
        Ok(slots.into_iter().try_for_each(|slot| self.executor.discard(slot))?)
    }

    fn end(&mut self, sequence_id: u64) -> Result<(), Failure> {
        Ok(self.executor.end(sequence_id)?)
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

    /// Runs the chunks of a `StepPlan` of shard.proto, given as its bytes, and begins their stores. Chunks that await a
    /// mask find it in `late_masks`. Stores of chunks that failed are refused and reported as not stored. Returns the
    /// bytes of a `StepResult` with the results of the chunks alone.
    #[pyo3(signature = (plan, late_masks=None))]
    fn step<'py>(
        &mut self,
        py: Python<'py>,
        plan: &[u8],
        late_masks: Option<&PyLateMasks>,
    ) -> Result<Bound<'py, PyBytes>, Failure> {
        let proto::StepPlan { chunks: messages, .. } = decode(plan)?;
        let mut stores = Vec::new();
        for message in &messages {
            for store in &message.stores {
                self.executor.check_store(message.sequence_id, store.slot)?;
                stores.push((message.sequence_id, store.block_index, store.slot));
            }
        }
        for message in &messages {
            let sequence_id = message.sequence_id;
            if !message.appended_token_ids.is_empty() {
                self.executor.append(sequence_id, &message.appended_token_ids)?;
            }
            if !message.allowed_tokens.is_empty() {
                self.executor.allow(sequence_id, message.allowed_tokens.to_vec())?;
            }
            if message.awaits_mask {
                let masks = late_masks.ok_or_else(|| PyValueError::new_err("`late_masks` is missing"))?;
                self.executor.await_mask(sequence_id, masks.masks.clone())?;
            }
        }
        let chunks: Vec<Chunk> = messages.iter().map(messages::chunk).collect();
        let Self { executor, results, .. } = self;
        let result = py.detach(|| {
            executor.step_into(&chunks, results)?;
            let has_failed = |sequence_id| {
                let mut failed = results.iter().filter(|result| result.outcome.is_err());
                failed.any(|failed| failed.sequence_id == sequence_id)
            };
            executor.begin_stores(&stores, has_failed)?;
            Ok::<_, ExecutorError>(messages::step_result(executor, &messages, results).encode_to_vec())
        })?;
        Ok(PyBytes::new(py, &result))
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
                Some((miss.to_string(), !matches!(miss, Miss::Absent), PyCacheWriter { writer: *writer }))
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

    /// Bytes of the KV pool's memory and of its file. None if all of it is in memory.
    #[getter]
    fn spill(&self) -> Option<(usize, usize)> {
        self.executor.spill_sizes().map(|sizes| (sizes.memory_bytes, sizes.file_bytes))
    }

    /// Bytes of weights that stay in memory, that are read in every step, and that are read ahead at most, and the
    /// disk's bytes per second. None if all weights are in memory.
    #[getter]
    fn stream(&self) -> Option<(usize, usize, usize, u64)> {
        let sizes = self.executor.stream_sizes()?;
        Some((sizes.resident_bytes, sizes.streamed_bytes, sizes.ahead_bytes, sizes.bytes_per_second))
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
    module.add_function(wrap_pyfunction!(skip_strings, module)?)?;
    module.add_function(wrap_pyfunction!(check_sampling, module)?)?;
    module.add_function(wrap_pyfunction!(neutral_sampling, module)?)?;
    module.add_function(wrap_pyfunction!(read_settings, module)?)?;
    module.add_function(wrap_pyfunction!(hash_tensors, module)?)?;
    module.add_class::<PyAdapter>()?;
    module.add_class::<PyWeightCache>()?;
    module.add_class::<PyCacheWriter>()?;
    module.add_class::<PyStore>()?;
    module.add_function(wrap_pyfunction!(extend_key, module)?)?;
    module.add_class::<PyLateMasks>()?;
    module.add_class::<PyExecutor>()
}
