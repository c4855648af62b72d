//! Requests that run: admission, generation, stop strings, choices, and the fold of all events into one answer.

pub(crate) mod admission;
pub(crate) mod answer_memory;
pub(crate) mod choices;
pub(crate) mod fold;
pub mod generate;
pub(crate) mod place;
pub(crate) mod served;
#[doc(hidden)]
pub mod stops;
pub(crate) mod vectors;
