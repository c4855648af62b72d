//! Requests that run: admission, generation, stop strings, choices, and the fold of all events into one answer.

pub mod admission;
pub mod choices;
pub mod fold;
pub mod generate;
pub mod place;
pub mod served;
#[doc(hidden)]
pub mod stops;
