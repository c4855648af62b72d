//! The link to the shard: connects, checks `Describe`, keeps one Step stream open, and starts over when it ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use trunkline_scheduler::{LaneId, StepResult, StoreContents, Transfers};

use super::client::{client, connect, failed, within};
use super::info::ShardInfo;
use super::local_store::StoreGate;
use super::store::read_store;
use super::{NamedMasks, ShardError, ShardStatus, proto};
use trunkline_base::limits::RECONNECT_PAUSE;

/// The most messages that wait for the socket. The scheduler keeps two plans in flight. The rest is room for plans that
/// only end sequences, and for late masks, which the driver sends once per turn.
const MAX_WAITING_PLANS: usize = 64;

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
}

impl LinkEnd {
    /// Reports an event. Returns false if the driver is gone.
    async fn tell(&self, event: LinkEvent) -> bool {
        self.events.send((self.lane, event)).await.is_ok()
    }
}

/// Connects to the shard again whenever the connection ends, until the driver is gone.
///
/// `gate` keeps the object tier out of the store while a shard opens it.
pub async fn run_link(socket: PathBuf, driver: LinkEnd, gate: Option<Arc<StoreGate>>) {
    let mut pause = RECONNECT_PAUSE.0;
    let mut said = String::new();
    while !driver.events.is_closed() {
        let mut was_ready = false;
        let outcome = run_once(&socket, &driver, gate.as_deref(), &mut was_ready).await;
        if was_ready {
            pause = RECONNECT_PAUSE.0;
            said.clear();
            if !driver.tell(LinkEvent::Lost).await {
                return;
            }
        }
        if let Err(error) = outcome {
            let text = error.to_string();
            if was_ready {
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
