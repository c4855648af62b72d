//! Who gives way to whom, so that a tenant is served at once while it has less than its part.
//!
//! Places and blocks are lent to whoever wants them; they are taken back when one asks that has less than its part by
//! weight, from those that have more than theirs and got more than it will have with what was admitted for it. So who
//! gave way stands behind it in the queue, and nothing goes in circles.

use crate::event::Priority;
use crate::fairness::TenantKey;
use crate::scheduler::Scheduler;
use crate::sequence::{Phase, SequenceKey};

/// What a waiting sequence lacks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lack {
    Place,
    Blocks,
}

impl Scheduler {
    /// Who is to be preempted so that a waiting sequence can run: somebody of a lower class, or of its own class the
    /// newest sequence of the tenant that got most, of those beyond their part of what is lacking. None if nobody is,
    /// or if its own tenant would get beyond its part.
    pub(crate) fn victim_for(&self, key: SequenceKey, lack: Lack) -> Option<SequenceKey> {
        let victim = self.victim()?;
        let priority = self.sequences[key].priority;
        if self.sequences[victim].priority > priority {
            return Some(victim);
        }
        let tenant = self.sequences[key].tenant;
        let is_within = match lack {
            Lack::Place => self.fairness.num_running(tenant) < self.places_of(tenant),
            Lack::Blocks => {
                let wanted = self.wanted_blocks(key).saturating_add(self.held_blocks(tenant));
                wanted <= self.blocks_of(tenant)
            }
        };
        if !is_within {
            return None;
        }
        let rank = self.fairness.rank(tenant);
        let mut most: Option<(u64, SequenceKey)> = None;
        for &other in self.running.iter().rev() {
            let sequence = &self.sequences[other];
            let served = self.fairness.served(sequence.tenant);
            let is_more = served > most.map_or(rank, |(most, _)| most);
            if is_more
                && sequence.priority == priority
                && sequence.tenant != tenant
                && self.may_yield(other)
                && self.is_beyond(sequence.tenant, lack)
            {
                most = Some((served, other));
            }
        }
        most.map(|(_, other)| other)
    }

    fn is_beyond(&self, tenant: TenantKey, lack: Lack) -> bool {
        match lack {
            Lack::Place => self.fairness.num_running(tenant) > self.places_of(tenant),
            Lack::Blocks => self.held_blocks(tenant) > self.blocks_of(tenant),
        }
    }

    fn places_of(&self, tenant: TenantKey) -> u32 {
        self.fairness.fair_part(tenant, u32::try_from(self.max_running()).unwrap_or(u32::MAX))
    }

    fn blocks_of(&self, tenant: TenantKey) -> u32 {
        self.shard.as_ref().map_or(0, |shard| self.fairness.fair_part(tenant, shard.limits.num_blocks))
    }

    /// Blocks that its sequences hold.
    fn held_blocks(&self, tenant: TenantKey) -> u32 {
        let name = self.fairness.name(tenant);
        let usage = self.tenants().find(|usage| usage.tenant.as_deref() == name);
        usage.map_or(0, |usage| usage.num_blocks.saturating_sub(usage.num_cached + usage.num_pinned))
    }

    fn wanted_blocks(&self, key: SequenceKey) -> u32 {
        let sequence = &self.sequences[key];
        match (sequence.wait.needed_blocks, &self.shard) {
            (0, Some(shard)) => shard.blocks_for(sequence.num_tokens()),
            (known, _) => known,
        }
    }

    /// If all places are taken and the next in the queue belongs to a tenant with less than its part of them, takes one
    /// back before the step's decodes are planned: so it is free in this very step.
    pub(crate) fn take_place_back(&mut self) {
        if !self.fairness.is_shared() || self.num_lent_places() < self.max_running() {
            return;
        }
        let Some(key) = self.queue.first(&mut self.fairness) else { return };
        let priority = self.sequences[key].priority;
        if let Some(victim) = self.victim_for(key, Lack::Place)
            && self.sequences[victim].priority == priority
        {
            self.preempt_for_tenant(victim);
        }
    }

    pub(crate) fn preempt_for_tenant(&mut self, victim: SequenceKey) {
        self.sequences[victim].run_mut().gave_way = true;
        self.counters.fair_preemptions += 1;
        self.preempt(victim);
    }

    /// Places that are taken. Who gave way for another tenant gets no chunk more, and needs none.
    pub(crate) fn num_lent_places(&self) -> usize {
        let num_free = if self.running.len() < self.max_running() {
            0
        } else {
            let gave_way = |key: &&SequenceKey| {
                let run = self.sequences[**key].run();
                run.phase == Phase::Preempting && run.gave_way
            };
            self.running.iter().filter(gave_way).count()
        };
        self.running.len() - num_free
    }

    /// The tenant whose prompts are computed before anything of others is: in the highest class, one that got less
    /// than every other which runs there, as far as its credit goes.
    pub(crate) fn urgent_tenant(&mut self, step_id: u64) -> Option<TenantKey> {
        if !self.fairness.is_shared() {
            return None;
        }
        let first = self.queue.first(&mut self.fairness);
        let waits = first.filter(|_| self.num_lent_places() < self.max_running());
        let prefills = self.running.iter().copied().filter(|&key| {
            self.sequences[key].is_prefilling() && self.sequences[key].num_wanted(step_id) > 0
        });
        let place = |key: SequenceKey| -> (Priority, u64, TenantKey) {
            let sequence = &self.sequences[key];
            (sequence.priority, self.fairness.served(sequence.tenant), sequence.tenant)
        };
        let urgent = prefills.chain(waits).map(place).min()?;
        let mut others = self.running.iter().map(|&key| place(key)).filter(|other| other.2 != urgent.2);
        let mut has_others = false;
        let is_least = others.all(|(priority, served, _)| {
            has_others = true;
            (urgent.0, urgent.1) < (priority, served)
        });
        (is_least && has_others).then_some(urgent.2)
    }
}
