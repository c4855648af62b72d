//! From logits to a token: penalties, filters and the counter-based generator, as docs/architecture.md, "Sampling".

#[doc(hidden)]
pub mod buckets;
pub mod philox;
pub mod processors;
pub mod sampler;
#[doc(hidden)]
pub mod scan;
mod score;
mod typical;
#[doc(hidden)]
pub mod watermark;

pub use processors::TokenCounts;
pub use sampler::{NotFinite, Place, SampledToken, Sampler};
pub use score::TokenScore;
pub use trunkline_contract::{SamplingParams, Watermark};
