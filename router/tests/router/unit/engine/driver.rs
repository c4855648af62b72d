use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use trunkline_base::limits::MAX_WAITING_TOKENS;
use trunkline_base::metrics::ModelMetrics;
use trunkline_base::shutdown::Phase;
use trunkline_base::trace::TelemetrySlot;
use trunkline_engine::driver::{Driver, DriverEnds, Sequence, SequenceUpdate};
use trunkline_engine::shard::proto::StepRequest;
use trunkline_engine::shard::{LinkEvent, ShardInfo};
use trunkline_scheduler::{
    LaneId, Outcome, SampledToken, SchedulerConfig, SequenceResult, StepPlan, StepResult,
};

use crate::support::{DEADLINE, sequence};

mod late;

/// A driver with one sequence, for which the test provides the step results.
///
/// The test and the driver share one thread. The driver therefore handles everything that the test did between two
/// waits together, results before commands.
struct Driven {
    ends: DriverEnds,
    metrics: Arc<ModelMetrics>,
    plans: mpsc::Receiver<StepRequest>,
}

impl Driven {
    /// Starts the driver and waits until the sequence's first step is planned.
    async fn start(max_new_tokens: u32) -> (Self, Sequence, StepPlan) {
        let metrics = Arc::<ModelMetrics>::default();
        let (driver, ends) = Driver::new(
            SchedulerConfig::default(),
            1,
            watch::channel(Phase::Serving).1,
            metrics.clone(),
            TelemetrySlot::default(),
        );
        tokio::spawn(driver.run());
        let (sender, plans) = mpsc::channel(8);
        let info = Arc::new(shard());
        ends.links
            .send((LaneId::FIRST, LinkEvent::Ready { info, store: None, plans: sender }))
            .await
            .unwrap();
        let sequence = ends.handle.submit(sequence(vec![1], max_new_tokens)).await.unwrap();
        let mut driven = Self { ends, metrics, plans };
        let message = tokio::time::timeout(DEADLINE, driven.plans.recv()).await.expect("a plan").unwrap();
        (driven, sequence, message.plan.unwrap())
    }

    /// Sends the result of a step. The driver handles it at the next wait.
    fn give_result(&self, plan: &StepPlan) {
        let result = |sequence_id| SequenceResult {
            sequence_id,
            outcome: Some(Outcome::Token(SampledToken::default())),
            ..SequenceResult::default()
        };
        let sequences = plan.chunks.iter().map(|chunk| result(chunk.sequence_id)).collect();
        let result = StepResult { step_id: plan.step_id, sequences, device_time_us: 1, draft_time_us: 0 };
        self.ends.links.try_send((LaneId::FIRST, LinkEvent::Result(result))).unwrap();
    }

    /// Waits until the driver is idle. Returns the number of running sequences and of aborts.
    async fn settle(&self) -> (usize, u64) {
        let stats = self.ends.handle.ask(|scheduler, _| scheduler.stats()).await.unwrap();
        assert_eq!(stats.unexpected_results, 0);
        (stats.num_running as usize, self.metrics.aborts.get())
    }
}

fn shard() -> ShardInfo {
    ShardInfo {
        architecture: "test".into(),
        vocab_size: 100,
        max_position_embeddings: 2048,
        block_size: 8,
        num_device_blocks: 256,
        max_step_tokens: 64,
        max_step_sequences: 4,
        max_draft_tokens: 0,
        max_own_drafts: 0,
        num_adapter_slots: 0,
        adapter_bytes: 0,
        memory_bytes: 0,
        numeric_fingerprint: String::new(),
        device: "test".into(),
        kv_dtype: "f32".into(),
        weight_bytes: 1,
        bytes_per_block: 1,
        windows: None,
        bytes_per_window_part: 0,
        num_store_slots: 0,
        store_folder: None,
        reads_other_stores: false,
        vectors: None,
        generates: true,
    }
}

#[tokio::test]
async fn a_step_is_planned_between_two_questions() {
    let (driven, _sequence, plan) = Driven::start(9).await;
    driven.settle().await;
    driven.give_result(&plan);
    let num_steps = || driven.ends.handle.ask(|scheduler, _| scheduler.stats().steps);
    let (one, two) = tokio::join!(num_steps(), num_steps());
    assert_eq!(two.unwrap(), one.unwrap() + 1);
}

#[tokio::test]
async fn a_client_that_has_its_last_token_is_not_aborted() {
    // The text ended with the last token, so the client leaves before it receives the end.
    let (driven, sequence, plan) = Driven::start(1).await;
    drop(sequence);
    driven.give_result(&plan);
    assert_eq!(driven.settle().await, (0, 0));
}

#[tokio::test]
async fn a_client_that_found_its_stop_string_is_not_aborted() {
    // The next token was already in flight when the stop string was found.
    let (driven, mut sequence, plan) = Driven::start(9).await;
    sequence.finish();
    drop(sequence);
    driven.give_result(&plan);
    assert_eq!(driven.settle().await, (0, 0));
}

#[tokio::test]
async fn a_client_that_leaves_is_aborted_once() {
    let (driven, sequence, plan) = Driven::start(9).await;
    drop(sequence);
    assert_eq!(driven.settle().await, (0, 1));
    driven.give_result(&plan);
    assert_eq!(driven.settle().await, (0, 1));
}

#[tokio::test]
async fn a_client_that_has_its_answer_finds_it_counted() {
    // So many unread tokens make the driver give the client a turn before its own has ended.
    let num_tokens = MAX_WAITING_TOKENS as u32 - 8;
    let (mut driven, mut sequence, mut plan) = Driven::start(num_tokens).await;
    for _ in 1..num_tokens {
        driven.give_result(&plan);
        plan = driven.plans.recv().await.unwrap().plan.unwrap();
    }
    driven.give_result(&plan);
    let stats = driven.ends.stats.clone();
    // Tokio would otherwise interrupt a reader of so many updates, and the driver would end its turn.
    let read = tokio::spawn(tokio::task::unconstrained(async move {
        while !matches!(sequence.next().await, Some(SequenceUpdate::Ended(_)) | None) {}
        stats.borrow().output_tokens
    }));
    let num_counted = tokio::time::timeout(DEADLINE, read).await.expect("an end").unwrap();
    assert_eq!(num_counted, u64::from(num_tokens));
}
