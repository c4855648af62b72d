//! The spans of steps, for an exporter.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use trunkline_scheduler::{LaneId, Scheduler, SequenceId, StepResult};

use super::handle::Client;
use trunkline_base::trace::{StepRecord, TelemetrySlot};

/// The time between two steps that get a span. Spans of all steps would be most of what a collector gets.
const INTERVAL: Duration = Duration::from_millis(100);
/// The most requests that a span is linked to, which is also OpenTelemetry's default limit.
const MAX_LINKS: usize = 128;

pub(super) struct StepSpans {
    telemetry: TelemetrySlot,
    /// The time from which on the next step gets a span.
    next: Option<Instant>,
}

impl StepSpans {
    pub(super) fn new(telemetry: TelemetrySlot) -> Self {
        Self { telemetry, next: None }
    }

    /// Adds a span of the step whose result has arrived, unless another step had one a moment ago or none of its
    /// requests is sampled. The scheduler must not have the result yet.
    pub(super) fn add(
        &mut self,
        now: Instant,
        lane: LaneId,
        result: &StepResult,
        scheduler: &Scheduler,
        clients: &HashMap<SequenceId, Client>,
    ) {
        let Some(telemetry) = self.telemetry.get() else { return };
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        let Some((num_tokens, sequences)) = scheduler.step_in_flight(lane, result.step_id) else { return };
        let spans = sequences.iter().filter_map(|id| clients.get(id)?.span);
        let requests: Vec<_> = spans.take(MAX_LINKS).collect();
        if requests.is_empty() {
            return;
        }
        self.next = Some(now + INTERVAL);
        telemetry.step(&StepRecord {
            lane: lane.0,
            step_id: result.step_id,
            ended: SystemTime::now(),
            device_time: Duration::from_micros(result.device_time_us),
            num_tokens,
            num_sequences: sequences.len(),
            requests,
        });
    }
}
