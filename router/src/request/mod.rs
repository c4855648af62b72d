//! A request in three forms: [`raw`] holds the fields as they were sent, [`checked`] has passed every limit, and
//! [`ready`] is complete with its prompt.

pub(crate) mod arrival;
pub(crate) mod avoid;
pub(crate) mod checked;
pub mod deadline;
pub(crate) mod number;
pub(crate) mod raw;
pub(crate) mod ready;
pub mod retention;
pub mod service_tier;
pub mod tokens;
