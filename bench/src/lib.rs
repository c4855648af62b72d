//! `trunkline bench`: sends requests to a server of the OpenAI API and measures its answers.
//!
//! ```text
//! args       the command line; `plan` is what it asks for, checked
//! workload/  what is asked: made from a seed, from files, or from a trace
//! arrivals   when requests are sent
//! compose    the bodies of requests
//! client/    HTTP, TLS, events
//! server     a server before it is measured
//! run        sends the requests of one load; `live` shows how far it is, `record` is what is known of a request
//! metrics    the figures of a run
//! report/    table, JSON, page, comparison
//! session    runs loads one after the other, on one server or on two by turns
//! ```
//!
//! Workloads, arrivals and metrics are pure. The crate uses no other one of ours. Begin with [`session`] and [`run`].
//!
//! ```
//! use trunkline_bench::metrics::percentile;
//!
//! assert_eq!(percentile(&[1.0, 2.0, 4.0], 75.0), 3.0);
//! ```

pub mod args;
pub mod arrivals;
pub mod client;
pub mod compose;
pub mod error;
pub mod live;
pub mod metrics;
pub mod plan;
pub mod random;
pub mod record;
pub mod report;
pub mod run;
pub mod server;
pub mod session;
pub mod workload;

pub use args::BenchArgs;
pub use error::BenchError;
pub use session::run;
