//! Sampling: penalties, filters and the counter-based random generator. `docs/parts/sampling.md` describes the order.

pub mod buckets;
pub mod philox;
pub mod processors;
pub mod sampler;
pub mod scan;
mod score;
mod sigma;
mod typical;
pub mod watermark;
pub mod xtc;

pub use processors::{SampleContext, TokenCounts};
pub use sampler::{NotFinite, SampledToken, Sampler};
pub use score::TokenScore;
pub use trunkline_contract::{SamplingParams, Watermark};
