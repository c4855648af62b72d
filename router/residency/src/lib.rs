//! Decides which of several models are in memory, and whose turn it is.
//!
//! The crate is pure: it has no clock, I/O, locks or randomness, and the same events give the same actions. One owner
//! reports what happens as [`Event`]s to a [`Residency`], carries out the [`Action`]s that it returns, and reports
//! their ends as events.
//!
//! - **Memory.** The models that are loading, loaded or unloading never need more than the limit. The bytes of a model
//!   are free only after [`Event::Unloaded`] or [`Event::Failed`]. A model is estimated before its first load, and the
//!   size that was measured at the last one counts from then on. If it is larger than expected, nothing is loaded until
//!   enough has been unloaded.
//! - **Turns.** Models are loaded one at a time, in the order in which they were wanted.
//! - **Eviction.** Idle models leave, those of the lowest priority first and then the least recently used, and only as
//!   many as are needed. A busy model is drained if the idle ones are not enough: its streams end, and its new requests
//!   wait for its next turn. A model stays for a while before it must leave ([`Settings::min_stay_ms`]), so models that
//!   do not fit together take turns. A pinned model never leaves.
//! - **Failures.** A model that fails is loaded again when it is wanted after a back-off, which doubles each time.
//!
//! A request asks [`Residency::may_begin`] and reports [`Event::Opened`] in one go if it may. Otherwise it reports
//! [`Event::Wanted`], and looks again whenever the state has changed. [`Residency::state`] says what it waits for, or
//! why it need not wait.

mod event;
mod eviction;
mod model;
mod residency;

pub use event::{Action, Event, KeepAlive, ModelId, ModelSettings, Settings, State, TooLarge};
pub use residency::Residency;
