//! Makes the plan of one step: decodes first, then prefill in what is left.
//!
//! There are no phases: a sequence has tokens known and positions planned, and each step closes the gap within the
//! budget. A gap of one is a decode.

use crate::budget::{PrefillNeed, StepBudget, divide_prefill};
use crate::event::{Millis, Update};
use crate::fairness::{OUTPUT_TOKEN_COST, TenantKey};
use crate::plan::{BlockCopy, Chunk, SequenceStart, StepPlan};
use crate::scheduler::{PlannedChunk, RUN_AHEAD, Scheduler, Shard, StepInFlight};
use crate::sequence::{FirstStart, Phase, SequenceKey};

/// A plan in the making.
struct Draft {
    plan: StepPlan,
    planned: Vec<PlannedChunk>,
    budget: StepBudget,
}

impl Shard {
    /// Keeps the room of a step's chunks for a later step.
    pub(crate) fn keep_room(&mut self, mut chunks: Vec<PlannedChunk>) {
        if self.spare_chunks.len() < RUN_AHEAD {
            chunks.clear();
            self.spare_chunks.push(chunks);
        }
    }
}

impl Scheduler {
    pub(crate) fn make_plan(&mut self, now: Millis, updates: &mut Vec<Update>) -> Option<StepPlan> {
        let shard = self.shard.as_ref()?;
        if shard.in_flight.len() >= RUN_AHEAD || self.awaits_masks() {
            return None;
        }
        let budget = StepBudget { tokens: self.max_step_tokens(), chunks: shard.limits.max_step_sequences };
        let step_id = shard.last_step_id + 1;
        let plan = StepPlan { step_id, ..StepPlan::default() };
        self.pass_windows();
        let planned = self.shard.as_mut().and_then(|shard| shard.spare_chunks.pop()).unwrap_or_default();
        let mut draft = Draft { plan, planned, budget };
        self.take_place_back();
        let mut num_prefill_tokens = 0;
        if let Some(tenant) = self.urgent_tenant(step_id) {
            self.plan_decodes(now, Some(tenant), &mut draft, updates);
            num_prefill_tokens = self.plan_prefills(now, Some(tenant), &mut draft, updates);
        }
        if num_prefill_tokens == 0 {
            self.plan_decodes(now, None, &mut draft, updates);
            num_prefill_tokens = self.plan_prefills(now, None, &mut draft, updates);
        }
        self.send(draft, num_prefill_tokens)
    }

    /// Of one tenant, or of all.
    fn plan_decodes(
        &mut self,
        now: Millis,
        only: Option<TenantKey>,
        draft: &mut Draft,
        updates: &mut Vec<Update>,
    ) {
        let mut index = 0;
        while index < self.running.len() && !draft.budget.is_spent() {
            let key = self.running[index];
            let is_asked = only.is_none_or(|tenant| self.sequences[key].tenant == tenant);
            if is_asked && self.sequences[key].num_wanted(draft.plan.step_id) == 1 {
                self.plan_chunk(now, key, 1, draft, updates);
            }
            // Who was preempted for it may stand before it and be off the list by now.
            index += usize::from(self.running.get(index) == Some(&key));
        }
    }

    /// Of one tenant, or of all. Returns the tokens of prefill planned.
    fn plan_prefills(
        &mut self,
        now: Millis,
        only: Option<TenantKey>,
        draft: &mut Draft,
        updates: &mut Vec<Update>,
    ) -> u32 {
        let mut budget = draft.budget.tokens;
        if !draft.planned.is_empty() {
            budget = budget.min(self.config.max_prefill_tokens_beside_decodes.max(1));
        }
        if only.is_none() && now < self.shared_until {
            budget = budget.min(self.config.max_shared_prefill_tokens.max(1));
        }
        if draft.budget.is_spent() {
            return 0;
        }
        let step_id = draft.plan.step_id;
        self.admit(step_id, budget);
        let mut needs: Vec<PrefillNeed> = self
            .running
            .iter()
            .map(|&key| {
                let sequence = &self.sequences[key];
                PrefillNeed {
                    key,
                    priority: sequence.priority,
                    tenant: sequence.tenant,
                    served: self.fairness.served(sequence.tenant),
                    num_tokens: sequence.num_wanted(step_id),
                }
            })
            .filter(|need| need.num_tokens > 0 && only.is_none_or(|tenant| need.tenant == tenant))
            .collect();
        self.cap_scored(&mut needs, draft.budget.chunks);
        let mut num_planned = 0;
        while !needs.is_empty() {
            let shares = divide_prefill(budget - num_planned, &needs);
            let mut is_short = false;
            let mut others = Vec::new();
            for (need, share) in needs.into_iter().zip(shares) {
                if share == 0 {
                    others.push(need);
                    continue;
                }
                // It wants nothing any more if it was preempted for a sequence before it.
                let wanted = share.min(self.sequences[need.key].num_wanted(step_id));
                let mut planned = 0;
                if wanted > 0 && !draft.budget.is_spent() {
                    planned = self.plan_chunk(now, need.key, wanted, draft, updates);
                }
                num_planned += planned;
                is_short |= planned < share;
            }
            if !is_short {
                break;
            }
            // Who has no block for its share leaves it to the others: else all would wait for each other.
            needs = others;
        }
        num_planned
    }

    /// Plans up to `num_tokens` more positions of a sequence, as many as there are blocks for. Returns how many.
    fn plan_chunk(
        &mut self,
        now: Millis,
        key: SequenceKey,
        num_tokens: u32,
        draft: &mut Draft,
        updates: &mut Vec<Update>,
    ) -> u32 {
        let is_scored = self.sequences[key].is_scoring();
        let num_tokens = if is_scored { num_tokens.min(draft.budget.chunks) } else { num_tokens };
        let num_tokens = self.grow(key, num_tokens);
        if num_tokens == 0 {
            return 0;
        }
        self.begin(now, key, updates);
        let shard = self.shard.as_mut().expect("planning needs a shard");
        let sequence = &mut self.sequences[key];
        let num_known = sequence.num_tokens();
        let run = sequence.run.as_mut().expect("who is planned runs");
        if !run.is_on_shard {
            run.is_on_shard = true;
            draft.plan.starts.push(SequenceStart {
                sequence_id: run.wire_id,
                token_ids: sequence.tokens.clone(),
                num_prompt_tokens: sequence.num_prompt_tokens,
                sampling: sequence.sampling.clone(),
                root_key: shard.kv.store_counts().map(|_| sequence.salt.root_key()),
            });
        }
        if let Some(copy) = run.copy.take() {
            // The copied tokens and those of the chunk meet in one block.
            let destination = &run.table.blocks()[(run.planned / shard.limits.block_size) as usize];
            draft.plan.copies.push(BlockCopy {
                source_block_id: copy.source.0,
                destination_block_id: destination.id().0,
                num_tokens: copy.num_tokens,
            });
        }
        let end = run.planned + num_tokens;
        shard.kv.begin_fill(&run.table, run.planned, num_tokens);
        let is_known = !sequence.constrained || sequence.allowed.is_some();
        let is_late = !is_known && run.pending_samples == 1 && end == num_known + 1;
        let sample = is_late || is_known && end == num_known + run.pending_samples;
        if is_late {
            run.late_step_id = Some(draft.plan.step_id);
        }
        let num_unsent = std::mem::take(&mut run.num_unsent_tokens) as usize;
        let appended_token_ids = sequence.tokens[sequence.tokens.len() - num_unsent..].to_vec();
        let allowed_tokens = if sample { sequence.allowed.take() } else { None };
        let stores = shard.begin_stores(&mut run.table, end);
        if draft.plan.chunks.is_empty() {
            // One allocation for the usual plan, which is handed away: all that a step of decodes allocates.
            draft.plan.chunks.reserve_exact(self.running.len());
        }
        draft.plan.chunks.push(Chunk {
            sequence_id: run.wire_id,
            first_position: run.planned,
            num_tokens,
            new_block_ids: run.table.blocks()[run.num_sent_blocks..].iter().map(|hold| hold.id().0).collect(),
            sample,
            stores,
            appended_token_ids,
            allowed_tokens,
            awaits_mask: is_late,
            score: is_scored,
        });
        let scored_from = is_scored.then_some(run.planned);
        draft.planned.push(PlannedChunk { key, wire_id: run.wire_id, end, sample, scored_from });
        run.num_sent_blocks = run.table.blocks().len();
        run.planned = end;
        run.pending_samples += u32::from(sample);
        run.steps_in_flight += 1;
        run.last_step_id = draft.plan.step_id;
        draft.budget.spend(num_tokens, is_scored);
        let num_paid = end.min(sequence.num_prompt_tokens);
        if num_paid > sequence.num_paid {
            self.fairness.pay(sequence.tenant, num_paid - sequence.num_paid);
            sequence.num_paid = num_paid;
        }
        if sample {
            self.fairness.charge(sequence.tenant, OUTPUT_TOKEN_COST);
        }
        if let Some(allowed) = sequence.early.take() {
            self.follow(now, key, allowed, updates);
        }
        num_tokens
    }

    /// Reports that the first chunk of a sequence is planned, if it is the first.
    fn begin(&mut self, now: Millis, key: SequenceKey, updates: &mut Vec<Update>) {
        let sequence = &mut self.sequences[key];
        if sequence.first_start.is_some() {
            return;
        }
        let cached_tokens = sequence.run().planned;
        sequence.first_start = Some(FirstStart { at: now, cached_tokens });
        self.counters.prompt_tokens += u64::from(sequence.num_prompt_tokens);
        self.counters.prefix_hit_tokens += u64::from(cached_tokens);
        let queued_ms = now.since(sequence.submitted_at);
        updates.push(Update::Started { id: sequence.id, cached_tokens, queued_ms });
    }

    /// Gets the blocks, with their window parts, for `num_tokens` more positions, or for as many as there are; others
    /// are preempted only if there is not one. Returns how many positions have a block.
    fn grow(&mut self, key: SequenceKey, num_tokens: u32) -> u32 {
        loop {
            let shard = self.shard.as_mut().expect("planning needs a shard");
            let run = self.sequences[key].run_mut();
            let num_blocks = run.table.blocks().len() as u32;
            let missing = shard.blocks_for(run.planned + num_tokens).saturating_sub(num_blocks);
            let granted = missing.min(shard.kv.available());
            assert!(shard.kv.grow(&mut run.table, granted), "so many are available");
            let capacity = (num_blocks + granted) * shard.limits.block_size;
            let with_blocks = num_tokens.min(capacity - run.planned);
            let fitting = shard.kv.reserve_parts(&mut run.table, run.planned, with_blocks);
            if fitting > 0 || !self.make_room(key, with_blocks == 0) {
                return fitting;
            }
        }
    }

    /// Frees a block, or a window part, for a sequence that has none for its next position. False: not now. Then they
    /// come back with the steps in flight, or the sequence is itself the first that would have to go, and waits with
    /// what it has.
    fn make_room(&mut self, key: SequenceKey, is_block_missing: bool) -> bool {
        let shard = self.shard.as_mut().expect("planning needs a shard");
        let mut num_shed = 0;
        for &other in &self.running {
            num_shed += shard.kv.shed_shadows(&mut self.sequences[other].run_mut().table);
        }
        if num_shed > 0 {
            return true;
        }
        if self.num_leaving > 0 {
            return false;
        }
        match self.victim() {
            Some(victim) if victim != key => {
                self.preempt(victim);
                self.shard.as_ref().is_some_and(|shard| shard.kv.available() > 0) || self.num_leaving == 0
            }
            // Nobody else could give way: a pin does. It holds blocks, not their window parts.
            _ => is_block_missing && self.shard.as_mut().is_some_and(|shard| shard.kv.drop_pin()),
        }
    }

    /// Who is preempted first: in the lowest class, of the tenant that got most, the newest that would not end by
    /// itself with the steps in flight.
    pub(crate) fn victim(&self) -> Option<SequenceKey> {
        let mut newest_first = self.running.iter().rev().copied().filter(|&key| self.may_yield(key));
        let mut victim = newest_first.next()?;
        let lowest = self.sequences[victim].priority;
        let served = |key| self.fairness.served(self.sequences[key].tenant);
        for key in newest_first.take_while(|&key| self.sequences[key].priority == lowest) {
            if served(key) > served(victim) {
                victim = key;
            }
        }
        Some(victim)
    }

    /// False if it would end by itself with the steps in flight, or leaves already.
    pub(crate) fn may_yield(&self, key: SequenceKey) -> bool {
        let sequence = &self.sequences[key];
        sequence.run().phase == Phase::Running && !sequence.is_finishing(sequence.run())
    }

    fn send(&mut self, draft: Draft, num_prefill_tokens: u32) -> Option<StepPlan> {
        let shard = self.shard.as_mut()?;
        let mut plan = draft.plan;
        plan.ends = std::mem::take(&mut shard.ends);
        plan.restores = std::mem::take(&mut shard.restores);
        plan.discards = std::mem::take(&mut shard.discards);
        // What is written in this very step need not be emptied before.
        plan.discards.retain(|slot| {
            plan.chunks.iter().all(|chunk| chunk.stores.iter().all(|store| store.slot != *slot))
        });
        if plan.is_empty() {
            shard.keep_room(draft.planned);
            return None;
        }
        plan.window_drops = shard.kv.take_window_drops().into_iter().map(|block| block.0).collect();
        shard.last_step_id = plan.step_id;
        self.counters.steps += 1;
        self.counters.scheduled_tokens += plan.num_tokens();
        shard.in_flight.push_back(StepInFlight {
            step_id: plan.step_id,
            chunks: draft.planned,
            num_prefill_tokens,
        });
        Some(plan)
    }
}
