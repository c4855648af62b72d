//! What separates one namespace of the KV index from another.
use trunkline_contract::BlockKey;

use std::sync::Arc;

/// First of at least two parts: the second is a tenant.
const TENANT: &str = "tenant";

/// Key of one namespace of the KV index: model, adapter and tenant or cache salt.
///
/// Two sequences share blocks only if their salts are equal. The parts themselves are kept and compared, not a hash of
/// them, so two tenants can never meet by collision. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Salt(Arc<[Box<str>]>);

impl Salt {
    /// The salt made of `parts` in order; `["ab", "c"]` and `["a", "bc"]` differ. No parts: the default salt.
    pub fn new(parts: &[&str]) -> Self {
        Self(parts.iter().map(|&part| Box::from(part)).collect())
    }

    /// The salt of a tenant, and within it of `parts`: never equal to that of another tenant or of none.
    ///
    /// Whoever makes salts without a tenant gives [`Salt::new`] at most one part.
    pub fn of_tenant(tenant: &str, parts: &[&str]) -> Self {
        let all = [TENANT, tenant].into_iter().chain(parts.iter().copied());
        Self(all.map(Box::from).collect())
    }

    /// The tenant that it was made for.
    pub fn tenant(&self) -> Option<&str> {
        match &*self.0 {
            [mark, tenant, ..] if &**mark == TENANT => Some(tenant),
            _ => None,
        }
    }

    /// The parts it was made of.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// The key before the first block of this salt.
    pub fn root_key(&self) -> BlockKey {
        BlockKey::root(self.parts())
    }
}
