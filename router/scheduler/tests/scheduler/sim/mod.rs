//! Runs a scheduler against fake clients and fake shards on a fake clock, all from one seed. It checks that every
//! request ends once with the text that it would have without other requests, that all blocks return, and that budgets
//! hold.

#[allow(dead_code)]
pub mod driver;
pub mod model;
pub mod rng;
pub mod scenario;
pub mod shard;
pub mod store;
#[allow(dead_code)]
pub mod tenants;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use trunkline_scheduler::{EndReason, LaneId, LaneStats, Millis, RejectReason, SequenceId, Stats};

use scenario::Scenario;
use world::World;

/// A disturbance of the run at its n-th event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    Abort(SequenceId),
    Finish(SequenceId),
    LoseShard(LaneId),
}

/// Options of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A disturbance just before the n-th event.
    pub blow: Option<(usize, Blow)>,
    /// Prints every event, update and plan.
    pub is_verbose: bool,
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// A hash of every plan, update and event in order.
    pub trace_hash: u64,
    pub num_events: usize,
    /// Shards that were lost, for whatever reason.
    pub num_losses: u64,
    /// Shards that were stopped because their lanes were drained.
    pub num_stops: u64,
    /// Reads that met other blocks, because the store was opened anew meanwhile.
    pub num_outdated_reads: u64,
    /// The lanes whose shards a poison crashed.
    pub crashed_lanes: BTreeSet<LaneId>,
    /// The longest time that a connected lane had nothing to do while a sequence waited.
    pub longest_idle_ms: u64,
    /// The longest time between two tokens of a sequence.
    pub longest_pause_ms: u64,
    pub lane_stats: Vec<LaneStats>,
    pub ended_at: Millis,
    pub stats: Stats,
    pub ends: BTreeMap<SequenceId, EndReason>,
    pub outputs: BTreeMap<SequenceId, Vec<u32>>,
    /// When each request had its final update.
    pub ended_ats: BTreeMap<SequenceId, Millis>,
    pub rejections: BTreeMap<SequenceId, RejectReason>,
    pub cached_tokens: BTreeMap<SequenceId, u32>,
    pub started_at: BTreeMap<SequenceId, Millis>,
    pub first_token_at: BTreeMap<SequenceId, Millis>,
}

/// Runs a scenario to its end. Panics if anything is wrong.
pub fn run(scenario: &Scenario, options: Options) -> Report {
    World::new(scenario, options).run()
}
