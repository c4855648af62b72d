//! Requests that run, from their checks to the last token's text.
//!
//! [`request`] checks every value of a request against the model and the limits and makes its prompt, [`grammars`]
//! compiles and keeps grammars, and [`generate`] submits the request to the engine. Its tokens become text, end at stop
//! strings ([`stops`]), and leave as events or folded into one answer ([`fold`]). [`served`] ties model, engine and
//! limits together, and [`adapters`] has what requests may name beside the model. Nothing here knows a dialect. It may
//! use `trunkline-base`, `-http` and `-engine`. Begin with [`request`] and [`generate`].

pub mod adapters;
pub mod admission;
pub mod answer_memory;
pub mod choices;
pub mod failure;
pub mod fold;
pub mod generate;
pub mod grammars;
pub mod model;
pub mod models;
pub mod place;
pub mod request;
pub mod served;
pub mod stops;
pub mod vectors;
