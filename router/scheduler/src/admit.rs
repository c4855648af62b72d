//! Who of those that wait may run.

use trunkline_kv::{BlockTable, PrefixHit};

use crate::scheduler::{Scheduler, Shard};
use crate::sequence::{PartialCopy, Phase, Run, SequenceKey, Waiter};

/// What came of one try.
enum Admission {
    Admitted,
    /// Another sequence is computing a prefix of it.
    Parked,
    NoRoom,
}

/// A prefix that a running sequence will have computed soon.
struct SharedPrefix {
    computed_by: SequenceKey,
    num_blocks: usize,
}

impl Scheduler {
    /// Lets waiting sequences run while a step has room: `budget` tokens of prefill, none of them divided yet.
    pub(crate) fn admit(&mut self, step_id: u64, budget: u32) {
        let needs = self.running.iter().map(|&key| self.sequences[key].num_wanted(step_id));
        let (mut num_tokens, mut num_prefills) = needs
            .filter(|&need| need > 0)
            .fold((0, 0), |(tokens, prefills), need| (tokens + u64::from(need), prefills + 1));
        while let Some((rank, key)) = self.queue.first() {
            let is_full = self.running.len() >= self.max_running();
            let is_late =
                num_tokens >= budget.into() && num_prefills >= self.config.max_concurrent_prefills.max(1);
            let admission = if is_full {
                Admission::NoRoom
            } else if is_late {
                return;
            } else {
                self.try_admit(key)
            };
            match admission {
                Admission::Admitted => {
                    num_tokens += u64::from(self.sequences[key].num_unplanned());
                    num_prefills += 1;
                }
                Admission::Parked => {}
                Admission::NoRoom => {
                    let is_alone = self.running.is_empty() && self.num_leaving == 0;
                    if is_alone && self.shard.as_mut().is_some_and(|shard| shard.kv.drop_pin()) {
                        continue;
                    }
                    let Some(victim) = self.victim() else { return };
                    if self.num_leaving > 0 || self.sequences[victim].priority <= rank.priority {
                        return;
                    }
                    self.preempt(victim);
                }
            }
        }
    }

    fn try_admit(&mut self, key: SequenceKey) -> Admission {
        let reserve = self.reserved_blocks();
        let sequence = &self.sequences[key];
        let shard = self.shard.as_ref().expect("planning needs a shard");
        // Who runs alone gets all there is: else a long prompt might wait for ever for what others keep idle.
        let available = if self.running.is_empty() {
            shard.kv.available()
        } else {
            shard.kv.available_to(&sequence.salt)
        };
        if sequence.wait.needed_blocks.saturating_add(reserve) > available {
            return Admission::NoRoom;
        }
        let mut hit = shard.kv.lookup(&sequence.salt, sequence.shareable());
        if let Some(shared) = self.shared_prefix(key, hit.num_blocks()) {
            self.park(key, &shared);
            return Admission::Parked;
        }
        let needed = needed_blocks(shard, &hit, sequence.num_tokens());
        if needed.saturating_add(reserve) > available {
            self.sequences[key].wait.needed_blocks = needed;
            return Admission::NoRoom;
        }
        if self.lacks_parts(&hit, sequence.num_tokens()) {
            return Admission::NoRoom;
        }
        hit = self.worth_restoring(hit);
        let kv = &self.shard.as_ref().expect("planning needs a shard").kv;
        // The block that is copied from stays held for a step: one more than the sequence itself needs.
        if let Some((source, _)) = hit.partial()
            && !kv.is_held(source)
            && needed.saturating_add(reserve) >= available
        {
            hit = hit.without_partial();
        }
        self.start_run(key, &hit);
        Admission::Admitted
    }

    /// Blocks that those who run will need soon: for the tokens known, and one for each that decodes.
    fn reserved_blocks(&self) -> u32 {
        let shard = self.shard.as_ref().expect("planning needs a shard");
        let missing = self.running.iter().map(|&key| {
            let sequence = &self.sequences[key];
            let run = sequence.run();
            if run.phase != Phase::Running || sequence.is_finishing(run) {
                return 0;
            }
            let num_blocks = run.table.blocks().len() as u32;
            let soon = shard.blocks_for(sequence.num_tokens()) + 1;
            let at_most = shard.blocks_for(sequence.num_prompt_tokens + sequence.max_new_tokens - 1);
            soon.min(at_most).saturating_sub(num_blocks)
        });
        missing.sum()
    }

    /// The running sequence that is computing most of a prefix which `key` shares and the index does not have yet. Not
    /// one of a lower class: it may be kept waiting itself.
    fn shared_prefix(&self, key: SequenceKey, num_hit_blocks: usize) -> Option<SharedPrefix> {
        let waiting = &self.sequences[key];
        let block_size = self.shard.as_ref()?.limits.block_size as usize;
        let shareable = waiting.shareable();
        let usable = &shareable[..shareable.len() - 1];
        let mut longest: Option<SharedPrefix> = None;
        for &other_key in &self.running {
            let other = &self.sequences[other_key];
            if !other.is_prefilling() || other.priority > waiting.priority || other.salt != waiting.salt {
                continue;
            }
            let run = other.run();
            let known = &other.tokens[..run.prefill_end as usize];
            let num_common = known.iter().zip(usable).take_while(|(a, b)| a == b).count();
            let num_blocks = num_common / block_size;
            let least = longest.as_ref().map_or(num_hit_blocks, |shared| shared.num_blocks);
            if num_blocks > least && num_blocks > run.table.num_indexed_blocks() {
                longest = Some(SharedPrefix { computed_by: other_key, num_blocks });
            }
        }
        longest
    }

    fn park(&mut self, key: SequenceKey, shared: &SharedPrefix) {
        let wait = &mut self.sequences[key].wait;
        let rank = wait.rank.take().expect("who is tried has a place");
        wait.parked_on = Some(shared.computed_by);
        self.queue.park(rank);
        let waiter = Waiter { key, num_blocks: shared.num_blocks };
        self.sequences[shared.computed_by].run_mut().waiters.push(waiter);
        self.counters.prefix_waits += 1;
    }

    fn start_run(&mut self, key: SequenceKey, hit: &PrefixHit) {
        self.leave_queue(key);
        self.num_told_to_retry = self.num_told_to_retry.saturating_sub(1);
        let shard = self.shard.as_mut().expect("planning needs a shard");
        let sequence = &mut self.sequences[key];
        let retention = &sequence.retention;
        let mut table: BlockTable = shard.kv.open_worth(&sequence.salt, hit, retention.worth);
        shard.kv.touch(hit);
        shard.kv.set_group(&mut table, retention.group.clone());
        let num_new = hit.stored().len() as u32 + u32::from(hit.partial().is_some());
        assert!(shard.kv.grow(&mut table, num_new), "room was counted");
        let restore = shard.begin_restore(key, &mut table, hit);
        sequence.run = Some(Run {
            phase: Phase::Running,
            wire_id: self.next_wire_id,
            is_on_shard: false,
            table,
            num_sent_blocks: 0,
            planned: hit.num_tokens() + hit.num_stored_tokens(),
            acknowledged: hit.num_block_tokens(),
            pending_samples: 0,
            num_unsent_tokens: 0,
            steps_in_flight: u32::from(restore.is_some()),
            copy: hit.partial().map(|(source, num_tokens)| PartialCopy { source, num_tokens }),
            prefill_end: sequence.num_tokens(),
            last_step_id: 0,
            has_failed: false,
            waiters: Vec::new(),
            restore,
        });
        self.next_wire_id += 1;
        let order = sequence.order();
        let place = self.running.partition_point(|&other| self.sequences[other].order() < order);
        self.running.insert(place, key);
    }
}

/// Blocks that must be available for a sequence to compute all its known tokens after a hit. A hit block that nobody
/// holds is one of those available, and is used.
fn needed_blocks(shard: &Shard, hit: &PrefixHit, num_tokens: u32) -> u32 {
    let num_held = hit.block_ids().iter().filter(|&&block| shard.kv.is_held(block)).count();
    shard.blocks_for(num_tokens) - num_held as u32
}
