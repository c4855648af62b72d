//! The parts that every kernel of Trunkline is made of: instruction sets, vectors, weight formats and the KV pool.
//!
//! A crate is optimised as a whole on one core, so the kernels are several crates that are compiled side by side: this
//! one, products and attention. `trunkline-kernels` joins them to the step executor and re-exports their modules, so
//! nothing else depends on them. This crate uses the store's type of pieces, and no other crate of Trunkline.
//!
//! Nothing is inlined from one crate into another unless it is generic or `#[inline]`. Functions that a kernel calls
//! for each vector, row or block are therefore one or the other. [`vector::simd_entry`] compiles a kernel in the crate
//! that invokes it, or that calls it if it has a type parameter.
//!
//! Begin with [`vector`], then [`isa`]. [`pack`] and [`kv_pool`] have the memory layouts that kernels read.

pub mod aligned;
pub mod isa;
pub mod kv_pool;
pub mod ops;
pub mod pack;
pub mod shared_mut;
pub mod vector;
