//! The ground of every layer of the router.
//!
//! [`limits`] has every limit of a server, [`error`] the errors of requests with their codes and classes, [`tenants`]
//! keys, rates and shares, [`metrics`] the registry, [`trace`] the record of a request, and [`log`] the lines of the
//! log. Nothing here knows routes, the shard or the plans of steps. Other crates of the router use this one; it uses
//! leaf crates, and types of the scheduler, grammars and texts. Begin with [`error`] and [`limits`].

pub mod clock;
pub mod error;
pub mod limits;
pub mod log;
pub mod machine;
pub mod metrics;
pub mod random;
pub mod repeats;
pub mod request_id;
pub mod shutdown;
pub mod tenants;
pub mod trace;
pub mod watermark;
