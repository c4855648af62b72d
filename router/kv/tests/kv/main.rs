//! All tests of the crate, in one binary: each binary is linked by itself.

mod adaptive;
mod draw;
mod events;
mod eviction;
mod inspect;
mod model;
mod parts {
    mod events;
    mod evict;
    mod ghost;
    mod history;
    mod key;
    mod low;
    mod path_table;
    mod pool;
    mod reuse;
    mod reuse_policy;
    mod salt;
    mod shelves;
    mod store_pins;
}
mod pins;
mod quotas;
mod store;
mod windows;
