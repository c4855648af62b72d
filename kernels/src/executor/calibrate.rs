//! Calibration: measures the scaling of keys for an int4 pool ([`KeyScaling`]), once per model and from its weights
//! only.
//!
//! The calibration text is [`NUM_TOKENS`] token ids drawn uniformly from the vocabulary by the counter-based generator.
//! Random tokens suffice because the means and magnitudes of keys depend on weights and positions more than on words.
//! The text runs with int8 K and V in a separate pool, so the result depends neither on the size of the real pool nor
//! on the size of steps.

use super::Executor;
use super::rows::MAX_STATE_RUNS;
use crate::isa::Isa;
use crate::kv_pool::{KeyScaling, KeySums, KvDtype};
use crate::program::{Program, ProgramError};
use crate::sampling::{SamplingParams, philox};
use crate::shared_mut::SharedMut;
use crate::threads::ThreadPool;

/// Tokens of the calibration text, which is one sequence.
const NUM_TOKENS: usize = 1024;
const SEED: u64 = 0x6b65_7973;
/// Every 16th position is marked as sampled. The last layer computes queries of sampled positions only.
const SAMPLE_EVERY: usize = 16;

/// Keys and queries of one step, written by its threads.
pub(super) struct Probe<'a> {
    /// Keys of all layers, `[layer][row][G * D]`.
    pub(super) keys: SharedMut<'a, f32>,
    /// Queries of all layers, `[layer][row][H * D]`. Rows that are not computed are not written.
    pub(super) queries: SharedMut<'a, f32>,
    /// Number of rows per layer in `keys` and `queries`.
    pub(super) max_rows: usize,
}

impl Probe<'_> {
    /// Records the key of a row.
    ///
    /// # Safety
    /// No other thread may access this row of the layer.
    pub(super) unsafe fn note_key(&self, layer: usize, row: usize, key: &[f32]) {
        let start = (layer * self.max_rows + row) * key.len();
        // SAFETY: the caller guarantees exclusive access to the row.
        unsafe { self.keys.slice_mut(start..start + key.len()).copy_from_slice(key) };
    }

    /// Records the part of a row's query that begins at element `first`; `width` is the width H * D of the whole query.
    ///
    /// # Safety
    /// No other thread may access this part of the row of the layer.
    pub(super) unsafe fn note_query(
        &self,
        layer: usize,
        row: usize,
        (first, width): (usize, usize),
        query: &[f32],
    ) {
        let start = (layer * self.max_rows + row) * width + first;
        // SAFETY: the caller guarantees exclusive access to this part.
        unsafe { self.queries.slice_mut(start..start + query.len()).copy_from_slice(query) };
    }
}

fn token_ids(num_embeddings: usize) -> Vec<u32> {
    let draw = |position| (philox::uniforms(SEED, 0, position)[0] * num_embeddings as f64) as u32;
    (0..NUM_TOKENS as u32).map(draw).collect()
}

/// Measures the key scaling of `program` and returns it with the unchanged program and thread pool.
///
/// Heads whose sums are not finite are not scaled.
pub(super) fn measure(
    mut program: Program,
    pool: ThreadPool,
    isa: Isa,
) -> Result<(KeyScaling, Program, ThreadPool), ProgramError> {
    let config = program.config;
    program.config.geometry.dtype = KvDtype::Int8;
    // `NUM_TOKENS` is a multiple of every block size.
    let num_blocks = NUM_TOKENS / config.geometry.block_size;
    program.config.num_blocks = num_blocks;
    let turns = program.key_turns(num_blocks);
    // The calibration pool has no window parts, but room for the states before and behind a step.
    let states = (program.state_size > 0).then_some(MAX_STATE_RUNS + 1);
    let num_window_parts = std::mem::replace(&mut program.num_window_parts, states);
    let spill = program.spill.take();
    let mut executor = Executor::new(program, pool, isa)?;
    let sums = executor.key_sums()?;
    let Executor { mut program, pool, .. } = executor;
    program.config = config;
    program.num_window_parts = num_window_parts;
    program.spill = spill;
    Ok((sums.scaling(&config.geometry, &turns), program, pool))
}

impl Executor {
    fn key_sums(&mut self) -> Result<KeySums, ProgramError> {
        let config = self.program.config;
        let g = config.geometry;
        let (key_width, heads) = (g.num_kv_heads * g.head_size, self.program.heads_per_kv_head);
        let query_width = key_width * heads;
        let slice = config.max_step_tokens.min(config.max_step_sequences * SAMPLE_EVERY).min(NUM_TOKENS);
        let mut keys = vec![0.0; g.num_layers * slice * key_width];
        let mut queries = vec![0.0; g.num_layers * slice * query_width];
        let mut sums = KeySums::new(&g, config.num_blocks);
        let ids = token_ids(self.program.num_embeddings);
        let begun = self.start(0, ids, NUM_TOKENS, SamplingParams::default());
        assert!(begun.is_ok(), "the pool is made for the text: {begun:?}");
        for first in (0..NUM_TOKENS).step_by(slice) {
            let num_tokens = slice.min(NUM_TOKENS - first);
            // Rows that are not computed must add nothing.
            queries.fill(0.0);
            let probe = Probe {
                keys: SharedMut::new(&mut keys),
                queries: SharedMut::new(&mut queries),
                max_rows: slice,
            };
            let is_sampled = |row: usize| (first + row) % SAMPLE_EVERY == SAMPLE_EVERY - 1;
            let dropped = self.drop_scored(first);
            assert!(dropped.is_ok(), "the blocks are in the pool: {dropped:?}");
            // The step is within its limits, so only the weights can fail.
            self.compute_text((first, num_tokens), config.num_blocks, is_sampled, Some(&probe))
                .map_err(|what| ProgramError::Stream { what })?;
            for layer in 0..g.num_layers {
                let rows = |width| layer * slice * width..(layer * slice + num_tokens) * width;
                for (row, key) in keys[rows(key_width)].chunks_exact(key_width).enumerate() {
                    sums.add_keys(layer, (first + row) / g.block_size, key);
                }
                queries[rows(query_width)]
                    .chunks_exact(query_width)
                    .for_each(|query| sums.add_queries(&g, layer, query));
            }
        }
        self.reset();
        Ok(sums)
    }
}
