//! The URL of an object store. It never holds credentials; those come from the environment.

use std::path::PathBuf;
use std::sync::Arc;

use url::Url;

use crate::folder::Folder;
use crate::remote::Remote;

const SCHEMES: [&str; 4] = ["s3", "gs", "az", "file"];

/// Describes why a text is not a valid location. The message never repeats the text, which may contain credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocationError {
    #[error(
        "is not a URL ({reason}); hint: use one such as s3://bucket/prefix, gs://bucket, az://container or file:///folder"
    )]
    NotAUrl { reason: String },
    #[error(
        "has the scheme `{scheme}`, expected s3, gs, az or file; hint: use a URL such as s3://bucket/prefix"
    )]
    Scheme { scheme: String },
    /// The URL contains a user, a password, a query or a fragment.
    #[error(
        "contains a {part}; hint: pass credentials in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )]
    Credentials { part: &'static str },
    /// The URL names no bucket, or no absolute folder.
    #[error("has no {part}; hint: use a URL such as s3://bucket/prefix or file:///folder")]
    Incomplete { part: &'static str },
    /// A region, an account or credentials are missing from the environment, or one of them is wrong.
    #[error("cannot be used: {reason}; hint: set region, account and credentials in the environment")]
    Environment { reason: String },
}

/// A valid location: a URL without credentials, with a bucket or an absolute folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    url: Url,
}

impl Location {
    /// Parses a URL and checks its scheme and parts.
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
    /// Nothing is read or written yet. A folder that cannot be used is reported at its first use.
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
    fn locations_are_parsed_or_refused_without_repeating_them() {
        for good in ["s3://bucket", "s3://bucket/a/b", "gs://bucket/a", "az://container", "file:///srv/kv"] {
            assert_eq!(Location::parse(good).unwrap().to_string(), good);
        }
        for (bad, what) in [
            ("", "not a URL"),
            ("/srv/kv", "not a URL"),
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
