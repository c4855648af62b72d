//! A request in three forms: `raw` as it was sent, `checked` against every limit, `ready` with its prompt.

pub mod arrival;
pub mod checked;
pub mod deadline;
pub mod raw;
pub mod ready;
pub mod retention;
pub mod service_tier;
pub mod tokens;
