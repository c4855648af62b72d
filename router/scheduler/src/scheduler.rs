//! The scheduler.

use crate::config::SchedulerConfig;
use crate::event::{Event, Millis, Update};
use crate::plan::StepPlan;
use crate::stats::Stats;

/// Queue, token budget and KV index of one shard. One task owns it; it never waits, reads no clock and does no I/O.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
}

impl Scheduler {
    /// A scheduler without a shard: requests wait until `Event::ShardReady`.
    pub fn new(config: SchedulerConfig) -> Self {
        Self { config }
    }

    /// Takes one event at time `now` and appends the answers to `updates`.
    pub fn handle(&mut self, _now: Millis, _event: Event, _updates: &mut Vec<Update>) {
        let _ = &self.config;
    }

    /// The next plan, or none when run-ahead is full or there is nothing to do. Call until it says none.
    pub fn plan(&mut self, _now: Millis, _updates: &mut Vec<Update>) -> Option<StepPlan> {
        None
    }

    /// The earliest deadline: call `plan` then, even if no event came.
    pub fn next_wakeup(&self) -> Option<Millis> {
        None
    }

    /// Gauges and counters.
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
}
