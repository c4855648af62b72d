//! An object store in memory that injects faults and counts requests.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses some of it")]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use trunkline_object::{Objects, Refusal};

/// A fault to inject into one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The connection breaks before an answer.
    Broken,
    /// The credentials are refused.
    Denied,
    /// The store never answers.
    Hangs,
    /// The answer ends this many bytes early.
    Cut(usize),
    /// The bit with this index is flipped in the answer.
    Flipped(usize),
}

/// An operation that a fault can hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Get,
    Put,
    Remove,
}

type Faults = Box<dyn FnMut(Operation) -> Fault + Send>;

/// Clones share the same objects.
#[derive(Clone)]
pub struct FaultyStore {
    pub objects: Arc<Mutex<BTreeMap<String, Bytes>>>,
    faults: Arc<Mutex<Faults>>,
    /// The number of downloads of each object.
    pub gets: Arc<Mutex<HashMap<String, usize>>>,
    /// Each download takes one permit, so a test that takes them all blocks every download.
    pub gate: Arc<Semaphore>,
}

impl Default for FaultyStore {
    fn default() -> Self {
        Self {
            objects: Arc::default(),
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

    async fn fault(&self, operation: Operation) -> Result<Fault, Refusal> {
        let fault = (self.faults.lock().unwrap())(operation);
        match fault {
            Fault::Broken => Err(Refusal::Other("made up".to_owned())),
            Fault::Denied => Err(Refusal::Permission),
            Fault::Hangs => std::future::pending().await,
            fault => Ok(fault),
        }
    }

    async fn put(&self, name: &str, parts: [Bytes; 2], may_replace: bool) -> Result<(), Refusal> {
        self.fault(Operation::Put).await?;
        let mut objects = self.objects.lock().unwrap();
        if objects.contains_key(name) && !may_replace {
            return Err(Refusal::Exists);
        }
        objects.insert(name.to_owned(), parts.concat().into());
        Ok(())
    }

    async fn read(&self, name: &str, size: Option<u64>) -> Result<Bytes, Refusal> {
        *self.gets.lock().unwrap().entry(name.to_owned()).or_default() += 1;
        self.gate.acquire().await.unwrap().forget();
        let fault = self.fault(Operation::Get).await?;
        let object = self.objects.lock().unwrap().get(name).cloned().ok_or(Refusal::NotFound)?;
        let mut bytes = object.to_vec();
        match fault {
            Fault::Cut(count) => bytes.truncate(bytes.len().saturating_sub(count.max(1))),
            Fault::Flipped(bit) => {
                let byte = bit / 8 % bytes.len();
                bytes[byte] ^= 1 << (bit % 8);
            }
            _ => {}
        }
        match size {
            Some(size) if size != bytes.len() as u64 => Err(Refusal::Size(bytes.len() as u64)),
            _ => Ok(bytes.into()),
        }
    }
}

impl std::fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("faulty")
    }
}

impl Objects for FaultyStore {
    fn size<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64, Refusal>> {
        Box::pin(async move { Ok(self.read(name, None).await?.len() as u64) })
    }

    fn get<'a>(&'a self, name: &'a str, size: u64) -> BoxFuture<'a, Result<Bytes, Refusal>> {
        Box::pin(self.read(name, Some(size)))
    }

    fn create<'a>(&'a self, name: &'a str, parts: [Bytes; 2]) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(self.put(name, parts, false))
    }

    fn replace<'a>(&'a self, name: &'a str, parts: [Bytes; 2]) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(self.put(name, parts, true))
    }

    fn remove(&self, names: Vec<String>) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move {
            self.fault(Operation::Remove).await?;
            let mut objects = self.objects.lock().unwrap();
            names.iter().for_each(|name| drop(objects.remove(name)));
            Ok(())
        })
    }
}
