//! Admission: which waiting sequences may run.

use trunkline_kv::{BlockTable, PrefixHit};

use crate::choice::Choice;
use crate::event::Restored;
use crate::fairness::TenantKey;
use crate::lane::Lane;
use crate::lifecycle::Lifecycle;
use crate::neighbours;
use crate::roles::Roles;
use crate::sequence::{PartialCopy, Phase, Run, SequenceKey};
use crate::sequences::Sequences;
use crate::shared_store::StoreSource;
use crate::windows::lacks_parts;
use crate::yielding::{Lack, Yielding};

/// The most sequences that one plan parks. Each is compared with the prompts that are being computed, so this bounds
/// the time of a plan. The next plan goes on.
const MAX_PARKED: u32 = 32;

/// The outcome of one try.
enum Admission {
    Admitted,
    /// A running sequence is computing a prefix of it.
    Parked,
    NoRoom,
}

/// A prefix that a running sequence will have computed soon.
struct SharedPrefix {
    computed_by: SequenceKey,
    num_blocks: usize,
}

/// Lets waiting sequences run while the step has room for their prefill. `budget` is the step's tokens of prefill, none
/// of which are planned yet.
pub(crate) fn admit(parts: &mut Lifecycle<'_>, choice: &mut Choice, step_id: u64, budget: u32) {
    let needs = parts.lane.running.keys().iter().map(|&key| parts.sequences[key].num_wanted(step_id));
    let (mut num_tokens, mut num_prefills) = needs
        .filter(|&need| need > 0)
        .fold((0, 0), |(tokens, prefills), need| (tokens + u64::from(need), prefills + 1));
    parts.promote();
    let mut num_parked = 0;
    while num_parked < MAX_PARKED
        && let Some(key) = choice.next_waiting(parts)
    {
        if parts.sequences[key].suspected.is_some() {
            return; // It lacks room, and no other sequence may take it.
        }
        let yielding = Yielding::of(parts);
        let is_full = yielding.num_occupied_places() >= yielding.max_running();
        let has_work = num_tokens >= budget.into()
            && num_prefills >= parts.config.max_concurrent_prefills.max(1)
            && has_prefill(parts, step_id, parts.sequences[key].tenant);
        let admission = if is_full {
            Admission::NoRoom
        } else if has_work {
            return;
        } else {
            try_admit(parts, key)
        };
        match admission {
            Admission::Admitted => {
                // One that waits for its adapter takes nothing of the step.
                if !parts.sequences[key].run().awaits_adapter {
                    num_tokens += u64::from(parts.sequences[key].num_unplanned());
                    num_prefills += 1;
                }
            }
            Admission::Parked => num_parked += 1,
            Admission::NoRoom => {
                let lack = if is_full { Lack::Place } else { Lack::Blocks };
                if !make_room(parts, key, lack) {
                    return;
                }
            }
        }
    }
}

/// Lets the next suspect run by itself, if one waits and there is room for it.
pub(crate) fn admit_suspect(parts: &mut Lifecycle<'_>) {
    while parts.lane.suspect.is_none()
        && let Some(key) = Choice::next_suspect(parts)
    {
        let yielding = Yielding::of(parts);
        let is_full = yielding.num_occupied_places() >= yielding.max_running();
        match if is_full { Admission::NoRoom } else { try_admit(parts, key) } {
            Admission::Admitted => parts.lane.suspect = Some(key),
            Admission::Parked => {}
            Admission::NoRoom => {
                let lack = if is_full { Lack::Place } else { Lack::Blocks };
                if !make_room(parts, key, lack) {
                    return;
                }
            }
        }
    }
}

/// Returns true if a prompt of this tenant is partly computed. Prompts of other tenants do not delay its admissions.
fn has_prefill(parts: &Lifecycle<'_>, step_id: u64, tenant: TenantKey) -> bool {
    let running = parts.lane.running.keys().iter().map(|&key| &parts.sequences[key]);
    let mut own = running.filter(|sequence| sequence.tenant == tenant);
    own.any(|sequence| sequence.num_wanted(step_id) > 0)
}

/// Drops a pin or preempts a sequence for a waiting one. Returns false if neither is possible now.
fn make_room(parts: &mut Lifecycle<'_>, key: SequenceKey, lack: Lack) -> bool {
    let is_idle = parts.lane.running.len() == 0 && parts.lane.running.num_leaving() == 0;
    if is_idle && parts.lane.shard_mut().kv.drop_pin() {
        return true;
    }
    let victim = Yielding::of(parts).victim_for(key, lack);
    let Some(victim) = victim.filter(|_| parts.lane.running.num_leaving() == 0) else { return false };
    if parts.sequences[victim].request.priority == parts.sequences[key].request.priority {
        parts.preempt_for_tenant(victim);
    } else {
        parts.preempt(victim);
    }
    true
}

fn try_admit(parts: &mut Lifecycle<'_>, key: SequenceKey) -> Admission {
    let reserve = reserved_blocks(parts.sequences, parts.lane);
    let sequence = &parts.sequences[key];
    let shard = parts.lane.shard();
    // A sequence that would run with no other gets all blocks. Otherwise a long prompt might wait forever for blocks
    // that are kept idle for other tenants.
    let available = if parts.lane.running.len() == 0 {
        shard.kv.device().available()
    } else {
        shard.kv.device().available_to(&sequence.request.salt)
    };
    if sequence.wait.needed_blocks_on(parts.lane.id).saturating_add(reserve) > available {
        return Admission::NoRoom;
    }
    let (mut hit, source) = neighbours::lookup(parts.lane, &parts.others, sequence);
    if let Some(shared) = shared_prefix(parts.sequences, parts.lane, key, hit.num_blocks()) {
        parts.sequences.park(key, shared.computed_by, shared.num_blocks);
        parts.counters.prefix_waits += 1;
        return Admission::Parked;
    }
    let needed = shard.needed_blocks(&hit, sequence.num_tokens());
    if needed.saturating_add(reserve) > available {
        parts.sequences[key].wait.needed_blocks = Some((parts.lane.id, needed));
        return Admission::NoRoom;
    }
    if lacks_parts(parts.sequences, parts.lane, &hit, sequence.num_tokens()) {
        return Admission::NoRoom;
    }
    hit = worth_restoring(parts, hit);
    // The block that is copied from stays held for a step, which is one block more than the sequence itself needs.
    if let Some((source, _)) = hit.partial()
        && !parts.lane.shard().kv.device().is_held(source)
        && needed.saturating_add(reserve) >= available
    {
        hit = hit.without_partial();
    }
    start_run(parts, key, &hit, source);
    Admission::Admitted
}

/// The blocks that running sequences will need soon: those for the known tokens, and one more for each sequence.
fn reserved_blocks(sequences: &Sequences, lane: &Lane) -> u32 {
    let shard = lane.shard();
    let missing = lane.running.keys().iter().map(|&key| {
        let sequence = &sequences[key];
        let run = sequence.run();
        if run.phase != Phase::Running || sequence.is_finishing(run) {
            return 0;
        }
        let num_blocks = run.table.blocks().len() as u32;
        let soon = shard.blocks_for(sequence.num_tokens()) + 1;
        let at_most = shard.blocks_for(sequence.num_prompt_tokens + sequence.request.max_new_tokens - 1);
        soon.min(at_most).saturating_sub(num_blocks)
    });
    missing.sum()
}

/// The running sequence that computes the longest prefix which `key` shares and the KV index does not have yet. It is
/// not of a lower class, because such a sequence may have to wait itself.
fn shared_prefix(
    sequences: &Sequences,
    lane: &Lane,
    key: SequenceKey,
    num_hit_blocks: usize,
) -> Option<SharedPrefix> {
    let waiting = &sequences[key];
    let block_size = lane.shard().limits.block_size as usize;
    let shareable = waiting.shareable();
    let usable = &shareable[..shareable.len() - 1];
    let mut longest: Option<SharedPrefix> = None;
    for &other_key in lane.running.keys() {
        let other = &sequences[other_key];
        if !other.is_prefilling()
            || other.request.priority > waiting.request.priority
            || other.request.salt != waiting.request.salt
        {
            continue;
        }
        let run = other.run();
        let known = &other.tokens[..run.prefill_end as usize];
        let least = longest.as_ref().map_or(num_hit_blocks, |shared| shared.num_blocks);
        let least = least.max(run.table.num_indexed_blocks());
        if let Some(num_blocks) = common_blocks_beyond(known, usable, block_size, least) {
            longest = Some(SharedPrefix { computed_by: other_key, num_blocks });
        }
    }
    longest
}

/// The number of leading blocks that are equal, if it is more than `least`. Most lists differ in the first block after
/// these, so it is compared before the blocks in front of it.
fn common_blocks_beyond(one: &[u32], other: &[u32], block_size: usize, least: usize) -> Option<usize> {
    let is_equal = |begin: usize, end: usize| {
        let both = one.get(begin..end).zip(other.get(begin..end));
        both.is_some_and(|(one, other)| one == other)
    };
    let end = (least + 1) * block_size;
    if !is_equal(least * block_size, end) || !is_equal(0, least * block_size) {
        return None;
    }
    let num_more = (least + 1..).take_while(|block| is_equal(block * block_size, (block + 1) * block_size));
    Some(least + 1 + num_more.count())
}

/// The hit with its stored blocks, or without them where computing is predicted to be quicker than reading.
fn worth_restoring(parts: &mut Lifecycle<'_>, hit: PrefixHit) -> PrefixHit {
    if hit.stored().is_empty() {
        return hit;
    }
    let num_computed = hit.num_stored_tokens() - hit.partial().map_or(0, |(_, num_tokens)| num_tokens);
    let is_store_slow = parts.lane.shard().restores.has_abandoned();
    if !is_store_slow && parts.lane.throughput.is_restore_quicker(hit.stored().len() as u32, num_computed) {
        return hit.without_partial();
    }
    parts.counters.restores_declined += 1;
    hit.without_stored()
}

/// Moves a sequence from the queue to the lane. There is room for it.
fn start_run(parts: &mut Lifecycle<'_>, key: SequenceKey, hit: &PrefixHit, source: Option<StoreSource>) {
    let hand_over_at = Roles::of(parts).hand_over_at(parts.lane, &parts.sequences[key]);
    parts.sequences.leave_queue(key);
    let sequence = &mut parts.sequences[key];
    (sequence.wait.passed_at, sequence.wait.slot_since, sequence.moves_to) = (None, None, None);
    let wire_id = parts.lane.new_wire_id();
    let shard = parts.lane.shard_mut();
    let sequence = &mut parts.sequences[key];
    let retention = &sequence.request.retention;
    let mut table: BlockTable =
        shard.kv.open_with_priority(&sequence.request.salt, hit, retention.cache_priority);
    shard.kv.device_mut().touch(hit);
    shard.kv.device_mut().set_group(&mut table, retention.group.clone());
    let num_new = hit.stored().len() as u32 + u32::from(hit.partial().is_some());
    assert!(shard.kv.device_mut().grow(&mut table, num_new), "room was counted");
    let other = source.and_then(|source| neighbours::open(&mut parts.others, source));
    let restore = shard.begin_restore(key, &mut table, hit, other);
    let adapter = sequence.request.adapter.as_ref();
    let held =
        adapter.map(|adapter| shard.adapters.hold(key, adapter, &mut shard.outbox)).unwrap_or_default();
    let num_hit_tokens = hit.num_tokens() + hit.num_stored_tokens();
    sequence.run = Some(Run {
        lane: parts.lane.id,
        phase: Phase::Running,
        wire_id,
        is_on_shard: false,
        table,
        num_sent_blocks: 0,
        planned: num_hit_tokens,
        acknowledged: hit.num_block_tokens(),
        pending_samples: 0,
        drafts: Vec::new(),
        num_own_drafts: 0,
        sent_mask: None,
        mask_step_id: None,
        num_unsent_tokens: 0,
        steps_in_flight: u32::from(restore.is_some()),
        copy: hit.partial().map(|(source, num_tokens)| PartialCopy { source, num_tokens }),
        prefill_end: sequence.num_tokens(),
        hand_over_at,
        last_step_id: 0,
        gave_way: false,
        has_failed: false,
        waiters: Vec::new(),
        restore,
        restored: Restored::default(),
        adapter_slot: held.slot,
        awaits_adapter: held.is_loading,
    });
    sequence.num_paid = sequence.num_paid.max(num_hit_tokens).min(sequence.num_prompt_tokens);
    parts.sequences.begin_running(key);
    parts.lane.running.insert(key, parts.sequences);
}
