//! API keys, the tenants that they identify, and the limits and permissions of each tenant.
//!
//! Without keys all clients are the same caller. With keys every route except the two probes requires one, and a
//! request shares cached prefixes only with requests of its own tenant.

mod access;
pub mod bucket;
mod caller;
mod key_file;
pub mod key_ring;
mod limiter;
mod memory;
mod network;
pub mod permits;
mod places;
pub mod rate_headers;

pub use access::{Access, AccessError};
pub use caller::Caller;
pub use key_file::read as read_key_file;
pub use key_ring::{KeyRing, Tenant};
pub use limiter::{LimitKind, Limiter, OpenPlaces, OverLimit, Rates, TenantLimits};
pub use memory::{HeldMemory, MemoryBudget, NoMemory};
pub use network::ClientNetwork;
pub use places::{HeldPlaces, SharedPlaces};
pub use rate_headers::{EXPOSED_HEADERS, RateHeaders, RateSlot};
