//! Drafts of the next tokens of a sequence, for speculative decoding without a second model.
//!
//! Answers repeat what is in their context: quotes, edited files, names of arguments, loops. A [`Drafter`] looks for an
//! earlier place at which its sequence read as it does now, and drafts the tokens that followed there. Each draft has
//! a probability, which is measured on the sequence itself, so that callers can tell drafts that pay from those that
//! cost. It also looks into [`RecentOutputs`] of other sequences that may know of each other.
//!
//! The crate is pure and deterministic, and uses no other crate of ours. Its work for each token is bounded whatever
//! the text is, so that a prompt cannot make it slow. The idea is that of prompt lookup and of suffix decoding
//! (arXiv:2411.04975), with the index of a Lempel-Ziv compressor in place of a suffix tree: it needs 20 to 36 bytes a
//! token. Begin with [`Drafter`].

mod acceptance;
mod drafter;
mod recent;
mod text;

pub use drafter::{Draft, Drafter};
pub use recent::{MAX_RECENT_TOKENS, RecentOutputs};
