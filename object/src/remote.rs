//! Gets and puts blocks. What is there is verified before anybody sees it.

use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use trunkline_kv::BlockKey;

use crate::format::{Block, BlockShape, FormatError};

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
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    get_timeout: Duration,
    put_timeout: Duration,
}

impl Remote {
    /// Objects of `store` below `prefix`.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path) -> Self {
        Self { store, prefix, get_timeout: GET_TIMEOUT, put_timeout: PUT_TIMEOUT }
    }

    /// The same with other limits than [`GET_TIMEOUT`] and [`PUT_TIMEOUT`].
    #[must_use]
    pub fn with_timeouts(self, get_timeout: Duration, put_timeout: Duration) -> Self {
        Self { get_timeout, put_timeout, ..self }
    }

    /// Where a block lies: `<prefix>/<fingerprint>/<first two digits of the key>/<key>`.
    pub fn path(&self, shape: &BlockShape, key: BlockKey) -> Path {
        let digits = key.to_string();
        let parts = [shape.fingerprint.as_str(), &digits[..2], &digits];
        parts.into_iter().fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// The block `key` of the path that begins at `root`; none if there is no object of that name.
    pub async fn get(
        &self,
        shape: &BlockShape,
        key: BlockKey,
        root: BlockKey,
    ) -> Result<Option<Block>, RemoteError> {
        let path = self.path(shape, key);
        let content = |source| RemoteError::Content { key, source };
        let object = within(self.get_timeout, async {
            let found = self.store.get_opts(&path, GetOptions::default()).await?;
            // Not read if it cannot be right: it may be of any size.
            let size = found.meta.size;
            if size != shape.object_bytes() {
                return Ok(Err(FormatError::Size { found: size, expected: shape.object_bytes() }));
            }
            found.bytes().await.map(Ok)
        });
        match object.await {
            Ok(object) => shape.read(&object.map_err(content)?, key, root).map(Some).map_err(content),
            Err(Refusal::NotFound) => Ok(None),
            Err(refusal) => Err(refusal.into_error("give")),
        }
    }

    /// Whether there is an object of that name, whatever is in it.
    pub async fn has(&self, shape: &BlockShape, key: BlockKey) -> Result<bool, RemoteError> {
        let path = self.path(shape, key);
        match within(self.get_timeout, self.store.head(&path)).await {
            Ok(found) => Ok(found.size == shape.object_bytes()),
            Err(Refusal::NotFound) => Ok(false),
            Err(refusal) => Err(refusal.into_error("give")),
        }
    }

    /// Puts a block. False if it was there already.
    pub async fn put(
        &self,
        shape: &BlockShape,
        block: &Block,
        if_there: IfThere,
    ) -> Result<bool, RemoteError> {
        let path = self.path(shape, block.key);
        let payload = PutPayload::from_iter([shape.header(block), block.bytes.clone()]);
        if if_there == IfThere::Keep {
            match self.put_as(&path, payload.clone(), PutMode::Create).await {
                Ok(()) => return Ok(true),
                Err(Refusal::Exists) => return Ok(false),
                // Some stores cannot promise it. Then the same bytes are written twice.
                Err(Refusal::NotSupported) => {}
                Err(refusal) => return Err(refusal.into_error("take")),
            }
        }
        let put = self.put_as(&path, payload, PutMode::Overwrite).await;
        put.map(|()| true).map_err(|refusal| refusal.into_error("take"))
    }

    async fn put_as(&self, path: &Path, payload: PutPayload, mode: PutMode) -> Result<(), Refusal> {
        let options = PutOptions { mode, ..PutOptions::default() };
        within(self.put_timeout, self.store.put_opts(path, payload, options)).await.map(drop)
    }
}

/// How a store says no.
enum Refusal {
    NotFound,
    Exists,
    NotSupported,
    Permission,
    Other(String),
    Slow(Duration),
}

impl Refusal {
    fn into_error(self, what: &'static str) -> RemoteError {
        match self {
            Self::Permission => RemoteError::Permission { what },
            Self::Slow(limit) => RemoteError::Slow { what, limit_ms: limit.as_millis() },
            Self::Other(reason) => RemoteError::Failed { what, reason },
            Self::NotFound => RemoteError::Failed { what, reason: "no such bucket".to_owned() },
            Self::Exists => RemoteError::Failed { what, reason: "it is there already".to_owned() },
            Self::NotSupported => RemoteError::Failed { what, reason: "not supported".to_owned() },
        }
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = object_store::Result<T>>,
) -> Result<T, Refusal> {
    let Ok(done) = tokio::time::timeout(limit, work).await else { return Err(Refusal::Slow(limit)) };
    done.map_err(|error| match error {
        object_store::Error::NotFound { .. } => Refusal::NotFound,
        object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. } => {
            Refusal::Exists
        }
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            Refusal::NotSupported
        }
        // What the answer says may name accounts.
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            Refusal::Permission
        }
        other => {
            let reason = other.to_string().replace(['\n', '\r'], " ");
            Refusal::Other(reason.chars().take(MAX_REASON_CHARACTERS).collect())
        }
    })
}
