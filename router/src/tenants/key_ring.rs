//! The keys in memory: digests alone, and whose they are.

use std::fmt;
use std::sync::Arc;

use constant_time_eq::constant_time_eq_32;
use sha2::{Digest, Sha256};

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
    /// Weight of its guaranteed share of the KV cache; at least 1.
    pub share: u32,
    /// May see what other tenants have cached.
    pub is_admin: bool,
    /// How much it may send.
    pub limits: TenantLimits,
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

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "sk-0123456789abcdef";

    fn ring() -> KeyRing {
        let mut ring = KeyRing::default();
        for (index, name) in ["alice", "bob"].into_iter().enumerate() {
            let tenant = ring.add_tenant(Tenant {
                name: name.into(),
                share: 1,
                is_admin: false,
                limits: TenantLimits::default(),
            });
            assert_eq!(tenant, index);
            ring.add_key(digest(format!("{KEY}-{name}").as_bytes()), tenant).unwrap();
        }
        ring
    }

    #[test]
    fn a_key_finds_its_tenant_and_nothing_else_does() {
        let ring = ring();
        let name = |key: &str| ring.find(key.as_bytes()).map(|tenant| tenant.name.clone());
        assert_eq!(name(&format!("{KEY}-alice")).as_deref(), Some("alice"));
        assert_eq!(name(&format!("{KEY}-bob")).as_deref(), Some("bob"));
        for key in ["", KEY, &format!("{KEY}-alic"), &format!("{KEY}-alicee"), &format!("{KEY}-Alice")] {
            assert_eq!(name(key), None, "{key}");
        }
    }

    #[test]
    fn a_key_has_one_tenant() {
        let mut ring = ring();
        assert_eq!(ring.add_key(digest(format!("{KEY}-alice").as_bytes()), 1), Err(DuplicateKey));
    }

    #[test]
    fn debug_output_holds_no_key_and_no_digest() {
        let text = format!("{:?}", ring());
        assert!(text.contains("alice") && text.contains("num_keys: 2"), "{text}");
        assert!(!text.contains(KEY) && !text.contains("digests"), "{text}");
    }

    #[test]
    fn keys_are_long_enough_and_can_be_sent() {
        assert_eq!(key_problem(&"x".repeat(MIN_KEY_BYTES)), None);
        assert_eq!(key_problem(&"x".repeat(MAX_KEY_BYTES)), None);
        for key in [
            "x".repeat(MIN_KEY_BYTES - 1),
            "x".repeat(MAX_KEY_BYTES + 1),
            format!("{KEY} "),
            format!("{KEY}é"),
        ] {
            let problem = key_problem(&key).unwrap();
            assert!(!problem.contains(&key), "{problem}");
        }
    }
}
