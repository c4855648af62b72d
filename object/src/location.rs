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

    /// Returns the variables to set if the environment names no source of credentials, so that only a role of this
    /// machine could give access; `None` if it names one, or if the store needs none.
    ///
    /// `is_set` says whether a variable is there.
    pub fn missing_credentials(&self, is_set: impl Fn(&str) -> bool) -> Option<&'static str> {
        let (sources, wanted): (&[&str], _) = match self.url.scheme() {
            "s3" => (
                &[
                    "AWS_ACCESS_KEY_ID",
                    "AWS_WEB_IDENTITY_TOKEN_FILE",
                    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                    "AWS_SKIP_SIGNATURE",
                ],
                "`AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`",
            ),
            "gs" => (
                &[
                    "GOOGLE_SERVICE_ACCOUNT",
                    "GOOGLE_SERVICE_ACCOUNT_PATH",
                    "GOOGLE_SERVICE_ACCOUNT_KEY",
                    "GOOGLE_APPLICATION_CREDENTIALS",
                    "GOOGLE_BEARER_TOKEN",
                    "GOOGLE_SKIP_SIGNATURE",
                ],
                "`GOOGLE_SERVICE_ACCOUNT`",
            ),
            "az" => (
                &[
                    "AZURE_STORAGE_ACCOUNT_KEY",
                    "AZURE_STORAGE_ACCESS_KEY",
                    "AZURE_STORAGE_SAS_KEY",
                    "AZURE_STORAGE_SAS_TOKEN",
                    "AZURE_STORAGE_TOKEN",
                    "AZURE_STORAGE_CLIENT_SECRET",
                    "AZURE_CLIENT_SECRET",
                    "AZURE_FEDERATED_TOKEN_FILE",
                    "AZURE_STORAGE_USE_EMULATOR",
                    "AZURE_USE_AZURE_CLI",
                    "AZURE_SKIP_SIGNATURE",
                ],
                "`AZURE_STORAGE_ACCOUNT_KEY`",
            ),
            _ => return None,
        };
        (!sources.iter().any(|source| is_set(source))).then_some(wanted)
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
    fn any_source_of_credentials_suffices() {
        let missing =
            |url: &str, set: &str| Location::parse(url).unwrap().missing_credentials(|name| name == set);
        let keys = Some("`AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`");
        assert_eq!(missing("s3://bucket/a", "AWS_REGION"), keys);
        assert_eq!(missing("s3://bucket/a", "AWS_ACCESS_KEY_ID"), None);
        assert_eq!(missing("s3://bucket/a", "AWS_WEB_IDENTITY_TOKEN_FILE"), None);
        assert_eq!(missing("gs://bucket", "AWS_ACCESS_KEY_ID"), Some("`GOOGLE_SERVICE_ACCOUNT`"));
        assert_eq!(missing("gs://bucket", "GOOGLE_APPLICATION_CREDENTIALS"), None);
        assert_eq!(
            missing("az://container", "AZURE_STORAGE_ACCOUNT_NAME"),
            Some("`AZURE_STORAGE_ACCOUNT_KEY`")
        );
        assert_eq!(missing("az://container", "AZURE_FEDERATED_TOKEN_FILE"), None);
        assert_eq!(missing("file:///srv/kv", ""), None);
    }

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
