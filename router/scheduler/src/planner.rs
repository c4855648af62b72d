//! Makes the plan of one step: decodes first, then prefill with the rest of the budget.
//!
//! There are no phases. A sequence has known tokens and planned positions, and each step closes the gap between them
//! within the budget. A gap of one is a decode.

use trunkline_kv::StoreIndex;

use crate::admission::{admit, admit_suspect};
use crate::budget::{PrefillRoom, StepBudget, divide_prefill};
use crate::choice::Choice;
use crate::consumption::Consumption;
use crate::drafts::{Candidate, awaits_drafts, candidates, max_drafts, pays};
use crate::event::Update;
use crate::fairness::TenantKey;
use crate::in_flight::{PlannedChunk, StepInFlight, late_after_ms, work_of};
use crate::lifecycle::Lifecycle;
use crate::message_size::start_bytes;
use crate::output;
use crate::plan::{Chunk, LogitsRows, StepPlan};
use crate::prefill::{max_tokens, needs, time_room};
use crate::roles::hand_over;
use crate::sequence::{CellId, FirstStart, Sequence, SequenceKey};
use crate::starts::start_on_shard;
use crate::turns::{Turn, turns};
use crate::windows::{copy_state, pass_windows};
use crate::yielding::Yielding;

/// Makes the next plan. None if run-ahead is full, it is too early, there is nothing to do, masks are worth waiting
/// for, or the lane is late and another one is not.
pub(crate) fn make_plan(parts: &mut Lifecycle<'_>) -> Option<StepPlan> {
    let shard = parts.lane.shard.as_mut()?;
    if shard.steps.are_late(parts.now) && parts.others.iter().any(|lane| lane.is_well(parts.now)) {
        return None;
    }
    if shard.steps.is_full() || shard.steps.is_early(parts.now) || awaits_masks(parts) || awaits_drafts(parts)
    {
        return None;
    }
    pass_windows(parts.sequences, parts.lane);
    hand_over(parts);
    admit_suspect(parts);
    let turns = turns(parts);
    if turns.is_empty() {
        return None;
    }
    let mut planner = Planner::new(parts);
    let num_prefill_tokens = planner.plan_chunks(turns);
    planner.plan_drafts();
    planner.finish(num_prefill_tokens)
}

/// Returns true while masks are about to arrive. A plan without their sequences would separate them from the others,
/// and a step costs about the same for one sequence as for all.
fn awaits_masks(parts: &Lifecycle<'_>) -> bool {
    let running = parts.lane.running.keys().iter();
    let mut constraints = running.filter_map(|&key| parts.sequences[key].constraint.as_ref());
    constraints.any(|constraint| constraint.is_worth_waiting_for())
}

/// A plan that is being made.
struct Planner<'p, 'a> {
    parts: &'p mut Lifecycle<'a>,
    plan: StepPlan,
    planned: Vec<PlannedChunk>,
    budget: StepBudget,
    /// Only sequences of this cell are planned; none if all sequences may share the step.
    cell: Option<CellId>,
    choice: Choice,
}

impl<'p, 'a> Planner<'p, 'a> {
    fn new(parts: &'p mut Lifecycle<'a>) -> Self {
        let max_tokens = parts.lane.max_step_tokens(parts.config);
        let shard = parts.lane.shard_mut();
        let budget = StepBudget::new(max_tokens, &shard.limits);
        let plan = StepPlan { step_id: shard.steps.next_step_id(), ..StepPlan::default() };
        let planned = shard.steps.spare_chunks();
        Self { parts, plan, planned, budget, cell: None, choice: Choice::default() }
    }

    /// Plans decodes and prefill, and returns the number of prefill tokens.
    fn plan_chunks(&mut self, turns: &[Turn]) -> u32 {
        for &turn in turns {
            let num_prefill_tokens = match turn {
                Turn::Suspect => self.plan_suspect(),
                Turn::Others => self.plan_others(),
            };
            if !self.planned.is_empty() {
                self.parts.lane.others_are_next = turn == Turn::Suspect;
                return num_prefill_tokens;
            }
        }
        0
    }

    /// Plans sequences other than the suspect. If sequences are separated, a cell has its steps to itself.
    fn plan_others(&mut self) -> u32 {
        let Lifecycle { sequences, lane, cells, now, .. } = &mut *self.parts;
        let Some(order) = cells.order(&lane.turns, sequences, *now) else { return self.plan_cell() };
        for cell in order {
            self.cell = Some(cell);
            let num_prefill_tokens = self.plan_cell();
            if !self.planned.is_empty() {
                self.parts.lane.turns.took(cell);
                return num_prefill_tokens;
            }
        }
        0
    }

    /// Plans the sequences that may share the step. If a tenant's prompts are urgent, the step has only its sequences.
    fn plan_cell(&mut self) -> u32 {
        if self.parts.sequences.tenants().is_shared() {
            let mut first_waiting = None;
            if self.parts.lane.suspect.is_none() {
                self.take_place_back();
                first_waiting = self.choice.next_waiting(self.parts);
            }
            let urgent = Yielding::of(self.parts).urgent_tenant(self.plan.step_id, first_waiting);
            if urgent.is_some() {
                self.plan_decodes(urgent);
                let num_prefill_tokens = self.plan_prefills(urgent);
                if num_prefill_tokens > 0 {
                    return num_prefill_tokens;
                }
            }
        }
        self.plan_decodes(None);
        self.plan_prefills(None)
    }

    /// Plans a chunk of the suspect, or nothing while it waits. If it lacks blocks that only other sequences can
    /// return, it is preempted.
    fn plan_suspect(&mut self) -> u32 {
        let Some(suspect) = self.parts.lane.suspect else { return 0 };
        let wanted = self.parts.sequences[suspect].num_wanted_alone(self.plan.step_id);
        let num_planned =
            if wanted == 0 { 0 } else { self.plan_chunk(suspect, wanted.min(self.budget.tokens)) };
        let is_idle = self.parts.lane.shard().steps.len() == 0;
        if wanted > 0 && num_planned == 0 && is_idle && self.parts.sequences[suspect].is_running() {
            self.parts.preempt(suspect);
        }
        if wanted > 1 { num_planned } else { 0 }
    }

    /// If all places are taken, and the next sequence in the queue belongs to a tenant with less than its part of them,
    /// takes one back.
    fn take_place_back(&mut self) {
        let yielding = Yielding::of(self.parts);
        if yielding.num_occupied_places() < yielding.max_running() {
            return;
        }
        let Some(first_waiting) = self.choice.next_waiting(self.parts) else { return };
        if let Some(victim) = Yielding::of(self.parts).victim_for_place(first_waiting) {
            self.parts.preempt_for_tenant(victim);
        }
    }

    /// Plans the decodes of all tenants, or only of one.
    fn plan_decodes(&mut self, only: Option<TenantKey>) {
        let mut index = 0;
        while !self.budget.is_spent()
            && let Some(&key) = self.parts.lane.running.keys().get(index)
        {
            let sequence = &self.parts.sequences[key];
            let is_asked = only.is_none_or(|tenant| sequence.tenant == tenant)
                && self.cell.is_none_or(|cell| sequence.cell == cell);
            if is_asked && sequence.num_wanted(self.plan.step_id) == 1 {
                self.plan_chunk(key, 1);
            }
            // A sequence before this one may have been preempted for it and removed from the list.
            index += usize::from(self.parts.lane.running.keys().get(index) == Some(&key));
        }
    }

    /// Admits sequences, then plans the prefill of all tenants or only of one. Returns the number of tokens.
    fn plan_prefills(&mut self, only: Option<TenantKey>) -> u32 {
        if self.budget.is_spent() {
            return 0;
        }
        let step_id = self.plan.step_id;
        let is_beside_decodes = !self.planned.is_empty();
        let budget = max_tokens(self.parts, self.budget.tokens, &self.planned, only);
        if self.parts.lane.suspect.is_none() {
            admit(self.parts, &mut self.choice, step_id, budget);
        }
        let mut needs = needs(self.parts, step_id, self.budget.rows, only, self.cell);
        let mut num_planned = 0;
        while !needs.is_empty() {
            let time = is_beside_decodes.then(|| time_room(self.parts, &self.planned, num_planned, &needs));
            let room = PrefillRoom { tokens: budget.saturating_sub(num_planned), time: time.flatten() };
            let shares = divide_prefill(room, &needs);
            let mut is_short = false;
            let mut others = Vec::new();
            for (need, share) in needs.into_iter().zip(shares) {
                if share == 0 {
                    others.push(need);
                    continue;
                }
                // A sequence that was preempted for one before it wants nothing any more.
                let sequence = &self.parts.sequences[need.key];
                let num_unplanned = sequence.num_wanted(step_id);
                let mut wanted = share.min(num_unplanned).min(budget.saturating_sub(num_planned));
                if sequence.is_whole() && wanted < num_unplanned {
                    // Later steps have room for it, or it is the first one, which takes the room of the others.
                    wanted = if num_planned == 0 { num_unplanned } else { 0 };
                }
                let mut planned = 0;
                if wanted > 0 && !self.budget.is_spent() {
                    planned = self.plan_chunk(need.key, wanted);
                }
                num_planned += planned;
                is_short |= planned < share;
            }
            if !is_short {
                break;
            }
            // A sequence that lacks blocks leaves its share to the others. Otherwise all could wait for each other.
            needs = others;
        }
        num_planned
    }

    /// Plans up to `num_tokens` more positions of a sequence, as many as there are blocks for, and returns how many.
    fn plan_chunk(&mut self, key: SequenceKey, num_tokens: u32) -> u32 {
        let is_scored = self.parts.sequences[key].is_scoring();
        let num_tokens = if is_scored { num_tokens.min(self.budget.rows) } else { num_tokens };
        let is_whole = self.parts.sequences[key].is_whole();
        if is_whole && !self.has_room(key, num_tokens) || !self.message_has_room(key, num_tokens) {
            return 0;
        }
        let num_tokens = self.grow(key, num_tokens);
        if num_tokens == 0 {
            return 0;
        }
        self.report_start(key);
        let num_running = self.parts.lane.running.len();
        let shard = self.parts.lane.shard_mut();
        let sequence = &mut self.parts.sequences[key];
        if !sequence.run().is_on_shard {
            let last = self.plan.starts.last();
            let start_bytes =
                start_bytes(sequence.num_tokens(), &sequence.request.sampling, last, &shard.limits);
            self.budget.starts_bytes = self.budget.starts_bytes.saturating_sub(start_bytes);
        }
        start_on_shard(&mut self.plan, shard, sequence);
        let end = sequence.run().planned + num_tokens;
        let (sample, awaits_mask) = sampling(sequence, end);
        let cost = self.parts.sequences.reserve_cost(key, end, sample.into());
        let sequence = &mut self.parts.sequences[key];
        let num_to_score = sequence.num_to_score();
        let run = sequence.run.as_mut().expect("the sequence does not wait");
        shard.kv.device_mut().begin_fill(&run.table, run.planned, num_tokens);
        if awaits_mask {
            run.mask_step_id = Some(self.plan.step_id);
        }
        let num_unsent = std::mem::take(&mut run.num_unsent_tokens) as usize;
        let constraint = sequence.constraint.as_mut().filter(|_| sample);
        let allowed_tokens = constraint.and_then(|constraint| constraint.take_mask());
        if allowed_tokens.is_some() {
            run.sent_mask = allowed_tokens.clone();
        }
        let stores = if is_whole { Vec::new() } else { shard.begin_stores(run, end) };
        if self.plan.chunks.is_empty() {
            // The list is handed away with the plan. This is the only allocation of a step that only decodes.
            self.plan.chunks.reserve_exact(num_running);
        }
        let chunk = Chunk {
            sequence_id: run.wire_id,
            first_position: run.planned,
            num_tokens,
            new_block_ids: run.table.blocks()[run.num_sent_blocks..].iter().map(|hold| hold.id().0).collect(),
            sample,
            stores,
            appended_token_ids: sequence.tokens[sequence.tokens.len() - num_unsent..].to_vec(),
            allowed_tokens: allowed_tokens.map(Into::into).unwrap_or_default(),
            awaits_mask,
            score: is_scored,
            draft_token_ids: Vec::new(),
            draft_masks: Vec::new(),
            num_own_drafts: 0,
        };
        let rows = LogitsRows::of(&chunk, num_to_score);
        self.budget.spend(num_tokens, rows);
        self.budget.vectors -= u32::from(sample && sequence.request.pooling.is_some());
        self.plan.chunks.push(chunk);
        self.planned.push(PlannedChunk {
            key,
            wire_id: run.wire_id,
            first: run.planned,
            end,
            rows,
            num_drafts: 0,
            num_own_drafts: 0,
            cost,
        });
        run.num_sent_blocks = run.table.blocks().len();
        run.planned = end;
        run.pending_samples += u32::from(sample);
        run.steps_in_flight += 1;
        run.last_step_id = self.plan.step_id;
        if let Some(allowed) = sequence.constraint.as_mut().and_then(|constraint| constraint.take_early()) {
            output::apply(self.parts, key, allowed);
        }
        num_tokens
    }

    /// Adds drafts to the planned chunks, as far as they pay and the step has room left for them.
    fn plan_drafts(&mut self) {
        let Some(max_drafts) = max_drafts(self.parts) else { return };
        let (bare, mut candidates) = candidates(self.parts, &self.planned, max_drafts);
        if !candidates.is_empty() && pays(self.parts, bare, &mut candidates) {
            candidates.into_iter().for_each(|candidate| self.add_drafts(&candidate));
        }
    }

    /// Adds drafts to a planned chunk, as many as there is room for.
    fn add_drafts(&mut self, candidate: &Candidate) {
        let key = candidate.key;
        let most = (candidate.drafts.len() as u32).min(self.budget.tokens).min(self.budget.rows);
        let (num_drafts, _) = self.grow_by_free(key, most);
        let Some(index) = self.planned.iter().position(|planned| planned.key == key) else { return };
        let num_own = if candidate.is_own { num_drafts } else { 0 };
        let num_given = (num_drafts - num_own) as usize;
        let drafts = candidate.drafts[..num_given].iter().map(|draft| draft.token_id);
        let sequence = &mut self.parts.sequences[key];
        let run = sequence.run.as_mut().expect("the sequence does not wait");
        run.drafts.clear();
        run.drafts.extend(drafts);
        run.num_own_drafts = num_own;
        self.parts.lane.shard_mut().kv.device_mut().begin_fill(&run.table, run.planned, num_drafts);
        let chunk = &mut self.plan.chunks[index];
        chunk.draft_token_ids.clone_from(&run.drafts);
        chunk.num_own_drafts = num_own;
        if let Some(constraint) = &sequence.constraint {
            let drafts = constraint.drafts()[..num_given].iter();
            chunk.draft_masks = drafts.map(|draft| draft.mask.clone().into()).collect();
        }
        let new_blocks = &run.table.blocks()[run.num_sent_blocks..];
        chunk.new_block_ids.extend(new_blocks.iter().map(|hold| hold.id().0));
        run.num_sent_blocks = run.table.blocks().len();
        self.planned[index].num_drafts = num_drafts;
        self.planned[index].num_own_drafts = num_own;
        self.budget.tokens -= num_drafts;
        self.budget.rows -= num_drafts;
    }

    /// Reports the start of a sequence whose first chunk is about to be planned.
    fn report_start(&mut self, key: SequenceKey) {
        let Lifecycle { now, sequences, lane, counters, updates, .. } = &mut *self.parts;
        let sequence = &mut sequences[key];
        sequence.numerics = lane.shard().limits.numerics;
        if sequence.first_start.is_some() {
            return;
        }
        let cached_tokens = sequence.run().planned;
        sequence.first_start = Some(FirstStart { at: *now, cached_tokens });
        counters.prompt_tokens += u64::from(sequence.num_prompt_tokens);
        counters.prefix_hit_tokens += u64::from(cached_tokens);
        lane.num_hit_tokens += u64::from(cached_tokens);
        let queued_ms = now.since(sequence.submitted_at);
        let restored = sequence.run().restored;
        updates.push(Update::Started { id: sequence.request.id, cached_tokens, queued_ms, restored });
        let (prompt_tokens, cached_tokens) = (sequence.num_prompt_tokens.into(), cached_tokens.into());
        let consumption =
            Consumption { sequences: 1, prompt_tokens, cached_tokens, ..Consumption::default() };
        sequences.consume(key, consumption);
    }

    /// Gets the blocks and window parts for up to `num_tokens` more positions, as many as one chunk may compute. Other
    /// sequences are preempted only if not even one position has a block. Returns how many positions have one.
    fn grow(&mut self, key: SequenceKey, num_tokens: u32) -> u32 {
        loop {
            let (fitting, with_blocks) = self.grow_by_free(key, num_tokens);
            if fitting > 0 || !self.make_room(key, with_blocks == 0) {
                return fitting;
            }
        }
    }

    /// Like [`Planner::grow`], without a preemption. Returns how many positions have blocks and window parts, and how
    /// many have blocks.
    fn grow_by_free(&mut self, key: SequenceKey, num_tokens: u32) -> (u32, u32) {
        let shard = self.parts.lane.shard_mut();
        let run = self.parts.sequences[key].run_mut();
        let num_blocks = run.table.blocks().len() as u32;
        let missing = shard.blocks_for(run.planned + num_tokens).saturating_sub(num_blocks);
        let granted = missing.min(shard.kv.device().available());
        assert!(shard.kv.device_mut().grow(&mut run.table, granted), "the blocks are available");
        let capacity = (num_blocks + granted) * shard.limits.block_size;
        let with_blocks = num_tokens.min(capacity - run.planned);
        let fitting = shard.kv.device_mut().reserve_parts(&mut run.table, run.planned, with_blocks);
        (fitting, with_blocks)
    }

    /// Returns true if plan and result have room for a chunk of up to so many positions. The first start always has
    /// room.
    fn message_has_room(&self, key: SequenceKey, num_tokens: u32) -> bool {
        let (shard, sequence) = (self.parts.lane.shard(), &self.parts.sequences[key]);
        let run = sequence.run();
        let reports_vector =
            sequence.request.pooling.is_some() && run.planned + num_tokens == sequence.num_tokens();
        let last = self.plan.starts.last();
        let start_bytes =
            || start_bytes(sequence.num_tokens(), &sequence.request.sampling, last, &shard.limits);
        let start_fits = run.is_on_shard || last.is_none() || start_bytes() <= self.budget.starts_bytes;
        start_fits && (!reports_vector || self.budget.vectors > 0)
    }

    /// Returns true if the step and the pool have room for all of so many more positions.
    fn has_room(&self, key: SequenceKey, num_tokens: u32) -> bool {
        let (shard, sequence) = (self.parts.lane.shard(), &self.parts.sequences[key]);
        let run = sequence.run();
        let missing =
            shard.blocks_for(run.planned + num_tokens).saturating_sub(run.table.blocks().len() as u32);
        run.planned + num_tokens == sequence.num_tokens()
            && num_tokens <= self.budget.tokens
            && missing <= shard.kv.device().available()
    }

    /// Frees a block or a window part for a sequence whose next position has none. Returns false if that is not
    /// possible now: blocks come back with the steps in flight, or the sequence itself is the first victim and waits.
    fn make_room(&mut self, key: SequenceKey, is_block_missing: bool) -> bool {
        let lane = &mut *self.parts.lane;
        let shard = lane.shard.as_mut().expect("the lane has a shard");
        let mut num_shed = 0;
        for &other in lane.running.keys() {
            num_shed += shard.kv.device_mut().shed_shadows(&mut self.parts.sequences[other].run_mut().table);
        }
        if num_shed > 0 {
            return true;
        }
        if lane.running.num_leaving() > 0 {
            return false;
        }
        match Yielding::of(self.parts).victim() {
            Some(victim) if victim != key => {
                self.parts.preempt(victim);
                let lane = &*self.parts.lane;
                lane.shard().kv.device().available() > 0 || lane.running.num_leaving() == 0
            }
            // No other sequence can give way, but a pin can. It holds blocks without their window parts.
            _ => is_block_missing && self.parts.lane.shard_mut().kv.drop_pin(),
        }
    }

    /// Completes the plan, and notes it as in flight. None if it says nothing.
    fn finish(self, num_prefill_tokens: u32) -> Option<StepPlan> {
        let Self { parts, mut plan, planned, .. } = self;
        let shard = parts.lane.shard_mut();
        shard.outbox.move_into(&mut plan);
        let discards = shard.kv.store_mut().map(StoreIndex::take_discards).unwrap_or_default();
        plan.discards = discards.iter().map(|slot| slot.0).collect();
        if plan.is_empty() {
            shard.steps.recycle(planned);
            return None;
        }
        plan.copies.extend(copy_state(parts.sequences, parts.lane));
        let shard = parts.lane.shard_mut();
        plan.window_drops =
            shard.kv.device_mut().take_window_drops().into_iter().map(|block| block.0).collect();
        if parts.cells.are_apart() {
            let cells = || planned.iter().map(|chunk| parts.sequences[chunk.key].cell);
            assert!(cells().min() == cells().max(), "a step has sequences of one cell only");
        }
        parts.counters.steps += 1;
        parts.counters.scheduled_tokens += plan.num_tokens();
        parts.lane.num_steps += 1;
        parts.lane.num_scheduled_tokens += plan.num_tokens();
        let work = work_of(&planned);
        let predicted_us = parts.lane.throughput.step_cost.predict_us(work);
        let step = StepInFlight {
            step_id: plan.step_id,
            chunks: planned,
            num_prefill_tokens,
            work,
            predicted_ms: predicted_us.filter(|_| work.rows > 0).map_or(0, |us| (us / 1e3) as u64),
            late_after_ms: predicted_us.map(late_after_ms),
            num_awaited_masks: plan.chunks.iter().map(|chunk| u32::from(chunk.awaits_mask)).sum(),
            discards,
        };
        parts.lane.shard_mut().steps.push(step, parts.now);
        Some(plan)
    }
}

/// Decides whether a chunk that ends at `end` samples a token, and whether it awaits the mask for that.
fn sampling(sequence: &Sequence, end: u32) -> (bool, bool) {
    let (run, num_known) = (sequence.run(), sequence.num_tokens());
    let is_mask_known = sequence.constraint.as_ref().is_none_or(|constraint| constraint.has_mask());
    let awaits_mask = !is_mask_known && run.pending_samples == 1 && end == num_known + 1;
    let sample = awaits_mask || is_mask_known && end == num_known + run.pending_samples;
    (sample, awaits_mask)
}
