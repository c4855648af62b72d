//! The link to the shard: connects, checks `Describe`, keeps one Step stream open, and starts over when it ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};
use trunkline_scheduler::{LateMask, StepPlan, StepResult, StoreContents, Transfers};

use super::info::ShardInfo;
use super::local_store::StoreGate;
use super::proto::shard_service_client::ShardServiceClient;
use super::store::read_store;
use super::{NamedMasks, ShardError, plan_to_proto, proto, result_from_proto, transfers_from_proto};
use crate::limits::{DESCRIBE_TIMEOUT, RECONNECT_PAUSE};

/// The most messages that wait for the socket. The scheduler keeps two plans in flight. The rest is room for plans that
/// only end sequences, and for late masks, which the driver sends once per turn.
const MAX_WAITING_PLANS: usize = 64;
/// The largest accepted message from the shard, in bytes. 1024 sequences with 20 logprobs each stay below 1 MiB.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// A message from the driver to the shard, with a plan, late masks or both.
#[derive(Debug, Default, PartialEq)]
pub struct StepMessage {
    pub plan: Option<StepPlan>,
    /// The tokens that steps may sample whose plans were sent before.
    pub late_masks: Vec<LateMask>,
}

/// An event that the link reports to the driver.
#[derive(Debug)]
pub enum LinkEvent {
    /// A Step stream is open. The shard has no sequences and receives its plans through `plans`.
    Ready {
        info: Arc<ShardInfo>,
        /// The contents of the shard's store, if it has one.
        store: Option<StoreContents>,
        plans: mpsc::Sender<StepMessage>,
    },
    /// The result of a step.
    Result(StepResult),
    /// The outcomes of transfers to and from the store.
    Transfers(Transfers),
    /// The stream that the last `Ready` opened has ended.
    Lost,
}

/// Connects to the shard's socket; fails if nothing listens there.
pub async fn connect(socket: &Path) -> Result<Channel, ShardError> {
    let path: PathBuf = socket.to_path_buf();
    let unreachable = |source| ShardError::Unreachable { socket: socket.display().to_string(), source };
    // The address is not used, because the connector below opens the socket.
    let endpoint = Endpoint::try_from("http://shard.invalid").map_err(unreachable)?;
    endpoint
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }))
        .await
        .map_err(unreachable)
}

/// Creates a client with this router's message limits.
fn client(channel: Channel) -> ShardServiceClient<Channel> {
    ShardServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

/// Connects to the shard again whenever the connection ends, until the driver is gone.
///
/// `gate` keeps the object tier out of the store while a shard opens it.
pub async fn run_link(socket: PathBuf, events: mpsc::Sender<LinkEvent>, gate: Option<Arc<StoreGate>>) {
    let mut pause = RECONNECT_PAUSE.0;
    let mut said = String::new();
    while !events.is_closed() {
        let mut was_ready = false;
        let outcome = run_once(&socket, &events, gate.as_deref(), &mut was_ready).await;
        if was_ready {
            pause = RECONNECT_PAUSE.0;
            said.clear();
            if events.send(LinkEvent::Lost).await.is_err() {
                return;
            }
        }
        if let Err(error) = outcome {
            let text = error.to_string();
            if was_ready {
                tracing::error!(%error, "shard lost");
            } else if matches!(error, ShardError::Unreachable { .. }) {
                tracing::debug!(%error, "shard is not listening yet");
            } else if said != text {
                tracing::warn!(%error, "shard cannot be used");
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
    events: &mpsc::Sender<LinkEvent>,
    gate: Option<&StoreGate>,
    was_ready: &mut bool,
) -> Result<(), ShardError> {
    let channel = within("connect", connect(socket)).await?;
    let mut client = client(channel);
    let describe = within("Describe", async {
        let call = client.describe(proto::DescribeRequest {}).await;
        call.map_err(|status| ShardError::Call { call: "Describe", status: Box::new(status) })
    });
    let info = Arc::new(ShardInfo::from_proto(describe.await?.into_inner())?);

    // The gate stays closed from the count of the slots until the driver has the new index. Others then write no slot.
    let mut gate = match gate {
        Some(gate) => Some(gate.close().await),
        None => None,
    };
    let store = read_store(&info).await;
    if let Some(gate) = &mut gate {
        gate.set(&info, store.is_some()).await;
    }
    let (plans, outgoing) = mpsc::channel::<StepMessage>(MAX_WAITING_PLANS);
    let mut masks = NamedMasks::default();
    let requests =
        tokio_stream::StreamExt::map(ReceiverStream::new(outgoing), move |message| proto::StepRequest {
            plan: message.plan.map(plan_to_proto),
            late_masks: message.late_masks.into_iter().map(|late| masks.write(late)).collect(),
        });
    // A server may send its response header only with the first result. The driver must therefore be able to send plans
    // before `step` returns.
    if events.send(LinkEvent::Ready { info, store, plans }).await.is_err() {
        return Ok(());
    }
    drop(gate);
    *was_ready = true;
    let failed = |status| ShardError::Call { call: "Step", status: Box::new(status) };
    let mut results = client.step(requests).await.map_err(failed)?.into_inner();
    while let Some(response) = results.message().await.map_err(failed)? {
        if response.result.is_none() && response.transfers.is_none() {
            return Err(ShardError::InvalidMessage { detail: "step response is empty".into() });
        }
        // The order matters, because the tokens of a block that was stored may be in the same message's result.
        let result = response.result.map(result_from_proto).map(LinkEvent::Result);
        let transfers = response.transfers.map(transfers_from_proto).map(LinkEvent::Transfers);
        for event in [result, transfers].into_iter().flatten() {
            if events.send(event).await.is_err() {
                return Ok(());
            }
        }
    }
    Err(ShardError::StreamEnded)
}

async fn within<T>(
    call: &'static str,
    work: impl Future<Output = Result<T, ShardError>>,
) -> Result<T, ShardError> {
    let limit: Duration = DESCRIBE_TIMEOUT;
    tokio::time::timeout(limit, work)
        .await
        .map_err(|_| ShardError::Timeout { call, limit_ms: limit.as_millis() })?
}
