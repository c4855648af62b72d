//! Measuring how keys are to be scaled for int4 ([`KeyScaling`]): once per model, from its weights alone.
//!
//! The text is [`NUM_TOKENS`] token ids drawn evenly from the vocabulary by the counter-based generator: keys have
//! their means and sizes from weights and positions more than from words. It is run with K and V in int8 in a pool of
//! its own, so that neither the pool's size nor how steps are cut changes a bit.

use super::Executor;
use crate::isa::Isa;
use crate::kv_pool::{KeyScaling, KeySums, KvDtype};
use crate::program::{Program, ProgramError};
use crate::sampling::{SamplingParams, philox};
use crate::shared_mut::SharedMut;
use crate::threads::ThreadPool;

/// Tokens of the text; the model sees them as one sequence.
pub const NUM_TOKENS: usize = 1024;
/// Its part of the generator's key.
const SEED: u64 = 0x6b65_7973;
/// One in so many positions samples: the last layer has queries of those alone.
const SAMPLE_EVERY: usize = 16;

/// Keys and queries of one step, as the threads leave them.
pub(super) struct Probe<'a> {
    /// `[layer][row][G * D]`.
    pub(super) keys: SharedMut<'a, f32>,
    /// `[layer][row][H * D]`; of rows that are not computed, nothing.
    pub(super) queries: SharedMut<'a, f32>,
    /// Rows that there is room for.
    pub(super) max_rows: usize,
}

impl Probe<'_> {
    /// Notes the key of a row.
    ///
    /// # Safety
    /// No other thread has this row of the layer.
    pub(super) unsafe fn note_key(&self, layer: usize, row: usize, key: &[f32]) {
        let start = (layer * self.max_rows + row) * key.len();
        // SAFETY: the caller's row.
        unsafe { self.keys.slice_mut(start..start + key.len()).copy_from_slice(key) };
    }

    /// Notes a part of the query `[H * D]` of a row, from element `first` on; `width` is that of the whole.
    ///
    /// # Safety
    /// No other thread has this part of this row of the layer.
    pub(super) unsafe fn note_query(
        &self,
        layer: usize,
        row: usize,
        (first, width): (usize, usize),
        query: &[f32],
    ) {
        let start = (layer * self.max_rows + row) * width + first;
        // SAFETY: the caller's part.
        unsafe { self.queries.slice_mut(start..start + query.len()).copy_from_slice(query) };
    }
}

/// The ids of the text.
fn token_ids(num_embeddings: usize) -> Vec<u32> {
    let draw = |position| (philox::uniform(SEED, 0, position) * num_embeddings as f64) as u32;
    (0..NUM_TOKENS as u32).map(draw).collect()
}

/// Measures the scaling of `program`'s keys; program and pool come back as they were.
///
/// A model that does not say finite numbers of its keys has heads that are not scaled.
pub(super) fn measure(
    mut program: Program,
    pool: ThreadPool,
    isa: Isa,
) -> Result<(KeyScaling, Program, ThreadPool), ProgramError> {
    let config = program.config;
    program.config.geometry.dtype = KvDtype::Int8;
    // Whole blocks: segments are, too.
    let num_blocks = NUM_TOKENS / config.geometry.block_size;
    program.config.num_blocks = num_blocks;
    let turns = program.key_turns(num_blocks);
    // Its own pool has whole blocks.
    let num_window_parts = program.num_window_parts.take();
    let mut executor = Executor::new(program, pool, isa)?;
    let sums = executor.key_sums();
    let Executor { mut program, pool, .. } = executor;
    program.config = config;
    program.num_window_parts = num_window_parts;
    Ok((sums.scaling(&config.geometry, &turns), program, pool))
}

impl Executor {
    fn key_sums(&mut self) -> KeySums {
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
            // What is not computed adds nothing.
            queries.fill(0.0);
            self.rows.clear();
            self.logits_rows.clear();
            self.num_steps += 1;
            let new_block_ids = if first == 0 { (0..config.num_blocks as u32).collect() } else { Vec::new() };
            let chunk = super::Chunk {
                sequence_id: 0,
                first_position: first as u32,
                num_tokens: num_tokens as u32,
                new_block_ids,
                sample: false,
                score: false,
            };
            let admitted = self.admit(&chunk);
            assert!(admitted.is_ok(), "the step is within its limits: {admitted:?}");
            let samples = (0..num_tokens).filter(|row| (first + row) % SAMPLE_EVERY == SAMPLE_EVERY - 1);
            samples.for_each(|row| self.rows.push_sample(row));
            let probe = Probe {
                keys: SharedMut::new(&mut keys),
                queries: SharedMut::new(&mut queries),
                max_rows: slice,
            };
            self.forward(Some(&probe));
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
        sums
    }
}
