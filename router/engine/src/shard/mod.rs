//! The connection to the shard: the generated service, the link that keeps a Step stream open, and the health poll.

mod adapters;
mod client;
mod health;
mod info;
mod link;
mod local_store;
mod masks;
mod store;

pub use adapters::{OpenAdapterError, OpenedAdapter, open_adapter};
pub use client::connect;
pub use health::{Check, HangWatch, Health, watch_health};
pub use info::{ShardInfo, Vectors};
pub use link::{LinkEnd, LinkEvent, run_link};
pub(crate) use local_store::LocalStore;
pub use local_store::StoreGate;
pub use masks::{NAMES as MASK_NAMES, NamedMasks};
pub use store::stored_blocks_from_proto;

/// The contract version that this build speaks.
pub const CONTRACT_VERSION: u32 = 13;

/// The state of the connection to the shard.
#[derive(Debug, Clone, Default)]
pub enum ShardStatus {
    /// The shard was never connected; it is loading the model.
    #[default]
    Loading,
    /// A Step stream is open.
    Ready(std::sync::Arc<ShardInfo>),
    /// The connection to this shard was lost; the link tries again.
    Lost(std::sync::Arc<ShardInfo>),
}

impl ShardStatus {
    /// Returns the status of a model whose lanes have these: the best of them.
    pub fn of_model(lanes: &[Self]) -> Self {
        let find = |which: fn(&Self) -> bool| lanes.iter().find(|lane| which(lane)).cloned();
        let ready = find(|lane| matches!(lane, Self::Ready(_)));
        ready.or_else(|| find(|lane| matches!(lane, Self::Lost(_)))).unwrap_or_default()
    }
}

/// The messages of `proto/trunkline/shard/v1/shard.proto`, and its service, which `make proto` generates.
#[allow(missing_docs, clippy::all)]
pub mod proto {
    pub use trunkline_contract::proto::*;

    include!("generated/trunkline.shard.v1.rs");
}

/// The reason why the shard cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// Nothing listens on the socket, or the socket does not exist.
    #[error("cannot reach the shard at `{socket}`: {source}")]
    Unreachable {
        socket: String,
        #[source]
        source: tonic::transport::Error,
    },
    #[error(
        "shard has the {field} `{found}`, that of lane {lane} has `{expected}`; hint: start all shards with the same model \
         and settings"
    )]
    Differs { field: &'static str, found: String, expected: String, lane: u32 },
    #[error("shard call `{call}` failed: {} ({:?})", status.message(), status.code())]
    Call { call: &'static str, status: Box<tonic::Status> },
    #[error("shard call `{call}` took longer than {limit_ms} ms")]
    Timeout { call: &'static str, limit_ms: u128 },
    #[error(
        "shard speaks contract version {found}, this router speaks {expected}; hint: install both from one release"
    )]
    ContractVersion { found: u32, expected: u32 },
    /// `Describe` or a result has an impossible value.
    #[error("shard sent an invalid message: {detail}")]
    InvalidMessage { detail: String },
    #[error("shard ended the step stream")]
    StreamEnded,
    #[error("shard does not answer or its step does not end; its sequences go on with another one")]
    Left,
}
