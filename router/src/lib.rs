//! router
/// proto
#[allow(missing_docs)]
pub mod proto { tonic::include_proto!("trunkline.shard.v1"); }
