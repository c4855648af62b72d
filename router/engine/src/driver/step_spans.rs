//! The spans of steps, for an exporter.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use trunkline_scheduler::{LaneId, SequenceId, SequenceInStep, StepResult};

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

    /// Adds a span of the step of these sequences whose result has arrived, unless another step had one a moment ago or
    /// none of its requests is sampled.
    pub(super) fn add<'a>(
        &mut self,
        now: Instant,
        lane: LaneId,
        result: &StepResult,
        sequences: impl ExactSizeIterator<Item = SequenceInStep<'a>> + Clone,
        clients: &HashMap<SequenceId, Client>,
    ) {
        let Some(telemetry) = self.telemetry.get() else { return };
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        let num_sequences = sequences.len();
        let num_tokens = |sequence: SequenceInStep<'_>| {
            u64::from(sequence.num_prefill_tokens + sequence.num_decode_tokens)
        };
        let spans = sequences.clone().filter_map(|sequence| clients.get(&sequence.id)?.span);
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
            num_tokens: sequences.map(num_tokens).sum(),
            num_sequences,
            requests,
        });
    }
}
