//! Gets, puts and removes blocks. Every object is verified before its block is returned.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use trunkline_contract::BlockKey;

use crate::format::{Block, BlockShape, FormatError};
use crate::objects::{Objects, Refusal};

/// The longest wait for a download.
pub const GET_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest wait for an upload.
pub const PUT_TIMEOUT: Duration = Duration::from_secs(60);
/// The most blocks that are removed by one request, as many as S3 takes.
const MAX_REMOVALS: usize = 1_000;
/// The store's own error text is cut to this length in ours.
const MAX_REASON_CHARACTERS: usize = 200;

/// Describes why a block could not be downloaded, uploaded or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    #[error("the object store refused to {operation} a block: permission denied")]
    Permission { operation: &'static str },
    #[error("the object store failed to {operation} a block: {reason}")]
    Failed { operation: &'static str, reason: String },
    #[error("the object store took longer than {limit_ms} ms to {operation} a block")]
    Slow { operation: &'static str, limit_ms: u128 },
    /// The object exists but is not the expected block.
    #[error("block {key} of the object store cannot be used: {source}")]
    Content { key: BlockKey, source: FormatError },
}

impl RemoteError {
    /// Returns false if the store worked and only the object's content is wrong.
    pub fn is_of_store(&self) -> bool {
        !matches!(self, Self::Content { .. })
    }
}

/// Says whether an upload keeps or replaces an existing object of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfThere {
    /// Keeps the existing object, which holds the same block.
    Keep,
    /// Replaces the existing object, which was found to be damaged.
    Replace,
}

/// The blocks below one prefix of an object store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Remote {
    store: Arc<dyn Objects>,
    prefix: String,
    get_timeout: Duration,
    put_timeout: Duration,
}

impl Remote {
    /// Uses the objects of `store` whose names begin with `prefix`, which is empty or ends with a slash.
    pub fn new(store: Arc<dyn Objects>, prefix: impl Into<String>) -> Self {
        Self { store, prefix: prefix.into(), get_timeout: GET_TIMEOUT, put_timeout: PUT_TIMEOUT }
    }

    /// Replaces [`GET_TIMEOUT`] and [`PUT_TIMEOUT`].
    #[must_use]
    pub fn with_timeouts(self, get_timeout: Duration, put_timeout: Duration) -> Self {
        Self { get_timeout, put_timeout, ..self }
    }

    /// Returns the name of a block's object: `<prefix><fingerprint>/<first two digits of the key>/<key>`.
    pub fn name(&self, shape: &BlockShape, key: BlockKey) -> String {
        let digits = key.to_string();
        format!("{}{}/{}/{digits}", self.prefix, shape.fingerprint, &digits[..2])
    }

    /// Downloads the block `key` of the path that begins at `root`. Returns `None` if there is no such object.
    pub async fn get(
        &self,
        shape: &BlockShape,
        key: BlockKey,
        root: BlockKey,
    ) -> Result<Option<Block>, RemoteError> {
        let name = self.name(shape, key);
        let content = |source| RemoteError::Content { key, source };
        let expected = shape.object_bytes();
        match within(self.get_timeout, "download", self.store.get(&name, expected)).await? {
            Ok(object) => shape.read(&object, key, root).map(Some).map_err(content),
            Err(Refusal::NotFound) => Ok(None),
            Err(Refusal::Size(found)) => Err(content(FormatError::Size { found, expected })),
            Err(refusal) => Err(error(refusal, "download")),
        }
    }

    /// Returns true if an object of the block's name and size exists. Its content is not read.
    pub async fn has(&self, shape: &BlockShape, key: BlockKey) -> Result<bool, RemoteError> {
        let name = self.name(shape, key);
        match within(self.get_timeout, "download", self.store.size(&name)).await? {
            Ok(size) => Ok(size == shape.object_bytes()),
            Err(Refusal::NotFound) => Ok(false),
            Err(refusal) => Err(error(refusal, "download")),
        }
    }

    /// Uploads a block. Returns false if the object existed and was kept.
    pub async fn put(
        &self,
        shape: &BlockShape,
        block: &Block,
        if_there: IfThere,
    ) -> Result<bool, RemoteError> {
        let name = self.name(shape, block.key);
        let parts: [Bytes; 2] = [shape.header(block), block.bytes.clone()];
        if if_there == IfThere::Keep {
            match within(self.put_timeout, "upload", self.store.create(&name, parts.clone())).await? {
                Ok(()) => return Ok(true),
                Err(Refusal::Exists) => return Ok(false),
                // A store without conditional writes gets the same bytes twice.
                Err(Refusal::NotSupported) => {}
                Err(refusal) => return Err(error(refusal, "upload")),
            }
        }
        let put = within(self.put_timeout, "upload", self.store.replace(&name, parts)).await?;
        put.map(|()| true).map_err(|refusal| error(refusal, "upload"))
    }

    /// Removes blocks that the store may have. After an error, some may be removed.
    pub async fn remove(&self, shape: &BlockShape, keys: &[BlockKey]) -> Result<(), RemoteError> {
        for keys in keys.chunks(MAX_REMOVALS) {
            let names = keys.iter().map(|&key| self.name(shape, key)).collect();
            let removed = within(self.put_timeout, "remove", self.store.remove(names)).await?;
            removed.map_err(|refusal| error(refusal, "remove"))?;
        }
        Ok(())
    }
}

/// Waits at most `limit` for the store.
async fn within<T>(
    limit: Duration,
    operation: &'static str,
    work: BoxFuture<'_, Result<T, Refusal>>,
) -> Result<Result<T, Refusal>, RemoteError> {
    let done = tokio::time::timeout(limit, work).await;
    done.map_err(|_| RemoteError::Slow { operation, limit_ms: limit.as_millis() })
}

fn error(refusal: Refusal, operation: &'static str) -> RemoteError {
    let reason = match refusal {
        Refusal::Permission => return RemoteError::Permission { operation },
        Refusal::NotFound => "no such bucket".to_owned(),
        Refusal::Exists => "it is there already".to_owned(),
        Refusal::NotSupported => "not supported".to_owned(),
        Refusal::Size(found) => format!("the object has {found} bytes"),
        Refusal::Other(reason) => {
            reason.replace(['\n', '\r'], " ").chars().take(MAX_REASON_CHARACTERS).collect()
        }
    };
    RemoteError::Failed { operation, reason }
}
