//! A request in three forms: [`raw`] holds the fields as they were sent, [`checked`] has passed every limit, and
//! [`ready`] is complete with its prompt. Its computation, the scheduler's `SequenceRequest`, is made once by the
//! checks and then moved.

pub mod arrival;
pub mod avoid;
pub mod checked;
pub mod deadline;
pub mod number;
pub mod prompt_limits;
pub mod raw;
pub mod ready;
pub mod retention;
pub mod service_tier;
pub mod tokens;
