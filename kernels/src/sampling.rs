//! Sampling: penalties, filters and the counter-based random generator. `docs/parts/sampling.md` describes the order.

#[doc(hidden)]
pub mod buckets;
pub mod philox;
pub mod processors;
pub mod sampler;
#[doc(hidden)]
pub mod scan;
mod score;
mod sigma;
mod typical;
#[doc(hidden)]
pub mod watermark;
#[doc(hidden)]
pub mod xtc;

pub use processors::{SampleContext, TokenCounts};
pub use sampler::{NotFinite, SampledToken, Sampler};
pub use score::TokenScore;
pub use trunkline_contract::{SamplingParams, Watermark};
