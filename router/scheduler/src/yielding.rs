//! The rules by which sequences give way, so that a tenant is served at once while it has less than its fair part.
//!
//! Any tenant may use free places and blocks. They are taken back when a tenant asks that has less than its part by
//! weight. They are taken from a tenant that has more than its part, and that has been served more than the asking one
//! will be with all sequences admitted for it. The preempted sequence therefore stands behind it in the queue, and no
//! two sequences preempt each other in turn.

use crate::config::SchedulerConfig;
use crate::event::Priority;
use crate::fairness::TenantKey;
use crate::lane::{Lane, OtherLanes};
use crate::lifecycle::Lifecycle;
use crate::sequence::{Phase, SequenceKey};
use crate::sequences::Sequences;

/// The resource that a waiting sequence lacks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lack {
    Place,
    Blocks,
}

/// Decides which sequences of a lane give way. It changes nothing.
#[derive(Clone, Copy)]
pub(crate) struct Yielding<'a> {
    config: &'a SchedulerConfig,
    sequences: &'a Sequences,
    lane: &'a Lane,
    others: &'a OtherLanes<'a>,
}

impl<'a> Yielding<'a> {
    pub(crate) fn of(parts: &'a Lifecycle<'_>) -> Self {
        let Lifecycle { config, sequences, lane, others, .. } = parts;
        Self { config, sequences, lane, others }
    }

    fn lanes(self) -> impl Iterator<Item = &'a Lane> {
        std::iter::once(self.lane).chain(self.others.iter())
    }

    /// The sequence that is preempted first when blocks run out. It is in the lowest class; in it, it belongs to the
    /// tenant that has been served most, and is the newest that the steps in flight will not end.
    pub(crate) fn victim(self) -> Option<SequenceKey> {
        let mut newest_first =
            self.lane.running.keys().iter().rev().copied().filter(|&key| self.may_yield(key));
        let mut victim = newest_first.next()?;
        let lowest = self.sequences[victim].request.priority;
        let served = |key| self.sequences.tenants().served(self.sequences[key].tenant);
        for key in newest_first.take_while(|&key| self.sequences[key].request.priority == lowest) {
            if served(key) > served(victim) {
                victim = key;
            }
        }
        Some(victim)
    }

    /// The sequence to be preempted so that a waiting one can run: the first victim if it is in a lower class.
    /// Otherwise it is of the same class: the newest sequence of the tenant that has been served most, among those with
    /// more than their part of the missing resource. None if there is no such sequence, or if the waiting sequence's
    /// own tenant would get more than its part.
    pub(crate) fn victim_for(self, key: SequenceKey, lack: Lack) -> Option<SequenceKey> {
        let victim = self.victim()?;
        let priority = self.sequences[key].request.priority;
        if self.sequences[victim].request.priority > priority {
            return Some(victim);
        }
        let (tenants, tenant) = (self.sequences.tenants(), self.sequences[key].tenant);
        let is_within = match lack {
            Lack::Place => tenants.num_running(tenant) < self.places_of(tenant),
            Lack::Blocks => {
                let wanted = self.wanted_blocks(key).saturating_add(self.held_blocks(tenant));
                wanted <= self.blocks_of(tenant)
            }
        };
        if !is_within {
            return None;
        }
        let rank = tenants.rank(tenant);
        let mut most: Option<(u64, SequenceKey)> = None;
        for &other in self.lane.running.keys().iter().rev() {
            let sequence = &self.sequences[other];
            let served = tenants.served(sequence.tenant);
            let is_more = served > most.map_or(rank, |(most, _)| most);
            if is_more
                && sequence.request.priority == priority
                && sequence.tenant != tenant
                && self.may_yield(other)
                && self.has_more_than_its_part(sequence.tenant, lack)
            {
                most = Some((served, other));
            }
        }
        most.map(|(_, other)| other)
    }

    /// The sequence that gives its place to another tenant's before the decodes of a step are planned, so that the
    /// place is free in this very step. `first_waiting` is the next sequence in the queue.
    pub(crate) fn victim_for_place(self, first_waiting: SequenceKey) -> Option<SequenceKey> {
        let priority = self.sequences[first_waiting].request.priority;
        self.victim_for(first_waiting, Lack::Place)
            .filter(|&victim| self.sequences[victim].request.priority == priority)
    }

    /// The tenant whose prompts are computed before anything of other tenants: it has been served less than every other
    /// tenant that runs in the highest class. None if no tenant stands out.
    pub(crate) fn urgent_tenant(self, step_id: u64, first_waiting: Option<SequenceKey>) -> Option<TenantKey> {
        let waits = first_waiting.filter(|_| self.num_occupied_places() < self.max_running());
        let running = self.lane.running.keys();
        let prefills = running.iter().copied().filter(|&key| {
            self.sequences[key].is_prefilling() && self.sequences[key].num_wanted(step_id) > 0
        });
        let place = |key: SequenceKey| -> (Priority, u64, TenantKey) {
            let sequence = &self.sequences[key];
            (sequence.request.priority, self.sequences.tenants().served(sequence.tenant), sequence.tenant)
        };
        let urgent = prefills.chain(waits).map(place).min()?;
        let mut others = running.iter().map(|&key| place(key)).filter(|other| other.2 != urgent.2);
        let mut has_others = false;
        let is_least = others.all(|(priority, served, _)| {
            has_others = true;
            (urgent.0, urgent.1) < (priority, served)
        });
        (is_least && has_others).then_some(urgent.2)
    }

    pub(crate) fn num_occupied_places(self) -> usize {
        num_occupied_places(self.config, self.sequences, self.lane)
    }

    pub(crate) fn max_running(self) -> usize {
        self.lane.max_running(self.config)
    }

    /// False if the steps in flight will end the sequence, or it leaves already.
    fn may_yield(self, key: SequenceKey) -> bool {
        let sequence = &self.sequences[key];
        sequence.run().phase == Phase::Running && !sequence.is_finishing(sequence.run())
    }

    fn has_more_than_its_part(self, tenant: TenantKey, lack: Lack) -> bool {
        match lack {
            Lack::Place => self.sequences.tenants().num_running(tenant) > self.places_of(tenant),
            Lack::Blocks => self.held_blocks(tenant) > self.blocks_of(tenant),
        }
    }

    /// A tenant's part of the places of all lanes.
    fn places_of(self, tenant: TenantKey) -> u32 {
        let num_places: usize = self.lanes().map(|lane| lane.max_running(self.config)).sum();
        self.sequences.tenants().fair_part(tenant, u32::try_from(num_places).unwrap_or(u32::MAX))
    }

    /// A tenant's part of the blocks of all lanes.
    fn blocks_of(self, tenant: TenantKey) -> u32 {
        let shards = self.lanes().filter_map(|lane| lane.shard.as_ref());
        let num_blocks = shards.fold(0, |sum: u32, shard| sum.saturating_add(shard.limits.num_blocks));
        self.sequences.tenants().fair_part(tenant, num_blocks)
    }

    /// The blocks that a tenant's sequences hold on all lanes.
    fn held_blocks(self, tenant: TenantKey) -> u32 {
        let name = self.sequences.tenants().name(tenant);
        let usages = self.lanes().filter_map(Lane::kv).flat_map(|kv| kv.device().usages());
        let usages = usages.filter(|usage| usage.tenant.as_deref() == name);
        usages.map(|usage| usage.num_blocks.saturating_sub(usage.num_cached + usage.num_pinned)).sum()
    }

    fn wanted_blocks(self, key: SequenceKey) -> u32 {
        let sequence = &self.sequences[key];
        match (sequence.wait.needed_blocks_on(self.lane.id), &self.lane.shard) {
            (0, Some(shard)) => shard.blocks_for(sequence.num_tokens()),
            (known, _) => known,
        }
    }
}

/// The number of a lane's places that are taken. A sequence that gave way for another tenant gets no more chunks, so
/// its place is free.
pub(crate) fn num_occupied_places(config: &SchedulerConfig, sequences: &Sequences, lane: &Lane) -> usize {
    let running = lane.running.keys();
    if running.len() < lane.max_running(config) {
        return running.len();
    }
    let gave_way = |key: &&SequenceKey| {
        let run = sequences[**key].run();
        run.phase == Phase::Preempting && run.gave_way
    };
    running.len() - running.iter().filter(gave_way).count()
}
