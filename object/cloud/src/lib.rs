//! S3, Google Cloud Storage and Azure Blob Storage as object stores of Trunkline.
//!
//! This is a crate of its own because the clients of three clouds take longer to compile than the router. Only the
//! executable `trunkline-router-full` contains it.
//!
//! [`open`] makes a store of `trunkline-object` of a URL, over the clients of the `object_store` crate. It uses nothing
//! of the router.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
};
use trunkline_object::{Location, LocationError, Objects, Refusal, Remote};

/// A request has little time, and a block that is not uploaded does no harm. One retry covers a connection that the
/// store had closed.
const MAX_RETRIES: usize = 1;
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens the store at a location of the scheme `s3`, `gs` or `az`, with region, account and credentials from the
/// environment.
///
/// Sends no request yet, so a store that cannot be reached is reported at its first use. Fails if the environment
/// lacks something.
pub fn open(location: &Location) -> Result<Remote, LocationError> {
    // The call fails only if a provider is installed already.
    drop(rustls::crypto::ring::default_provider().install_default());
    let fail = |reason: String| LocationError::Environment { reason };
    let retry =
        RetryConfig { max_retries: MAX_RETRIES, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
    let url = location.url().as_str();
    let store: Result<Arc<dyn ObjectStore>, Error> = match location.url().scheme() {
        "s3" => AmazonS3Builder::from_env().with_url(url).with_retry(retry).build().map(|s| Arc::new(s) as _),
        "gs" => GoogleCloudStorageBuilder::from_env()
            .with_url(url)
            .with_retry(retry)
            .build()
            .map(|s| Arc::new(s) as _),
        _ => MicrosoftAzureBuilder::from_env()
            .with_url(url)
            .with_retry(retry)
            .build()
            .map(|s| Arc::new(s) as _),
    };
    let prefix = Path::from_url_path(location.url().path()).map_err(|error| fail(error.to_string()))?;
    let store = store.map_err(|error| fail(error.to_string()))?;
    Ok(Remote::new(Arc::new(Cloud { store, prefix }), ""))
}

/// Objects of a bucket whose paths begin with `prefix`.
#[derive(Debug)]
struct Cloud {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

impl Cloud {
    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn put<'a>(&'a self, name: &str, parts: [Bytes; 2], mode: PutMode) -> BoxFuture<'a, Result<(), Refusal>> {
        let path = self.path(name);
        Box::pin(async move {
            let options = PutOptions { mode, ..PutOptions::default() };
            self.store.put_opts(&path, PutPayload::from_iter(parts), options).await.map(drop).map_err(refusal)
        })
    }
}

impl Objects for Cloud {
    fn size<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64, Refusal>> {
        Box::pin(async move { Ok(self.store.head(&self.path(name)).await.map_err(refusal)?.size) })
    }

    fn get<'a>(&'a self, name: &'a str, size: u64) -> BoxFuture<'a, Result<Bytes, Refusal>> {
        Box::pin(async move {
            let found =
                self.store.get_opts(&self.path(name), GetOptions::default()).await.map_err(refusal)?;
            if found.meta.size != size {
                return Err(Refusal::Size(found.meta.size));
            }
            found.bytes().await.map_err(refusal)
        })
    }

    fn create<'a>(&'a self, name: &'a str, parts: [Bytes; 2]) -> BoxFuture<'a, Result<(), Refusal>> {
        self.put(name, parts, PutMode::Create)
    }

    fn replace<'a>(&'a self, name: &'a str, parts: [Bytes; 2]) -> BoxFuture<'a, Result<(), Refusal>> {
        self.put(name, parts, PutMode::Overwrite)
    }

    fn remove(&self, names: Vec<String>) -> BoxFuture<'_, Result<(), Refusal>> {
        let paths: Vec<_> = names.iter().map(|name| Ok(self.path(name))).collect();
        Box::pin(async move {
            let mut removed = self.store.delete_stream(stream::iter(paths).boxed());
            while let Some(result) = removed.next().await {
                match result {
                    Ok(_) | Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(refusal(error)),
                }
            }
            Ok(())
        })
    }
}

fn refusal(error: Error) -> Refusal {
    match error {
        Error::NotFound { .. } => Refusal::NotFound,
        Error::AlreadyExists { .. } | Error::Precondition { .. } => Refusal::Exists,
        Error::NotSupported { .. } | Error::NotImplemented { .. } => Refusal::NotSupported,
        // The text of these may name accounts.
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Refusal::Permission,
        other => Refusal::Other(other.to_string()),
    }
}
