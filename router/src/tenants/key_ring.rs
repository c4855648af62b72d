//! The keys in memory: digests alone, and whose they are.

use std::fmt;
use std::sync::Arc;

use constant_time_eq::constant_time_eq_32;
use sha2::{Digest, Sha256};
use trunkline_scheduler::Priority;

use super::limiter::TenantLimits;

/// Shortest key in bytes: what is shorter can be tried out.
pub const MIN_KEY_BYTES: usize = 16;
/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 512;
/// Longest name of a tenant in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Greatest weight of a tenant's share.
pub const MAX_SHARE: u32 = 1_000_000;

/// SHA-256 of a key.
pub type KeyDigest = [u8; 32];

/// A group of keys that share what is cached, its quota and its counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Letters, digits, `.`, `_` and `-`: it stands in logs and metrics.
    pub name: String,
    /// Weight in the queue: its part of what the device can do, of those that have work waiting. At least 1.
    pub weight: u32,
    /// Weight of its guaranteed share of the KV cache; at least 1.
    pub share: u32,
    /// The highest class that it may ask for.
    pub max_priority: Priority,
    /// May see what other tenants have cached.
    pub is_admin: bool,
    /// How much it may send.
    pub limits: TenantLimits,
}

impl Tenant {
    /// With nothing but what all have.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            weight: 1,
            share: 1,
            max_priority: Priority::Normal,
            is_admin: false,
            limits: TenantLimits::default(),
        }
    }
}

/// All keys. It knows their digests only, and `Debug` does not show these either.
#[derive(Clone, Default)]
pub struct KeyRing {
    tenants: Vec<Arc<Tenant>>,
    /// With the index of the tenant.
    digests: Vec<(KeyDigest, usize)>,
}

/// A key that two tenants have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuplicateKey;

impl KeyRing {
    /// Adds a tenant, or finds the one of that name.
    pub fn add_tenant(&mut self, tenant: Tenant) -> usize {
        if let Some(index) = self.tenants.iter().position(|known| known.name == tenant.name) {
            return index;
        }
        self.tenants.push(Arc::new(tenant));
        self.tenants.len() - 1
    }

    /// Adds a key of the tenant with that index.
    pub fn add_key(&mut self, digest: KeyDigest, tenant: usize) -> Result<(), DuplicateKey> {
        if self.digests.iter().any(|(known, _)| *known == digest) {
            return Err(DuplicateKey);
        }
        self.digests.push((digest, tenant));
        Ok(())
    }

    /// Whose key it is. Takes the same time wherever the key stands and whether it is there: O(keys).
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

    /// All tenants, in a fixed order.
    pub fn tenants(&self) -> &[Arc<Tenant>] {
        &self.tenants
    }

    /// How many keys there are.
    pub fn num_keys(&self) -> usize {
        self.digests.len()
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing").field("tenants", &self.tenants).field("num_keys", &self.num_keys()).finish()
    }
}

/// SHA-256 of a key.
pub fn digest(key: &[u8]) -> KeyDigest {
    Sha256::digest(key).into()
}

/// What is wrong with a key, in words that do not quote it.
pub fn key_problem(key: &str) -> Option<String> {
    if key.len() < MIN_KEY_BYTES {
        return Some(format!("has {} characters, must have at least {MIN_KEY_BYTES}", key.len()));
    }
    if key.len() > MAX_KEY_BYTES {
        return Some(format!("has {} bytes, the limit is {MAX_KEY_BYTES}", key.len()));
    }
    let is_sendable = key.bytes().all(|byte| byte.is_ascii_graphic());
    (!is_sendable).then(|| "holds a blank or another character that no header can carry".to_owned())
}
