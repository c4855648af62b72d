//! Blocks that move between the pool and the store: their outcomes, and restores that take too long. Outcomes of loads
//! of adapters arrive with them.

use trunkline_contract::SlotId;
use trunkline_kv::RestoredBlock;

use crate::event::{EndReason, Restored};
use crate::lane::Lane;
use crate::lifecycle::Lifecycle;
use crate::neighbours;
use crate::plan::{AdapterOutcome, RestoreOutcome, SequenceError, SequenceErrorCode, Transfers};
use crate::restores::{AbandonedRestore, num_windowed};
use crate::sequence::{Phase, SequenceKey};
use crate::shared_store::StoreSource;

/// Takes the outcomes of transfers.
pub(crate) fn take_transfers(parts: &mut Lifecycle<'_>, transfers: &Transfers) {
    for outcome in &transfers.stores {
        let Some(shard) = &mut parts.lane.shard else { continue };
        let is_expected = shard
            .kv
            .store_mut()
            .is_some_and(|store| store.end_write(SlotId(outcome.slot), outcome.is_stored));
        parts.counters.unexpected_results += u64::from(!is_expected);
        parts.counters.stored_blocks += u64::from(is_expected && outcome.is_stored);
        parts.counters.store_failures += u64::from(is_expected && !outcome.is_stored);
        shard.num_store_failures = if outcome.is_stored { 0 } else { shard.num_store_failures + 1 };
    }
    for outcome in &transfers.restores {
        take_restore(parts, outcome);
    }
    for outcome in &transfers.adapters {
        take_load(parts, outcome);
    }
}

/// Lets the runs go on that wait for an adapter, or ends their sequences if it could not be loaded.
fn take_load(parts: &mut Lifecycle<'_>, outcome: &AdapterOutcome) {
    let Some(shard) = &mut parts.lane.shard else { return };
    let has_failed = !outcome.problem.is_empty();
    let Some(waiting) = shard.adapters.end_load(outcome.slot, has_failed) else {
        parts.counters.unexpected_results += 1;
        return;
    };
    for key in waiting {
        parts.sequences[key].run_mut().awaits_adapter = false;
        if has_failed && !parts.sequences[key].is_ending() {
            let code = SequenceErrorCode::AdapterFailed;
            let error = SequenceError { code, message: outcome.problem.clone() };
            parts.end(key, EndReason::Failed(error));
        }
    }
}

fn take_restore(parts: &mut Lifecycle<'_>, outcome: &RestoreOutcome) {
    let Some(shard) = &mut parts.lane.shard else { return };
    let Some(key) = shard.restores.end(outcome.restore_id) else {
        let Some(abandoned) = shard.restores.end_abandoned(outcome.restore_id) else {
            parts.counters.unexpected_results += 1;
            return;
        };
        shard.kv.end_detached_restore(&abandoned.blocks);
        end_reads(parts, abandoned.source, &abandoned.blocks, outcome.num_blocks as usize);
        parts.lane.throughput.add_restore(outcome.num_blocks, outcome.time_us);
        return;
    };
    let run = parts.sequences[key].run_mut();
    let restore = run.restore.take().expect("the sequence waits for its restore");
    assert_eq!(restore.restore_id, outcome.restore_id, "a sequence has one restore at a time");
    run.steps_in_flight -= 1;
    let num_good = (outcome.num_blocks as usize).min(restore.blocks.len());
    if restore.source.is_none() {
        shard.kv.fail_restored(&mut run.table, restore.blocks.len() - num_good);
        shard.num_store_failures = if num_good > 0 { 0 } else { shard.num_store_failures + 1 };
    }
    let num_bad = (restore.blocks.len() - num_good) as u32;
    run.planned -= num_bad * shard.limits.block_size;
    run.acknowledged = run.planned;
    let is_running = run.phase == Phase::Running;
    run.restored =
        Restored { num_tokens: num_good as u32 * shard.limits.block_size, time_us: outcome.time_us };
    end_reads(parts, restore.source, &restore.blocks, num_good);
    if restore.source.is_some() {
        parts.counters.moved_blocks += num_good as u64;
    }
    parts.lane.throughput.add_restore(num_good as u32, outcome.time_us);
    parts.counters.restored_blocks += num_good as u64;
    parts.counters.restore_failures += u64::from(num_bad > 0);
    if is_running {
        parts.index(key);
    }
    if num_bad > 0 {
        resume_without_restored(parts, key);
    }
    parts.release_if_idle(key);
}

/// Ends the reads of a restore, from the own store or from that of another lane.
fn end_reads(
    parts: &mut Lifecycle<'_>,
    source: Option<StoreSource>,
    restored: &[RestoredBlock],
    num_good: usize,
) {
    match source {
        Some(source) => neighbours::end_reads(parts.lane, &mut parts.others, source, restored, num_good),
        None => parts.lane.shard_mut().kv.end_reads(restored, num_good),
    }
}

/// Abandons restores that take too long.
pub(crate) fn abandon_overdue_restores(parts: &mut Lifecycle<'_>) {
    let Some(shard) = parts.lane.shard.as_mut().filter(|shard| shard.restores.num_awaited() > 0) else {
        return;
    };
    let oldest_in_flight = shard.steps.oldest_step_id();
    for restore_id in shard.restores.overdue(parts.now, shard.steps.last_step_id(), oldest_in_flight) {
        abandon_if_possible(parts, restore_id);
    }
}

fn abandon_if_possible(parts: &mut Lifecycle<'_>, restore_id: u64) {
    let shard = parts.lane.shard_mut();
    let Some(key) = shard.restores.key(restore_id).filter(|&key| can_do_without(parts, key)) else { return };
    abandon_restore(parts, key);
    resume_without_restored(parts, key);
    parts.release_if_idle(key);
}

/// Abandons the restore of a sequence, if it waits for one.
fn abandon_restore(parts: &mut Lifecycle<'_>, key: SequenceKey) {
    let shard = parts.lane.shard_mut();
    let run = parts.sequences[key].run_mut();
    let Some(restore) = run.restore.take() else { return };
    shard.restores.end(restore.restore_id);
    run.steps_in_flight -= 1;
    let holds = shard.kv.detach_restored(&mut run.table, &restore.blocks);
    run.planned -= restore.blocks.len() as u32 * shard.limits.block_size;
    run.acknowledged = run.planned;
    let abandoned = AbandonedRestore { blocks: restore.blocks, source: restore.source, holds };
    shard.restores.abandon(restore.restore_id, abandoned);
    parts.counters.restores_given_up += 1;
}

/// Lets the sequences of a lane go on with others while its oldest step is late, as far as another lane takes them.
///
/// Those that have steps in flight are suspects until these are answered, because one of them may be what holds the
/// steps up. A suspect stays, so a request that hangs shards visits no third one. If all lanes are late, the machine
/// is, and all stay.
pub(crate) fn escape_late(parts: &mut Lifecycle<'_>) {
    for key in parts.lane.running.keys().to_vec() {
        let sequence = &parts.sequences[key];
        let run = sequence.run();
        let is_suspect = sequence.suspected.is_some() || sequence.escaped.is_some();
        let takes = |lane: &Lane| {
            let timely = lane.shard.as_ref().filter(|shard| shard.steps.are_timely(parts.now));
            let shard = timely.filter(|_| lane.serves());
            shard.is_some_and(|shard| shard.takes(sequence))
        };
        if is_suspect && run.steps_in_flight > 0 || !parts.others.iter().any(takes) {
            continue;
        }
        if run.restore.is_none() || can_do_without(parts, key) {
            abandon_restore(parts, key);
            parts.escape(key);
        }
    }
}

/// Returns true if the pool has room for the sequence beside all blocks that abandoned restores may write. Without it
/// the sequence would only make all others wait.
fn can_do_without(parts: &Lifecycle<'_>, key: SequenceKey) -> bool {
    let shard = parts.lane.shard();
    let sequence = &parts.sequences[key];
    let Some(restore) = &sequence.run().restore else { return false };
    if let Some(windows) = shard.limits.windows {
        let num_parts = shard.restores.num_abandoned_parts() + num_windowed(&restore.blocks);
        if num_parts as u32 + windows.least_parts(shard.limits.block_size) > windows.num_parts {
            return false;
        }
    }
    if sequence.is_ending() {
        return true;
    }
    let num_abandoned = shard.restores.abandoned_blocks().count() + restore.blocks.len();
    num_abandoned as u32 + shard.blocks_for(sequence.num_tokens()) <= shard.limits.num_blocks
}

/// Goes on after blocks could not be restored. Where layers have windows, the blocks before them may lack the window
/// parts that are needed now, so the sequence is preempted and looked up anew.
fn resume_without_restored(parts: &mut Lifecycle<'_>, key: SequenceKey) {
    let has_windows = parts.lane.shard().limits.windows.is_some();
    if has_windows && parts.sequences[key].is_running() {
        parts.preempt(key);
    }
}
