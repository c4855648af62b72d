//! An object store in memory that fails as it is told, and counts.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses some of it")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::Semaphore;

/// What happens instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The connection breaks.
    Broken,
    /// No such credentials any more.
    Denied,
    /// No answer, ever.
    Hangs,
    /// What is given ends so many bytes early.
    Cut(usize),
    /// One bit of what is given is another one.
    Flipped(usize),
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Get,
    Put,
}

type Faults = Box<dyn FnMut(Operation) -> Fault + Send>;

/// Clones are the same store.
#[derive(Clone)]
pub struct FaultyStore {
    pub inner: Arc<InMemory>,
    faults: Arc<Mutex<Faults>>,
    /// How often each object was asked for.
    pub gets: Arc<Mutex<HashMap<Path, usize>>>,
    /// One permit per get; take them away to hold all of them.
    pub gate: Arc<Semaphore>,
}

impl Default for FaultyStore {
    fn default() -> Self {
        Self {
            inner: Arc::new(InMemory::new()),
            faults: Arc::new(Mutex::new(Box::new(|_| Fault::None))),
            gets: Arc::default(),
            gate: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
        }
    }
}

impl FaultyStore {
    pub fn set(&self, faults: impl FnMut(Operation) -> Fault + Send + 'static) {
        *self.faults.lock().unwrap() = Box::new(faults);
    }

    pub fn num_gets(&self) -> usize {
        self.gets.lock().unwrap().values().sum()
    }

    async fn fault(&self, operation: Operation, path: &Path) -> Result<Fault> {
        let fault = (self.faults.lock().unwrap())(operation);
        let source = || "made up".into();
        match fault {
            Fault::Broken => Err(object_store::Error::Generic { store: "faulty", source: source() }),
            Fault::Denied => {
                Err(object_store::Error::PermissionDenied { path: path.to_string(), source: source() })
            }
            Fault::Hangs => std::future::pending().await,
            fault => Ok(fault),
        }
    }
}

impl std::fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("faulty")
    }
}

impl std::fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("faulty")
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.fault(Operation::Put, path).await?;
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        *self.gets.lock().unwrap().entry(path.clone()).or_default() += 1;
        self.gate.acquire().await.unwrap().forget();
        let fault = self.fault(Operation::Get, path).await?;
        if fault == Fault::None {
            return self.inner.get_opts(path, options).await;
        }
        let mut bytes = self.inner.get_opts(path, GetOptions::default()).await?.bytes().await?.to_vec();
        match fault {
            Fault::Cut(count) => bytes.truncate(bytes.len().saturating_sub(count.max(1))),
            Fault::Flipped(bit) => {
                let byte = bit / 8 % bytes.len();
                bytes[byte] ^= 1 << (bit % 8);
            }
            _ => {}
        }
        let changed = InMemory::new();
        changed.put(path, bytes.into()).await?;
        changed.get_opts(path, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
