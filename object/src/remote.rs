//! Gets and puts blocks. What is there is verified before anybody sees it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use trunkline_kv::BlockKey;

use crate::format::{Block, BlockShape, FormatError};
use crate::objects::{Objects, Refusal};

/// Longest wait for a block.
pub const GET_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait until a block is taken.
pub const PUT_TIMEOUT: Duration = Duration::from_secs(60);
/// Of what a store says of itself, so much is repeated.
const MAX_REASON_CHARACTERS: usize = 200;

/// Why an object was not got or put.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The store refused.
    #[error("the object store refuses to {what} a block: permission denied")]
    Permission {
        /// What was tried.
        what: &'static str,
    },
    /// It failed.
    #[error("the object store does not {what} a block: {reason}")]
    Failed {
        /// What was tried.
        what: &'static str,
        /// What it said, cut.
        reason: String,
    },
    /// It took too long.
    #[error("the object store takes longer than {limit_ms} ms to {what} a block")]
    Slow {
        /// What was tried.
        what: &'static str,
        /// The limit.
        limit_ms: u128,
    },
    /// What is there is not what should be.
    #[error("block {key} of the object store cannot be used: {source}")]
    Content {
        /// Which block.
        key: BlockKey,
        /// What is wrong.
        source: FormatError,
    },
}

impl RemoteError {
    /// False if the store itself did what it should.
    pub fn is_of_store(&self) -> bool {
        !matches!(self, Self::Content { .. })
    }
}

/// What to do where there is an object of that name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfThere {
    /// It is the same block.
    Keep,
    /// It was found to be broken.
    Replace,
}

/// A place in an object store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Remote {
    store: Arc<dyn Objects>,
    prefix: String,
    get_timeout: Duration,
    put_timeout: Duration,
}

impl Remote {
    /// Objects of `store` whose names begin with `prefix`, which is empty or ends with a slash.
    pub fn new(store: Arc<dyn Objects>, prefix: impl Into<String>) -> Self {
        Self { store, prefix: prefix.into(), get_timeout: GET_TIMEOUT, put_timeout: PUT_TIMEOUT }
    }

    /// The same with other limits than [`GET_TIMEOUT`] and [`PUT_TIMEOUT`].
    #[must_use]
    pub fn with_timeouts(self, get_timeout: Duration, put_timeout: Duration) -> Self {
        Self { get_timeout, put_timeout, ..self }
    }

    /// The name of a block's object: `<prefix><fingerprint>/<first two digits of the key>/<key>`.
    pub fn name(&self, shape: &BlockShape, key: BlockKey) -> String {
        let digits = key.to_string();
        format!("{}{}/{}/{digits}", self.prefix, shape.fingerprint, &digits[..2])
    }

    /// The block `key` of the path that begins at `root`; none if there is no object of that name.
    pub async fn get(
        &self,
        shape: &BlockShape,
        key: BlockKey,
        root: BlockKey,
    ) -> Result<Option<Block>, RemoteError> {
        let name = self.name(shape, key);
        let content = |source| RemoteError::Content { key, source };
        let expected = shape.object_bytes();
        match within(self.get_timeout, "give", self.store.get(&name, expected)).await? {
            Ok(object) => shape.read(&object, key, root).map(Some).map_err(content),
            Err(Refusal::NotFound) => Ok(None),
            Err(Refusal::Size(found)) => Err(content(FormatError::Size { found, expected })),
            Err(refusal) => Err(error(refusal, "give")),
        }
    }

    /// Whether there is an object of that name, whatever is in it.
    pub async fn has(&self, shape: &BlockShape, key: BlockKey) -> Result<bool, RemoteError> {
        let name = self.name(shape, key);
        match within(self.get_timeout, "give", self.store.size(&name)).await? {
            Ok(size) => Ok(size == shape.object_bytes()),
            Err(Refusal::NotFound) => Ok(false),
            Err(refusal) => Err(error(refusal, "give")),
        }
    }

    /// Puts a block. False if it was there already.
    pub async fn put(
        &self,
        shape: &BlockShape,
        block: &Block,
        if_there: IfThere,
    ) -> Result<bool, RemoteError> {
        let name = self.name(shape, block.key);
        let parts: [Bytes; 2] = [shape.header(block), block.bytes.clone()];
        if if_there == IfThere::Keep {
            match within(self.put_timeout, "take", self.store.create(&name, parts.clone())).await? {
                Ok(()) => return Ok(true),
                Err(Refusal::Exists) => return Ok(false),
                // Some stores cannot promise it. Then the same bytes are written twice.
                Err(Refusal::NotSupported) => {}
                Err(refusal) => return Err(error(refusal, "take")),
            }
        }
        let put = within(self.put_timeout, "take", self.store.replace(&name, parts)).await?;
        put.map(|()| true).map_err(|refusal| error(refusal, "take"))
    }
}

/// Waits for the store, at most `limit`; `what` names the work in the error.
async fn within<T>(
    limit: Duration,
    what: &'static str,
    work: BoxFuture<'_, Result<T, Refusal>>,
) -> Result<Result<T, Refusal>, RemoteError> {
    let done = tokio::time::timeout(limit, work).await;
    done.map_err(|_| RemoteError::Slow { what, limit_ms: limit.as_millis() })
}

fn error(refusal: Refusal, what: &'static str) -> RemoteError {
    let reason = match refusal {
        Refusal::Permission => return RemoteError::Permission { what },
        Refusal::NotFound => "no such bucket".to_owned(),
        Refusal::Exists => "it is there already".to_owned(),
        Refusal::NotSupported => "not supported".to_owned(),
        Refusal::Size(found) => format!("the object has {found} bytes"),
        Refusal::Other(reason) => {
            reason.replace(['\n', '\r'], " ").chars().take(MAX_REASON_CHARACTERS).collect()
        }
    };
    RemoteError::Failed { what, reason }
}
