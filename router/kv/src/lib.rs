//! The KV index of Trunkline. Pure: no clock, no I/O, no locks, no randomness that is not passed in.
pub mod salt;

pub use salt::Salt;
