//! Everything that speaks to the shard: the generated protocol, its conversion to the scheduler's plain types, the link
//! that keeps a Step stream open, and the health poll.

mod convert;
mod health;
mod info;
mod link;
mod local_store;
mod masks;
mod sampling;
mod store;

pub use convert::{plan_from_proto, plan_to_proto, result_from_proto, transfers_from_proto};
pub use health::{Health, watch_health};
pub use info::ShardInfo;
pub use link::{LinkEvent, StepMessage, connect, run_link};
pub(in crate::engine) use local_store::LocalStore;
pub use local_store::StoreGate;
pub use masks::{KnownMasks, NamedMasks};

/// The contract version that this build speaks.
pub const CONTRACT_VERSION: u32 = 5;

/// What the router knows of its shard now.
#[derive(Debug, Clone, Default)]
pub enum ShardStatus {
    /// It was never there: the model is loading.
    #[default]
    Loading,
    /// A Step stream is open.
    Ready(std::sync::Arc<ShardInfo>),
    /// It was there and is gone; the link tries again.
    Lost,
}

/// Types and services that `make proto` generates from `proto/trunkline/shard/v1/shard.proto`.
#[allow(missing_docs, clippy::all)]
pub mod proto {
    include!("generated/trunkline.shard.v1.rs");
}

/// Why the shard cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// Nothing listens on the socket, or it went away.
    #[error("cannot reach the shard at `{socket}`: {source}")]
    Unreachable {
        /// Path of the socket.
        socket: String,
        /// Why.
        #[source]
        source: tonic::transport::Error,
    },
    /// A call failed.
    #[error("shard call `{call}` failed: {} ({:?})", status.message(), status.code())]
    Call {
        /// Which.
        call: &'static str,
        /// The shard's status.
        status: Box<tonic::Status>,
    },
    /// A call took too long.
    #[error("shard call `{call}` took longer than {limit_ms} ms")]
    Timeout {
        /// Which.
        call: &'static str,
        /// The limit.
        limit_ms: u128,
    },
    /// The shard speaks another contract.
    #[error(
        "shard speaks contract version {found}, this router speaks {expected}; hint: install both from one release"
    )]
    ContractVersion {
        /// The shard's.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// `Describe` or a result holds a value that cannot be.
    #[error("shard sent an invalid message: {detail}")]
    InvalidMessage {
        /// What.
        detail: String,
    },
    /// The shard ended the Step stream.
    #[error("shard ended the step stream")]
    StreamEnded,
}
