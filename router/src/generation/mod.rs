//! Requests that run: admission, generation, stop strings and choices.

pub mod admission;
pub mod choices;
pub mod generate;
pub mod stops;
