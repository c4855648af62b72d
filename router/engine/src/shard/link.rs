//! The link to the shard: connects, checks `Describe`, keeps one Step stream open, and starts over when it ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use trunkline_scheduler::{LaneId, LaneStats, StepResult, StoreContents, Transfers};

use super::client::{client, connect, failed, within};
use super::info::ShardInfo;
use super::local_store::StoreGate;
use super::store::read_store;
use super::{Health, NamedMasks, ShardError, ShardStatus, proto};
use trunkline_base::limits::RECONNECT_PAUSE;

/// The most messages that wait for the socket. The scheduler keeps two plans in flight. The rest is room for plans that
/// only end sequences, and for late masks, which the driver sends once per turn.
const MAX_WAITING_PLANS: usize = 64;
/// The checks in a row that find a shard unwell before its sequences go on with another one.
const MAX_UNWELL_CHECKS: u32 = 2;

/// An event that the link reports to the driver.
#[derive(Debug)]
pub enum LinkEvent {
    /// A Step stream is open. The shard has no sequences and receives its plans through `plans`.
    Ready {
        info: Arc<ShardInfo>,
        /// The contents of the shard's store, if it has one.
        store: Option<StoreContents>,
        plans: mpsc::Sender<proto::StepRequest>,
    },
    Result(StepResult),
    Transfers(Transfers),
    /// The stream that the last `Ready` opened has ended.
    Lost,
}

/// The driver's side of a lane's link.
#[derive(Debug, Clone)]
pub struct LinkEnd {
    pub lane: LaneId,
    pub events: mpsc::Sender<(LaneId, LinkEvent)>,
    /// The shards of all lanes, which must compute the same.
    pub shards: watch::Receiver<Vec<ShardStatus>>,
    pub health: watch::Receiver<Vec<Health>>,
    pub lanes: watch::Receiver<Vec<LaneStats>>,
    /// False while the model is out of memory, so that nothing listens.
    pub is_expected: watch::Receiver<bool>,
}

impl LinkEnd {
    /// Reports an event. Returns false if the driver is gone.
    async fn tell(&self, event: LinkEvent) -> bool {
        self.events.send((self.lane, event)).await.is_ok()
    }

    fn is_drained(&self) -> bool {
        self.lanes.borrow()[self.lane.0 as usize].is_drained
    }

    /// Returns true if the shard does not answer, or its step does not end, while the shard of another lane is well.
    /// Its sequences go on there.
    fn is_left(&self) -> bool {
        // Only one of both is locked at a time.
        let health = self.health.borrow().clone();
        let shards = self.shards.borrow();
        let is_well = |(health, status): (&Health, &ShardStatus)| {
            matches!(status, ShardStatus::Ready(_)) && health.num_unwell == 0
        };
        // This one is not well itself.
        health[self.lane.0 as usize].num_unwell >= MAX_UNWELL_CHECKS
            && health.iter().zip(shards.iter()).any(is_well)
    }

    /// Waits until the shard of the model should run.
    async fn wait_expected(&self) {
        // An error means that nothing changes any more, as on a server whose model stays in memory.
        let _ = self.is_expected.clone().wait_for(|is_expected| *is_expected).await;
    }

    /// Waits until the shard is left, or is not any more.
    async fn wait_left(&self, is_left: bool) {
        let (mut health, mut shards) = (self.health.clone(), self.shards.clone());
        while self.is_left() != is_left {
            let changed = tokio::select! {
                changed = health.changed() => changed,
                changed = shards.changed() => changed,
            };
            if changed.is_err() {
                // The health polls or the driver have ended with the server.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Connects to the shard again whenever the connection ends, until the driver is gone.
///
/// `gate` keeps the object tier out of the store while a shard opens it.
pub async fn run_link(socket: PathBuf, driver: LinkEnd, gate: Option<Arc<StoreGate>>) {
    let mut pause = RECONNECT_PAUSE.0;
    let mut said = String::new();
    while !driver.events.is_closed() {
        driver.wait_expected().await;
        driver.wait_left(false).await;
        let mut was_ready = false;
        let outcome = tokio::select! {
            outcome = run_once(&socket, &driver, gate.as_deref(), &mut was_ready) => outcome,
            () = driver.wait_left(true) => Err(ShardError::Left),
        };
        if was_ready {
            pause = RECONNECT_PAUSE.0;
            said.clear();
            if !driver.tell(LinkEvent::Lost).await {
                return;
            }
        }
        if let Err(error) = outcome {
            let text = error.to_string();
            if was_ready && driver.is_drained() {
                tracing::info!(lane = driver.lane.0, "the shard of a lane that was left has ended");
            } else if was_ready {
                tracing::error!(lane = driver.lane.0, %error, "shard lost");
            } else if matches!(error, ShardError::Unreachable { .. }) {
                tracing::debug!(lane = driver.lane.0, %error, "shard is not listening yet");
            } else if said != text {
                tracing::warn!(lane = driver.lane.0, %error, "shard cannot be used");
            }
            said = text;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_PAUSE.1);
    }
}

/// Runs one connection from `Describe` to the end of its Step stream.
async fn run_once(
    socket: &Path,
    driver: &LinkEnd,
    gate: Option<&StoreGate>,
    was_ready: &mut bool,
) -> Result<(), ShardError> {
    let channel = within("connect", connect(socket)).await?;
    let mut client = client(channel);
    let describe = within("Describe", async {
        client.describe(proto::DescribeRequest {}).await.map_err(failed("Describe"))
    });
    let info = Arc::new(ShardInfo::from_proto(describe.await?.into_inner())?);
    check_alike(&info, driver)?;

    // The gate stays closed from the list of the blocks until the driver has the new index. Others then write no slot.
    let mut gate = match gate {
        Some(gate) => Some(gate.close().await),
        None => None,
    };
    let store = read_store(&mut client, &info).await?;
    if let Some(gate) = &mut gate {
        gate.set(&info, store.is_some()).await;
    }
    let (plans, outgoing) = mpsc::channel::<proto::StepRequest>(MAX_WAITING_PLANS);
    let mut masks = NamedMasks::default();
    let requests = tokio_stream::StreamExt::map(ReceiverStream::new(outgoing), move |mut request| {
        masks.name_all(&mut request);
        request
    });
    // A server may send its response header only with the first result. The driver must therefore be able to send plans
    // before `step` returns.
    if !driver.tell(LinkEvent::Ready { info, store, plans }).await {
        return Ok(());
    }
    drop(gate);
    *was_ready = true;
    let mut results = client.step(requests).await.map_err(failed("Step"))?.into_inner();
    while let Some(response) = results.message().await.map_err(failed("Step"))? {
        if response.result.is_none() && response.transfers.is_none() {
            return Err(ShardError::InvalidMessage { detail: "step response is empty".into() });
        }
        // The order matters, because the tokens of a block that was stored may be in the same message's result.
        let result = response.result.map(LinkEvent::Result);
        let transfers = response.transfers.map(LinkEvent::Transfers);
        for event in [result, transfers].into_iter().flatten() {
            if !driver.tell(event).await {
                return Ok(());
            }
        }
    }
    Err(ShardError::StreamEnded)
}

/// Checks that the shard computes what those of the other lanes do, so that a sequence can go on with any of them.
fn check_alike(info: &ShardInfo, driver: &LinkEnd) -> Result<(), ShardError> {
    for (lane, status) in (0..).map(LaneId).zip(&*driver.shards.borrow()) {
        if let ShardStatus::Ready(other) = status
            && lane != driver.lane
            && let Some((field, found, expected)) = info.difference(other)
        {
            return Err(ShardError::Differs { field, found, expected, lane: lane.0 });
        }
    }
    Ok(())
}
