//! The digests of all keys, and their tenants. The keys themselves are not kept.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use constant_time_eq::constant_time_eq_32;
use sha2::{Digest, Sha256};
use trunkline_scheduler::Priority;

use super::limiter::TenantLimits;

/// The shortest key in bytes. Shorter ones could be guessed.
pub const MIN_KEY_BYTES: usize = 16;
pub const MAX_KEY_BYTES: usize = 512;
pub const MAX_NAME_BYTES: usize = 64;
pub const MAX_SHARE: u32 = 1_000_000;

/// The SHA-256 digest of a key.
pub type KeyDigest = [u8; 32];

/// A group of keys that share cached prefixes, limits and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// The name in logs and metrics. It has only letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// The weight in the queue, at least 1. Tenants with waiting work divide the device's time in proportion to it.
    pub weight: u32,
    /// The weight of its guaranteed share of the KV cache, at least 1.
    pub share: u32,
    /// The highest priority class that it may use.
    pub max_priority: Priority,
    /// True if it may see which prefixes other tenants have cached.
    pub is_admin: bool,
    /// The models that it may use; `None` is all.
    pub models: Option<BTreeSet<String>>,
    /// The adapters that it may use; `None` is all.
    pub adapters: Option<BTreeSet<String>>,
    pub limits: TenantLimits,
}

impl Tenant {
    /// Creates a tenant with the defaults of the key file.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            weight: 1,
            share: 1,
            max_priority: Priority::Normal,
            is_admin: false,
            models: None,
            adapters: None,
            limits: TenantLimits::default(),
        }
    }
}

/// The digests of all keys. `Debug` does not show them.
#[derive(Clone, Default)]
pub struct KeyRing {
    tenants: Vec<Arc<Tenant>>,
    /// Digests with the index of their tenant.
    digests: Vec<(KeyDigest, usize)>,
}

/// The error for a key that is already in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuplicateKey;

impl KeyRing {
    /// Adds a tenant and returns its index. If the name exists, its index is returned and nothing changes.
    pub fn add_tenant(&mut self, tenant: Tenant) -> usize {
        if let Some(index) = self.tenants.iter().position(|known| known.name == tenant.name) {
            return index;
        }
        self.tenants.push(Arc::new(tenant));
        self.tenants.len() - 1
    }

    /// Adds a key of the tenant with this index.
    pub fn add_key(&mut self, digest: KeyDigest, tenant: usize) -> Result<(), DuplicateKey> {
        if self.digests.iter().any(|(known, _)| *known == digest) {
            return Err(DuplicateKey);
        }
        self.digests.push((digest, tenant));
        Ok(())
    }

    /// Returns the tenant of a key, if there is one. O(keys), and the time does not depend on whether the key is known.
    pub fn find(&self, key: &[u8]) -> Option<Arc<Tenant>> {
        let digest = digest(key);
        let mut found = None;
        for (known, tenant) in &self.digests {
            if constant_time_eq_32(known, &digest) {
                found = Some(*tenant);
            }
        }
        found.map(|tenant| self.tenants[tenant].clone())
    }

    /// Returns all tenants in the order in which they were added.
    pub fn tenants(&self) -> &[Arc<Tenant>] {
        &self.tenants
    }

    pub fn num_keys(&self) -> usize {
        self.digests.len()
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing").field("tenants", &self.tenants).field("num_keys", &self.num_keys()).finish()
    }
}

pub fn digest(key: &[u8]) -> KeyDigest {
    Sha256::digest(key).into()
}

/// Returns a description of what is wrong with a key, or `None`. The description does not quote the key.
pub fn key_problem(key: &str) -> Option<String> {
    if key.len() < MIN_KEY_BYTES {
        return Some(format!("has {} characters, must have at least {MIN_KEY_BYTES}", key.len()));
    }
    if key.len() > MAX_KEY_BYTES {
        return Some(format!("has {} bytes, the limit is {MAX_KEY_BYTES}", key.len()));
    }
    let is_sendable = key.bytes().all(|byte| byte.is_ascii_graphic());
    (!is_sendable).then(|| "has a space or another character that a header cannot contain".to_owned())
}
