//! The URL of an object store, as a person writes it. Credentials never stand in it: they come from the environment.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};
use url::Url;

use crate::remote::Remote;

const SCHEMES: [&str; 4] = ["s3", "gs", "az", "file"];
/// What was said in chats lies in there.
const FOLDER_MODE: u32 = 0o700;
/// A request has little time, and what is not uploaded is no harm: one retry covers a connection that had been closed.
const MAX_RETRIES: usize = 1;
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a text is no place for objects. Never repeats it: there may be credentials in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocationError {
    /// It is no URL.
    #[error(
        "is no URL ({reason}); hint: such as s3://bucket/prefix, gs://bucket, az://container or file:///folder"
    )]
    NotAUrl {
        /// Why.
        reason: String,
    },
    /// It is a URL of something else.
    #[error("has the scheme `{scheme}`, expected one of s3, gs, az, file; hint: such as s3://bucket/prefix")]
    Scheme {
        /// What it has.
        scheme: String,
    },
    /// It has a user, a password, a query or a fragment.
    #[error(
        "has a {part}; hint: give credentials by the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )]
    Credentials {
        /// Which.
        part: &'static str,
    },
    /// It has no bucket, or no absolute folder.
    #[error("has no {part}; hint: such as s3://bucket/prefix or file:///folder")]
    Incomplete {
        /// What is not there.
        part: &'static str,
    },
    /// The environment does not say enough, or something wrong.
    #[error("cannot be used: {reason}; hint: the environment says region, account and credentials")]
    Environment {
        /// Why.
        reason: String,
    },
}

/// A checked URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    url: Url,
}

impl Location {
    /// Checks a text.
    pub fn parse(text: &str) -> Result<Self, LocationError> {
        let url = Url::parse(text).map_err(|error| LocationError::NotAUrl { reason: error.to_string() })?;
        if !SCHEMES.contains(&url.scheme()) {
            return Err(LocationError::Scheme { scheme: url.scheme().to_owned() });
        }
        for (part, is_there) in [
            ("user", !url.username().is_empty()),
            ("password", url.password().is_some()),
            ("query", url.query().is_some()),
            ("fragment", url.fragment().is_some()),
        ] {
            if is_there {
                return Err(LocationError::Credentials { part });
            }
        }
        let has_host = url.host_str().is_some_and(|host| !host.is_empty());
        if url.scheme() != "file" && !has_host {
            return Err(LocationError::Incomplete { part: "bucket" });
        }
        let location = Self { url };
        if location.url.scheme() == "file" {
            location.folder()?;
        }
        Ok(location)
    }

    /// Takes region, account and credentials from the environment. Asks nobody yet: a store that cannot be reached, or
    /// that refuses, is found when it is used.
    pub fn open(&self) -> Result<Remote, LocationError> {
        // It fails only if there is one already.
        drop(rustls::crypto::ring::default_provider().install_default());
        let fail = |error: object_store::Error| LocationError::Environment { reason: error.to_string() };
        let retry =
            RetryConfig { max_retries: MAX_RETRIES, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
        let url = self.url.as_str();
        let store: Arc<dyn ObjectStore> = match self.url.scheme() {
            "s3" => {
                Arc::new(AmazonS3Builder::from_env().with_url(url).with_retry(retry).build().map_err(fail)?)
            }
            "gs" => {
                let builder = GoogleCloudStorageBuilder::from_env().with_url(url);
                Arc::new(builder.with_retry(retry).build().map_err(fail)?)
            }
            "az" => {
                let builder = MicrosoftAzureBuilder::from_env().with_url(url);
                Arc::new(builder.with_retry(retry).build().map_err(fail)?)
            }
            _ => {
                let folder = self.folder()?;
                // If it cannot be made now it may be later: each use tries.
                drop(DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&folder));
                let prefix = Path::from_absolute_path(&folder)
                    .map_err(|error| LocationError::Environment { reason: error.to_string() })?;
                return Ok(Remote::new(Arc::new(LocalFileSystem::new()), prefix));
            }
        };
        let prefix = Path::from_url_path(self.url.path())
            .map_err(|error| LocationError::Environment { reason: error.to_string() })?;
        Ok(Remote::new(store, prefix))
    }

    fn folder(&self) -> Result<PathBuf, LocationError> {
        let folder = self.url.to_file_path().ok().filter(|folder| folder.parent().is_some());
        folder.ok_or(LocationError::Incomplete { part: "folder" })
    }
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.url.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_or_refused_without_repeating_them() {
        for good in ["s3://bucket", "s3://bucket/a/b", "gs://bucket/a", "az://container", "file:///srv/kv"] {
            assert_eq!(Location::parse(good).unwrap().to_string(), good);
        }
        for (bad, what) in [
            ("", "no URL"),
            ("/srv/kv", "no URL"),
            ("http://secret.example/x", "scheme `http`"),
            ("s3://secret:word@bucket/a", "a user"),
            ("s3://:secret@bucket/a", "a password"),
            ("s3://bucket?secret=1", "a query"),
            ("gs://bucket#secret", "a fragment"),
            ("s3:///secret", "no bucket"),
            ("file:///", "no folder"),
            ("file://secret/x", "no folder"),
        ] {
            let error = Location::parse(bad).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("hint: "), "{bad}: {error}");
            assert!(!error.contains("secret"), "{bad}: {error}");
        }
    }
}
