//! The namespaces of the KV index.

use std::cmp::Ordering;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use trunkline_contract::BlockKey;

const TENANT: &str = "tenant";
const ADAPTER: &str = "adapter";

/// A namespace of the KV index.
///
/// Sequences share blocks only if their salts are equal. The index compares the fields themselves and not a hash of
/// them, so two tenants can never share a block by a collision. Cloning is cheap.
///
/// ```
/// use trunkline_kv::Salt;
///
/// let salt = Salt::of_tenant("alice").with_cache_salt("project");
/// assert_eq!(salt.tenant(), Some("alice"));
/// assert_ne!(salt.root_key(), Salt::of_tenant("alice").root_key());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Salt {
    /// The tenant that sent the request; absent where no API keys are configured.
    pub tenant: Option<Arc<str>>,
    /// The weights applied on top of the model's.
    pub adapter: Option<SaltAdapter>,
    pub cache_salt: Option<Arc<str>>,
}

/// The adapter of a salt. Adapters with one hash are equal, whatever their names.
#[derive(Clone, Debug)]
pub struct SaltAdapter {
    pub hash: AdapterHash,
    /// The name by which a request asked for it, for events.
    pub name: Arc<str>,
}

impl PartialEq for SaltAdapter {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for SaltAdapter {}

impl PartialOrd for SaltAdapter {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SaltAdapter {
    fn cmp(&self, other: &Self) -> Ordering {
        self.hash.cmp(&other.hash)
    }
}

impl Hash for SaltAdapter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

/// A hash of an adapter's weights.
///
/// The name would not do: an adapter can come back under the same name with other weights, and blocks on disk and in
/// object stores outlive both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterHash(pub [u8; 32]);

impl AdapterHash {
    /// Returns the hash of the adapter where what it adds is multiplied by `scale`; the same for 1.
    ///
    /// ```
    /// use trunkline_kv::AdapterHash;
    ///
    /// let hash = AdapterHash([7; 32]);
    /// assert_eq!(hash.scaled(1.0), hash);
    /// assert_ne!(hash.scaled(0.5), hash.scaled(0.25));
    /// ```
    #[must_use]
    pub fn scaled(self, scale: f32) -> Self {
        let Self(mut bytes) = self;
        let difference = (scale.to_bits() ^ 1f32.to_bits()).to_le_bytes();
        bytes.iter_mut().zip(difference).for_each(|(byte, difference)| *byte ^= difference);
        Self(bytes)
    }
}

impl Salt {
    /// Returns the salt of a tenant's requests that name no adapter and no cache salt.
    pub fn of_tenant(tenant: &str) -> Self {
        Self { tenant: Some(tenant.into()), ..Self::default() }
    }

    /// Returns the namespace of a request's `cache_salt` within this one.
    #[must_use]
    pub fn with_cache_salt(self, cache_salt: &str) -> Self {
        Self { cache_salt: Some(cache_salt.into()), ..self }
    }

    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// Returns the key that precedes the first block of this salt.
    ///
    /// Different salts have different keys, because the number of parts and the first part tell which fields a key is
    /// made of:
    ///
    /// ```text
    /// 0 or 1  [cache_salt]                                       no tenant, no adapter
    /// 2 or 3  "tenant", name, [cache_salt]                       no adapter
    /// 2 or 3  "adapter", hash, [cache_salt]                      no tenant
    /// 4 or 5  "adapter", hash, "tenant", name, [cache_salt]
    /// ```
    pub fn root_key(&self) -> BlockKey {
        let adapter = self.adapter.as_ref().map(|SaltAdapter { hash: AdapterHash(bytes), .. }| {
            bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, byte| {
                write!(hex, "{byte:02x}").expect("a string takes all text");
                hex
            })
        });
        let adapter_parts = adapter.iter().flat_map(|hash| [ADAPTER, hash]);
        let tenant_parts = self.tenant.iter().flat_map(|name| [TENANT, name]);
        BlockKey::root(adapter_parts.chain(tenant_parts).chain(self.cache_salt.as_deref()))
    }
}
