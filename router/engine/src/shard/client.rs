//! The client of the shard's gRPC service, and the time limit of its calls.

use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};
use trunkline_contract::{MAX_PLAN_MESSAGE_BYTES, MAX_RESULT_MESSAGE_BYTES};

use super::ShardError;
use super::proto::shard_service_client::ShardServiceClient;
use trunkline_base::limits::DESCRIBE_TIMEOUT;

pub(super) type Client = ShardServiceClient<Channel>;

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

/// Creates a client with the limits of messages that the shard has, too.
pub(super) fn client(channel: Channel) -> Client {
    ShardServiceClient::new(channel)
        .max_decoding_message_size(MAX_RESULT_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_PLAN_MESSAGE_BYTES)
}

/// Waits for a part of a call, at most `DESCRIBE_TIMEOUT`. `call` names the call in errors.
pub(super) async fn within<T>(
    call: &'static str,
    work: impl Future<Output = Result<T, ShardError>>,
) -> Result<T, ShardError> {
    tokio::time::timeout(DESCRIBE_TIMEOUT, work)
        .await
        .map_err(|_| ShardError::Timeout { call, limit_ms: DESCRIBE_TIMEOUT.as_millis() })?
}

/// Returns a function that turns a status into the error of a failed call.
pub(super) fn failed(call: &'static str) -> impl Fn(Status) -> ShardError {
    move |status| ShardError::Call { call, status: Box::new(status) }
}
