//! One step: checks the chunks, runs the forward pass, and collects the results.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::calibrate::Probe;
use super::failure::SequenceFailure;
use super::rows::AcceptedChunk;
use super::run::Step;
use super::sequence::{Allowed, Chunk, ChunkLimits};
use super::{Executor, ExecutorError, Outcome, RowPurpose, SequenceResult, as_floats};
use crate::kv_spill::KvSpill;
use crate::program::WeightGate;
use crate::sampling::{SampleContext, SampledToken};
use crate::shared_mut::SharedMut;

/// The time in which one thread sampled, and how much of it it waited for late masks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SamplingTime {
    whole: Duration,
    waited: Duration,
}

impl SamplingTime {
    /// Returns how much longer sampling took all threads together because some of them waited.
    fn waited_by_all(threads: impl Iterator<Item = Self> + Clone) -> Duration {
        let whole = threads.clone().map(|thread| thread.whole).max().unwrap_or_default();
        let busy = threads.map(|thread| thread.whole.saturating_sub(thread.waited)).max().unwrap_or_default();
        whole - busy
    }
}

/// Why a step could not compute anything.
#[derive(Debug)]
enum Unread {
    Weights(String),
    Kv(String),
}

#[derive(Debug)]
pub(super) enum Fate {
    Failed(SequenceFailure),
    /// The chunk runs. Its rows of logits begin at `first_row`: `num_scored` scored positions, then the sampled one, if
    /// any.
    Runs {
        first_row: usize,
        num_scored: usize,
        /// The slot and the first row of tokens of a pooled sequence.
        pooled: Option<(usize, usize)>,
    },
}

impl Executor {
    /// Like [`Executor::step_into`], with a new `Vec` for the results. Panics if it fails.
    pub fn step(&mut self, chunks: &[Chunk]) -> Vec<SequenceResult> {
        let mut results = Vec::new();
        self.step_into(chunks, &mut results).expect("K and V can be read");
        results
    }

    /// Runs one forward pass over `chunks`.
    ///
    /// `results` receives one entry for each sampled token and for each chunk that fails, in the order of `chunks`.
    /// With drafts, several tokens of one sequence follow each other. The scores of chunks with `score` are in
    /// [`Executor::scores`] until the next step, and the vectors of pooled sequences in [`Executor::vectors`]. A
    /// sampled token is appended to its sequence. An invalid chunk fails without affecting the others.
    ///
    /// `results` is overwritten and its memory is reused: if the same `Vec` is passed to every step, a step without
    /// failures and scores allocates nothing.
    ///
    /// Fails if K and V that exceed their memory cannot be read.
    pub fn step_into(
        &mut self,
        chunks: &[Chunk],
        results: &mut Vec<SequenceResult>,
    ) -> Result<(), ExecutorError> {
        for result in results.drain(..) {
            if let Ok(SampledToken { top_logprobs, .. }) = result.outcome
                && self.spare_lists.len() < self.spare_lists.capacity()
            {
                self.spare_lists.push(top_logprobs);
            }
        }
        self.begin_step();
        self.fates.clear();
        self.scores.clear();
        self.vectors.clear();
        for chunk in chunks {
            let fate = match self.admit(chunk) {
                Err(message) => Fate::Failed(SequenceFailure::InvalidPlan(message)),
                Ok(slot) => {
                    let first_row = self.logits_rows.len();
                    let first_token = self.rows.token_ids.len() - chunk.num_rows();
                    let pooled = self.sequences.at(slot).sums.as_ref().map(|_| (slot, first_token));
                    Fate::Runs { first_row, num_scored: self.push_logits_rows(slot, chunk), pooled }
                }
            };
            self.fates.push(fate);
        }
        let unread = match self.forward(None) {
            Err(Unread::Kv(what)) => return Err(ExecutorError::LostKv { what }),
            Err(Unread::Weights(what)) => Some(what),
            Ok(()) => None,
        };
        let mut fates = std::mem::take(&mut self.fates);
        for (chunk, fate) in chunks.iter().zip(fates.drain(..)) {
            let sequence_id = chunk.sequence_id;
            let late = self.settle_late(sequence_id);
            let outcome = match fate {
                Fate::Failed(failure) => Err(failure),
                Fate::Runs { .. } if unread.is_some() => {
                    Err(SequenceFailure::Unread(unread.clone().unwrap_or_default()))
                }
                Fate::Runs { first_row, pooled: Some((slot, first_token)), .. } => {
                    match self.pool_chunk(slot, chunk, (first_token, first_row)) {
                        Ok(()) => continue,
                        Err(failure) => Err(failure),
                    }
                }
                Fate::Runs { first_row, num_scored, pooled: None } => {
                    let scored = if chunk.score {
                        self.finish_scores(sequence_id, first_row, num_scored)
                    } else {
                        Ok(())
                    };
                    match (scored, late) {
                        (Err(failure), _) | (Ok(()), Some(Err(failure))) => Err(failure),
                        (Ok(()), None) if chunk.sample => {
                            self.finish_samples(chunk, first_row + num_scored, results);
                            continue;
                        }
                        (Ok(()), _) => continue,
                    }
                }
            };
            results.push(SequenceResult { sequence_id, outcome });
        }
        self.fates = fates;
        Ok(())
    }

    fn begin_step(&mut self) {
        self.rows.clear();
        self.logits_rows.clear();
        self.num_steps += 1;
    }

    /// Computes `num_tokens` positions of sequence 0, the only one, from `first` on, with the logits of the rows that
    /// `is_sampled` selects. The sequence's blocks are the first `num_blocks` of the pool.
    pub(super) fn compute_text(
        &mut self,
        (first, num_tokens): (usize, usize),
        num_blocks: usize,
        is_sampled: impl Fn(usize) -> bool,
        probe: Option<&Probe<'_>>,
    ) -> Result<(), String> {
        self.begin_step();
        self.admit(&Chunk {
            sequence_id: 0,
            first_position: first as u32,
            num_tokens: num_tokens as u32,
            new_block_ids: if first == 0 { (0..num_blocks as u32).collect() } else { Vec::new() },
            sample: false,
            score: false,
            draft_token_ids: Vec::new(),
            draft_masks: Vec::new(),
        })?;
        (0..num_tokens).filter(|row| is_sampled(*row)).for_each(|row| self.rows.push_sample(row));
        self.forward(probe).map_err(|(Unread::Weights(what) | Unread::Kv(what))| what)
    }

    /// Checks a chunk and adds its rows to the step. Returns its slot in the sequence table.
    fn admit(&mut self, chunk: &Chunk) -> Result<usize, String> {
        let config = self.program.config;
        let id = chunk.sequence_id;
        let slot = self.sequences.find(id).ok_or_else(|| format!("sequence {id} is not started"))?;
        if self.rows.chunks.iter().any(|accepted| accepted.slot == slot) {
            return Err(format!("sequence {id} has two chunks in one step"));
        }
        if self.rows.chunks.len() == config.max_step_sequences {
            return Err(format!("more than {} chunks in one step", config.max_step_sequences));
        }
        let num_tokens = self.rows.token_ids.len() + chunk.num_rows();
        if num_tokens > config.max_step_tokens {
            return Err(format!(
                "{num_tokens} tokens in one step, expected up to {}",
                config.max_step_tokens
            ));
        }
        let block_size = config.geometry.block_size;
        let limits = ChunkLimits {
            num_blocks: config.num_blocks,
            block_size,
            num_embeddings: self.program.num_embeddings,
            max_positions: self.program.max_positions,
            is_whole: self.program.sees_all,
        };
        self.check_logits_rows(self.sequences.at(slot), chunk)?;
        self.sequences.at_mut(slot).accept(chunk, &limits)?;
        let blocks = self.sequences.at(slot).written_blocks(chunk, block_size);
        let stamp = self.num_steps;
        if let Some(block_id) = blocks.iter().find(|id| self.written[**id as usize] == stamp) {
            return Err(format!("block {block_id} is written by another chunk of the step"));
        }
        blocks.iter().for_each(|id| self.written[*id as usize] = stamp);
        self.admit_window(slot, chunk)?;
        let accepted = AcceptedChunk {
            slot,
            first_position: chunk.first_position as usize,
            num_tokens: chunk.num_rows(),
            adapter: self.sequences.at(slot).adapter,
        };
        self.rows.push(accepted, &chunk.draft_token_ids, &self.sequences, block_size);
        if self.program.state_size > 0 {
            self.rows.push_states(&self.sequences, block_size);
        }
        Ok(slot)
    }

    /// Runs the step's rows, then samples or scores a token for each row of logits. Fails if weights, or K and V,
    /// cannot be read.
    fn forward(&mut self, probe: Option<&Probe<'_>>) -> Result<(), Unread> {
        self.waited = Duration::ZERO;
        if self.rows.token_ids.is_empty() {
            return Ok(());
        }
        self.begin_spill();
        self.plans.rebuild(&self.rows, &self.limits);
        self.cursors.reset();
        self.counters.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        let logits_rows = &self.logits_rows[..];
        if self.outcomes.len() < logits_rows.len() {
            self.outcomes.resize_with(logits_rows.len(), Outcome::default);
        }
        for outcome in &mut self.outcomes[..logits_rows.len()] {
            outcome.token = None;
            outcome.score = None;
            if outcome.list.capacity() == 0 {
                outcome.list = self.spare_lists.pop().unwrap_or_default();
            }
        }
        let step = Step {
            isa: self.isa,
            program: &self.program,
            floats: SharedMut::new(as_floats(&mut self.floats)),
            quantized: SharedMut::new(&mut self.quantized),
            kv: self.kv.view(),
            sequences: &self.sequences,
            adapters: &self.adapters,
            rows: &self.rows,
            plans: &self.plans,
            limits: &self.limits,
            states: SharedMut::new(as_floats(&mut self.states)),
            counters: &self.counters,
            cursors: &self.cursors,
            probe,
            num_threads: self.pool.num_threads(),
            gate: self.program.image.gate.as_deref(),
            spill: self.spill.as_ref(),
        };
        let scratch = SharedMut::new(&mut self.scratch);
        let outcomes = SharedMut::new(&mut self.outcomes);
        let next_sample = AtomicUsize::new(0);
        if let Some(gate) = step.gate {
            gate.begin_pass();
        }
        self.pool.run(|thread_idx, barrier| {
            // SAFETY: each thread has its own index.
            let scratch = unsafe { &mut scratch.slice_mut(thread_idx..thread_idx + 1)[0] };
            let memory = (&mut scratch.attention, &mut scratch.routing);
            if !step.run(thread_idx, barrier, memory, scratch.profile.as_mut()) || logits_rows.is_empty() {
                return;
            }
            barrier.wait();
            let began = Instant::now();
            let mut waited = Duration::ZERO;
            loop {
                let index = next_sample.fetch_add(1, Ordering::Relaxed);
                let Some(row) = logits_rows.get(index) else { break };
                // SAFETY: the counter gives each index to one thread.
                let (logits, outcome) =
                    unsafe { (step.logits_row(index), &mut outcomes.slice_mut(index..index + 1)[0]) };
                let sequence = step.sequences.at(row.slot);
                let params = &sequence.sampling;
                let num_drafts = match row.purpose {
                    RowPurpose::Pool => continue,
                    RowPurpose::Sample { num_drafts } => num_drafts,
                    RowPurpose::Score { token_id } => {
                        let num_top = params.prompt_logprobs.unwrap_or(0) as usize;
                        let score = scratch.sampler.score(step.isa, logits, token_id, num_top);
                        outcome.score = Some(score);
                        continue;
                    }
                };
                // The row itself is that of the last known token or draft.
                let end = step.rows.samples[index] + 1;
                let num_tokens = sequence.token_ids.len() + num_drafts;
                let context = SampleContext {
                    position: num_tokens as u32,
                    num_output: num_tokens - sequence.num_prompt_tokens,
                    previous: step.rows.token_ids[end - 1],
                    drafts: &step.rows.token_ids[end - num_drafts..end],
                };
                let masks_wanted = sequence.awaits_mask().then(Instant::now);
                let masks = sequence.masks(num_drafts);
                waited += masks_wanted.map_or(Duration::ZERO, |at| at.elapsed());
                let sampled = scratch.sampler.sample(
                    step.isa,
                    logits,
                    params,
                    &sequence.counts,
                    context,
                    masks,
                    &mut outcome.list,
                );
                outcome.token = Some(sampled);
            }
            scratch.sampling = SamplingTime { whole: began.elapsed(), waited };
        });
        let spilled = self.spill.as_ref().map_or(Ok(()), KvSpill::end_step);
        let weights = self.program.image.gate.as_deref().map_or(Ok(()), WeightGate::end_pass);
        weights.map_err(Unread::Weights)?;
        spilled.map_err(Unread::Kv)?;
        if !self.logits_rows.is_empty() {
            self.waited = SamplingTime::waited_by_all(self.scratch.iter().map(|scratch| scratch.sampling));
        }
        Ok(())
    }

    /// Tells the pool's file which blocks the step reads and writes.
    fn begin_spill(&mut self) {
        let Some(spill) = &mut self.spill else { return };
        let (rows, sequences, windows) = (&self.rows, &self.sequences, &self.program.windows);
        let block_size = self.program.config.geometry.block_size;
        let needed = |window: usize| {
            rows.chunks.iter().map(move |chunk| {
                let first = windows[window].first_visible(chunk.first_position) / block_size;
                let end = (chunk.first_position + chunk.num_tokens).div_ceil(block_size);
                &sequences.at(chunk.slot).block_table[first..end]
            })
        };
        spill.begin_step(needed, rows.slots.iter().map(|(block, _)| *block));
    }

    /// Takes the samples of a chunk, of which the first is in row `first_row`, up to the first one that differs from
    /// its draft.
    fn finish_samples(&mut self, chunk: &Chunk, first_row: usize, results: &mut Vec<SequenceResult>) {
        let sequence_id = chunk.sequence_id;
        let mut drafts = chunk.draft_token_ids.iter();
        for row in first_row.. {
            let outcome = self.finish_sample(row);
            if row > first_row {
                // Without a sample behind it the draft is computed again, and the next step reports the failure.
                if outcome.is_err() {
                    return;
                }
                self.sequences.at_mut(self.logits_rows[row].slot).accept_draft();
            }
            let token_id = outcome.as_ref().ok().map(|token| token.token_id);
            results.push(SequenceResult { sequence_id, outcome });
            if token_id.is_none() || token_id != drafts.next().copied() {
                return;
            }
        }
    }

    fn finish_sample(&mut self, index: usize) -> Result<SampledToken, SequenceFailure> {
        let sequence = self.sequences.at_mut(self.logits_rows[index].slot);
        sequence.allowed = Allowed::All;
        match self.outcomes[index].token.take() {
            Some(Ok(token)) => {
                sequence.push_sampled(token.token_id);
                Ok(token)
            }
            _ => {
                let position = sequence.token_ids.len();
                let message =
                    format!("a logit for position {position} is NaN or infinite, or no token is left");
                Err(SequenceFailure::NotFinite(message))
            }
        }
    }
}
