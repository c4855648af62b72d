//! All tests of the crate, in one binary: each binary is linked by itself.

mod draw;
mod events;
mod eviction;
mod inspect;
mod model;
mod parts {
    mod events;
    mod history;
    mod key;
    mod low_priority;
    mod lru;
    mod pool;
    mod reuse_times;
    mod salt;
    mod store_pins;
    mod worth;
}
mod pins;
mod quotas;
mod states;
mod store;
mod support;
mod windows;
