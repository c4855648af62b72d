//! All tests of the crate, in one binary: each binary is linked by itself.

mod adaptive;
mod draw;
mod events;
mod eviction;
mod inspect;
mod model;
mod pins;
mod quotas;
mod store;
mod windows;
