//! The configured keys, and the check that each request passes before it reaches its route.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::{HeaderMap, HeaderName, header};
use tokio::time::Instant;
use trunkline_scheduler::{TenantShare, TenantWeight};

use super::caller::Caller;
use super::key_file::{self, KeyFileError, MAX_FILE_BYTES};
use super::key_ring::{DuplicateKey, KeyRing, Tenant, digest, key_problem};
use super::limiter::{Limiter, TenantLimits};
use crate::error::ApiError;

/// OpenAI's text. LiteLLM recognizes a refused key only by these words.
const INCORRECT_KEY: &str = "Incorrect API key provided";
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const SCHEME: &[u8] = b"bearer ";
/// The tenant of the key in the environment.
const DEFAULT_TENANT: &str = "default";
/// The permission bit that lets every user read a file.
const WORLD_READABLE: u32 = 0o004;

/// The reason why the keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("`--api-keys`: cannot read `{path}`: {source}")]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`--api-keys`: `{path}` {source}")]
    Invalid {
        path: PathBuf,
        #[source]
        source: KeyFileError,
    },
    #[error("`TRUNKLINE_API_KEY` {problem}")]
    Variable {
        /// The text must not contain the key.
        problem: String,
    },
}

/// The configured keys, which [`Access::reload`] replaces.
#[derive(Debug, Default)]
pub struct Access {
    file: Option<PathBuf>,
    /// True if strangers may call without a key. They see nothing of the KV cache.
    is_exposed: bool,
    /// The digest of the key in the environment.
    variable: Option<[u8; 32]>,
    ring: RwLock<Option<Arc<KeyRing>>>,
    /// The limiters of the tenants that have limits, by name. They are kept when the file is reloaded.
    limiters: RwLock<BTreeMap<String, Arc<Limiter>>>,
}

impl Access {
    /// Admits all requests without a key.
    pub fn open() -> Self {
        Self::default()
    }

    /// Reads the keys of a file and adds the key from the environment. Without both, all requests are admitted.
    pub fn new(file: Option<PathBuf>, variable: Option<&str>) -> Result<Self, AccessError> {
        if let Some(problem) = variable.and_then(key_problem) {
            return Err(AccessError::Variable { problem });
        }
        let variable = variable.map(|key| digest(key.as_bytes()));
        let access = Self { file, variable, ..Self::default() };
        access.reload()?;
        Ok(access)
    }

    /// Notes that the server is reachable from other machines.
    pub fn set_exposed(&mut self) {
        self.is_exposed = true;
    }

    /// Reads the file again. If it cannot be used, nothing changes.
    pub fn reload(&self) -> Result<(), AccessError> {
        if self.file.is_none() && self.variable.is_none() {
            return Ok(());
        }
        let mut ring = match &self.file {
            Some(path) => read(path)?,
            None => KeyRing::default(),
        };
        if let Some(digest) = self.variable {
            let name = DEFAULT_TENANT.to_owned();
            let tenant = ring.add_tenant(Tenant { is_admin: self.file.is_none(), ..Tenant::new(name) });
            // A key that is also in the file keeps its tenant from there.
            let (Ok(()) | Err(DuplicateKey)) = ring.add_key(digest, tenant);
        }
        tracing::info!(tenants = ring.tenants().len(), keys = ring.num_keys(), "API keys loaded");
        self.set_limits(&ring);
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(ring));
        Ok(())
    }

    fn set_limits(&self, ring: &KeyRing) {
        let now = Instant::now();
        let mut known = self.limiters.write().unwrap_or_else(PoisonError::into_inner);
        let limited = ring.tenants().iter().filter(|tenant| tenant.limits != TenantLimits::default());
        let limiters = limited.map(|tenant| {
            let limiter = known.remove(&tenant.name).inspect(|known| known.set_limits(tenant.limits, now));
            let limiter = limiter.unwrap_or_else(|| Arc::new(Limiter::new(tenant.limits, now)));
            (tenant.name.clone(), limiter)
        });
        let limiters = limiters.collect();
        *known = limiters;
    }

    pub fn limiter(&self, tenant: &str) -> Option<Arc<Limiter>> {
        self.limiters.read().unwrap_or_else(PoisonError::into_inner).get(tenant).cloned()
    }

    /// Returns the keys, or `None` if none are configured.
    pub fn ring(&self) -> Option<Arc<KeyRing>> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if the keys come from a file, which can be reloaded.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    pub fn shares(&self) -> Vec<TenantShare> {
        let ring = self.ring().unwrap_or_default();
        let share =
            |tenant: &Arc<Tenant>| TenantShare { tenant: tenant.name.as_str().into(), weight: tenant.share };
        ring.tenants().iter().map(share).collect()
    }

    pub fn weights(&self) -> Vec<TenantWeight> {
        let ring = self.ring().unwrap_or_default();
        let weight = |tenant: &Arc<Tenant>| TenantWeight {
            tenant: tenant.name.as_str().into(),
            weight: tenant.weight,
        };
        ring.tenants().iter().map(weight).collect()
    }

    /// Returns the caller that the headers identify, or an error if the route needs a key and none is valid.
    pub fn caller(&self, needs_key: bool, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let Some(ring) = self.ring() else {
            return Ok(if self.is_exposed { Caller::stranger() } else { Caller::anybody() });
        };
        let keys = sent_keys(headers);
        // A client may send both headers, one of them with the key of another service.
        let tenant = keys.into_iter().flatten().find_map(|key| ring.find(key));
        match tenant {
            Some(tenant) => Ok(Caller::of_tenant(tenant)),
            // A probe is answered even with an unknown key.
            None if !needs_key => Ok(Caller::stranger()),
            None if keys == [None; 2] => Err(ApiError::InvalidApiKey { problem: "no API key was sent" }),
            None => Err(ApiError::InvalidApiKey { problem: INCORRECT_KEY }),
        }
    }
}

/// Returns the keys in `Authorization: Bearer KEY` (RFC 6750, section 2.1) and in `x-api-key: KEY`.
fn sent_keys(headers: &HeaderMap) -> [Option<&[u8]>; 2] {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(SCHEME.len())?;
        scheme.eq_ignore_ascii_case(SCHEME).then(|| key.trim_ascii())
    });
    [bearer, headers.get(X_API_KEY).map(|value| value.as_bytes().trim_ascii())]
}

fn read(path: &Path) -> Result<KeyRing, AccessError> {
    let unreadable = |source| AccessError::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.permissions().mode() & WORLD_READABLE != 0 {
        tracing::warn!(path = %path.display(), "all users of the machine can read the API keys; hint: use `chmod 600`");
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(unreadable(io::Error::other(format!("it is larger than {MAX_FILE_BYTES} bytes"))));
    }
    key_file::read(&text).map_err(|source| AccessError::Invalid { path: path.to_owned(), source })
}
