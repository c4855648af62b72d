//! Opening of adapters by the shard, which knows their files.

use std::path::Path;
use std::sync::Arc;

use tonic::Code;
use trunkline_scheduler::AdapterHash;

use super::ShardError;
use super::client::{client, connect, failed};
use super::proto::{OpenAdapterRequest, OpenAdapterResponse};
use trunkline_base::limits::OPEN_ADAPTER_TIMEOUT;

/// An adapter that shards can load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedAdapter {
    /// The absolute path of its files.
    pub path: Arc<str>,
    pub content_hash: AdapterHash,
    /// The most bytes that it takes in a slot.
    pub num_bytes: u64,
    /// The largest rank of its matrices.
    pub rank: u32,
}

/// The reason why an adapter is not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenAdapterError {
    /// The adapter cannot be used. The text is for people.
    #[error("{0}")]
    Unusable(String),
    #[error(transparent)]
    Shard(#[from] ShardError),
}

/// Asks the shard at a socket what the adapter at `source` is: a path, or a Hub id, whose files it downloads first.
pub async fn open_adapter(socket: &Path, source: &str) -> Result<OpenedAdapter, OpenAdapterError> {
    const CALL: &str = "OpenAdapter";
    let ask = async {
        let mut client = client(connect(socket).await?);
        match client.open_adapter(OpenAdapterRequest { source: source.to_owned() }).await {
            Ok(answer) => Ok(checked(answer.into_inner())?),
            Err(status) if status.code() == Code::FailedPrecondition => {
                Err(OpenAdapterError::Unusable(status.message().to_owned()))
            }
            Err(status) => Err(failed(CALL)(status).into()),
        }
    };
    match tokio::time::timeout(OPEN_ADAPTER_TIMEOUT, ask).await {
        Ok(opened) => opened,
        Err(_) => Err(OpenAdapterError::Unusable(format!(
            "its files were not there within {} s",
            OPEN_ADAPTER_TIMEOUT.as_secs()
        ))),
    }
}

fn checked(answer: OpenAdapterResponse) -> Result<OpenedAdapter, ShardError> {
    let OpenAdapterResponse { path, content_hash, num_bytes, rank } = answer;
    let content_hash = content_hash
        .try_into()
        .map_err(|_| ShardError::InvalidMessage { detail: "an adapter's hash has not 32 bytes".into() })?;
    if !Path::new(&path).is_absolute() {
        return Err(ShardError::InvalidMessage { detail: "an adapter's path is not absolute".into() });
    }
    Ok(OpenedAdapter { path: path.into(), content_hash: AdapterHash(content_hash), num_bytes, rank })
}
