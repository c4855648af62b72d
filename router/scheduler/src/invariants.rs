//! Recounts the scheduler's state, for tests and for the simulator.

use std::collections::BTreeSet;

use trunkline_contract::BlockId;

use crate::config::SchedulerConfig;
use crate::fairness::SequenceCounts;
use crate::in_flight::RUN_AHEAD;
use crate::lane::Lane;
use crate::sequence::{Phase, Run, Sequence, SequenceKey};
use crate::sequences::Sequences;
use crate::shard::Shard;
use crate::yielding::num_occupied_places;

/// Counts over the sequences of a lane.
#[derive(Default)]
struct Counts {
    running: usize,
    leaving: usize,
    restoring: usize,
    /// Window parts that running sequences need.
    needed_parts: u64,
}

/// Panics where counts, lists and the KV index disagree.
pub(crate) fn check(config: &SchedulerConfig, sequences: &Sequences, lanes: &[Lane]) {
    let counts = sequences.iter().map(|(key, sequence)| {
        let shards = lanes.iter().filter_map(|lane| lane.shard.as_ref());
        let steps = shards.flat_map(|shard| shard.steps.iter());
        let chunks = steps.flat_map(|step| &step.chunks).filter(|chunk| chunk.key == key);
        SequenceCounts {
            tenant: sequence.tenant,
            adapter: sequence.adapter,
            waits: sequence.run.is_none(),
            is_new: sequence.first_start.is_none(),
            runs: sequence.is_running(),
            num_unpaid_tokens: if sequence.is_running() { sequence.num_unpaid() } else { 0 },
            reserved: chunks.map(|chunk| chunk.cost).sum(),
        }
    });
    sequences.tenants().check(&counts.collect::<Vec<_>>());
    check_queue(sequences);
    lanes.iter().for_each(|lane| check_lane(config, sequences, lane));
    let runs =
        sequences.iter().flat_map(|(_, sequence)| sequence.run.iter().chain(sequence.escaped.as_deref()));
    let num_found: usize = lanes.iter().map(|lane| of_lane(sequences, lane).count()).sum();
    assert_eq!(runs.count(), num_found, "a run is on one lane");
}

/// The runs on this lane, with their sequences.
fn of_lane<'a>(
    sequences: &'a Sequences,
    lane: &Lane,
) -> impl Iterator<Item = (SequenceKey, &'a Sequence, &'a Run)> + use<'a> {
    let id = lane.id;
    let runs = |sequence: &'a Sequence| sequence.run.iter().chain(sequence.escaped.as_deref());
    let with_run =
        sequences.iter().flat_map(move |(key, sequence)| runs(sequence).map(move |run| (key, sequence, run)));
    with_run.filter(move |(_, _, run)| run.lane == id)
}

fn check_queue(sequences: &Sequences) {
    let (mut num_waiting, mut num_new, mut num_parked) = (0, 0, 0);
    for (key, sequence) in sequences.iter() {
        if let Some(run) = &sequence.run {
            num_parked -= run.waiters.len() as i64;
            continue;
        }
        num_waiting += 1;
        num_new += u32::from(sequence.first_start.is_none());
        num_parked += i64::from(sequence.wait.parked_on.is_some());
        check_waiting(sequences, key, sequence);
    }
    let queue = sequences.queue();
    assert_eq!(num_parked, 0, "a parked sequence has one that wakes it");
    assert_eq!(num_waiting, queue.num_waiting(), "waiting sequences");
    assert_eq!(num_new, queue.num_new(), "sequences that never started");
}

fn check_lane(config: &SchedulerConfig, sequences: &Sequences, lane: &Lane) {
    let running = &lane.running;
    if let Some(suspect) = lane.suspect {
        let is_suspect = sequences.get(suspect).is_some_and(|s| s.run.is_some() && s.suspected.is_some());
        assert!(is_suspect, "the lane's suspect has blocks and is not cleared");
    }
    let Some(shard) = &lane.shard else {
        assert!(running.len() == 0 && running.num_leaving() == 0, "nothing runs without a shard");
        assert_eq!(of_lane(sequences, lane).count(), 0, "without a shard all sequences wait");
        return;
    };
    shard.kv.check_invariants();
    assert!(shard.steps.len() <= RUN_AHEAD, "run-ahead is bounded");
    let abandoned: BTreeSet<_> = shard.restores.abandoned_blocks().map(|hold| hold.id()).collect();
    assert!(
        abandoned.iter().all(|&block| shard.kv.device().is_held(block)),
        "blocks of abandoned restores are reserved"
    );
    let adapter_runs = of_lane(sequences, lane).filter_map(|(key, sequence, run)| {
        let content_hash = sequence.request.adapter.as_ref()?.content_hash;
        Some((key, content_hash, run.adapter_slot, run.awaits_adapter))
    });
    shard.adapters.check(&adapter_runs.collect::<Vec<_>>());
    let mut counts = Counts::default();
    for (key, sequence, run) in of_lane(sequences, lane) {
        counts.leaving += usize::from(run.phase != Phase::Running);
        counts.running += usize::from(is_listed(run));
        counts.restoring += usize::from(run.restore.is_some());
        counts.needed_parts += run.table.num_needed_parts() as u64;
        if run.phase != Phase::Escaped {
            assert_eq!(
                is_listed(run),
                running.keys().contains(&key),
                "`running` lists the running sequences"
            );
            check_constraint(shard, sequence, run);
        }
        check_steps(shard, key, sequence, run);
        check_positions(shard, sequence, run, &abandoned);
    }
    if shard.limits.windows.is_some() {
        counts.needed_parts += shard.restores.num_abandoned_parts() as u64;
    }
    let num_needs = shard.kv.device().num_window_needs();
    assert_eq!(counts.needed_parts, num_needs, "running sequences and abandoned restores need window parts");
    assert_eq!(counts.restoring, shard.restores.num_awaited(), "a restore has a sequence");
    assert_eq!(counts.leaving, running.num_leaving(), "leaving sequences");
    assert_eq!(counts.running, running.len(), "running sequences");
    let is_ordered = running.keys().is_sorted_by_key(|&key| sequences[key].order());
    assert!(is_ordered, "`running` is in running order");
    let num_occupied = num_occupied_places(config, sequences, lane);
    assert!(num_occupied <= lane.max_running(config), "the places suffice");
}

/// Returns true if the lane's list has the sequence for this run.
fn is_listed(run: &Run) -> bool {
    matches!(run.phase, Phase::Running | Phase::Preempting)
}

fn check_waiting(sequences: &Sequences, key: SequenceKey, sequence: &Sequence) {
    let wait = &sequence.wait;
    assert!(
        !sequence.awaits_late_step() || sequence.escaped.is_some(),
        "the late step will be answered or lost"
    );
    assert_ne!(wait.rank.is_some(), wait.parked_on.is_some(), "a waiting sequence has a place or is parked");
    if let Some(other) = wait.parked_on {
        let other = &sequences[other];
        assert!(other.is_prefilling(), "a sequence is parked on one that computes its prefix");
        let is_known = other.run().waiters.iter().any(|waiter| waiter.key == key);
        assert!(is_known, "a sequence knows those that are parked on it");
    }
}

fn check_constraint(shard: &Shard, sequence: &Sequence, run: &Run) {
    let constraint = sequence.constraint.as_ref();
    assert!(
        constraint.is_none_or(|constraint| !constraint.has_mask() || run.pending_samples == 0),
        "a mask is known only after the samples before it"
    );
    if let Some(step_id) = run.mask_step_id {
        let is_awaiting = constraint.is_some_and(|constraint| constraint.awaits_answer());
        assert!(constraint.is_some() && run.phase != Phase::Ending, "the mask will come");
        assert!(
            shard.steps.iter().any(|step| step.step_id == step_id),
            "a step that awaits a mask is in flight"
        );
        assert_eq!(is_awaiting, run.pending_samples == 1, "the grammar was asked once the token was known");
    }
    if run.phase != Phase::Ending {
        let num_masked = run.pending_samples - u32::from(run.mask_step_id.is_some());
        let is_masked = constraint.is_some() && num_masked > 0;
        assert_eq!(run.sent_mask.is_some(), is_masked, "the mask of a sample in flight is kept");
    }
    assert!(run.num_unsent_tokens == 0 || constraint.is_some(), "only a grammar forces tokens");
}

fn check_steps(shard: &Shard, key: SequenceKey, sequence: &Sequence, run: &Run) {
    let chunks = shard.steps.iter().flat_map(|step| &step.chunks);
    let chunks = chunks.filter(|chunk| chunk.key == key && chunk.wire_id == run.wire_id);
    let (num_steps, num_samples) =
        chunks.fold((0, 0), |(steps, samples), chunk| (steps + 1, samples + u32::from(chunk.rows.sample)));
    if let Some(restore) = &run.restore {
        assert_eq!(shard.restores.key(restore.restore_id), Some(key), "a restore knows its sequence");
        assert_eq!(num_steps, 0, "a sequence computes nothing while it waits for the store");
    }
    assert!(!run.awaits_adapter || num_steps == 0 && !run.is_on_shard, "a sequence starts with its adapter");
    assert_eq!(
        run.adapter_slot > 0,
        sequence.request.adapter.is_some(),
        "a run holds the slot of its adapter"
    );
    let num_awaited = num_steps + u32::from(run.restore.is_some());
    assert_eq!(run.steps_in_flight, num_awaited, "steps in flight");
    assert!(run.phase == Phase::Running || num_awaited > 0, "a leaving sequence waits for a step");
    if is_listed(run) {
        assert_eq!(run.pending_samples, num_samples, "samples in flight");
    }
}

fn check_positions(shard: &Shard, sequence: &Sequence, run: &Run, abandoned: &BTreeSet<BlockId>) {
    assert!(run.acknowledged <= run.planned, "acknowledged positions were planned");
    assert!(run.acknowledged <= sequence.num_tokens(), "the tokens of acknowledged positions are known");
    let num_expected = sequence.num_tokens() + run.pending_samples;
    assert!(run.planned <= num_expected, "the tokens of planned positions will be known");
    let own = run.table.blocks().iter().map(|hold| hold.id());
    assert!(abandoned.is_disjoint(&own.collect()), "no sequence has blocks of an abandoned restore");
    let num_blocks = run.table.blocks().len() as u32;
    assert!(num_blocks >= shard.blocks_for(run.planned), "every planned position has a block");
    let num_indexed = run.table.num_indexed_blocks() as u32 * shard.limits.block_size;
    assert!(num_indexed <= run.acknowledged, "only acknowledged blocks are shared");
}
