//! The choice of tokens.

mod philox;
mod processors;
mod sampler;
mod scan;
mod score;
mod watermark;
