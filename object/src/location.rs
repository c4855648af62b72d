//! The URL of an object store, as a person writes it. Credentials never stand in it: they come from the environment.

use std::path::PathBuf;
use std::sync::Arc;

use url::Url;

use crate::folder::Folder;
use crate::remote::Remote;

const SCHEMES: [&str; 4] = ["s3", "gs", "az", "file"];

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

    /// Opens a folder (`file:///…`). Returns `None` for a store in a cloud, which `trunkline-object-cloud` opens.
    ///
    /// Nothing is read or written yet: a folder that cannot be used is found at its first use.
    pub fn open_folder(&self) -> Option<Remote> {
        let folder = (self.url.scheme() == "file").then(|| self.folder())?.ok()?;
        Some(Remote::new(Arc::new(Folder::new(folder)), ""))
    }

    /// Returns the URL, which holds no credentials.
    pub fn url(&self) -> &Url {
        &self.url
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
