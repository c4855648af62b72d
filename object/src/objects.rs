//! The interface of an object store. A folder implements it here; S3, GCS and Azure do so in the crate
//! `trunkline-object-cloud`, which a build without them does not compile.

use std::fmt::Debug;

use bytes::Bytes;
use futures::future::BoxFuture;

/// The reason why a store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no object of that name.
    NotFound,
    /// [`Objects::create`] found an object of that name.
    Exists,
    /// The store cannot promise what [`Objects::create`] asks.
    NotSupported,
    /// The credentials or the file mode do not allow it.
    Permission,
    /// The object has another size, in bytes, than the caller expects. Its contents were not read.
    Size(u64),
    /// Anything else, in one line.
    Other(String),
}

/// Named objects, each written whole. Names are relative paths of a few ASCII parts separated by `/`.
pub trait Objects: Debug + Send + Sync {
    /// Returns the size of an object in bytes.
    fn size<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64, Refusal>>;

    /// Reads an object of `size` bytes. An object of another size is refused before anything of it is read.
    fn get<'a>(&'a self, name: &'a str, size: u64) -> BoxFuture<'a, Result<Bytes, Refusal>>;

    /// Writes the concatenation of `parts` unless there is an object of that name already.
    fn create<'a>(&'a self, name: &'a str, parts: [Bytes; 2]) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Writes the concatenation of `parts`. Readers see the old object or the new one, never a mixture.
    fn replace<'a>(&'a self, name: &'a str, parts: [Bytes; 2]) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Removes objects. It is no error if there is none of a name. After an error, some may be removed.
    fn remove(&self, names: Vec<String>) -> BoxFuture<'_, Result<(), Refusal>>;
}
