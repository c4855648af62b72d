//! Tests of sampling and its parts.

mod philox;
mod processors;
mod sampler;
mod scan;
mod score;
mod watermark;
