//! The step scheduler of Trunkline. Pure: events in, plans out.
pub mod config;
pub mod event;
pub mod plan;
pub mod scheduler;
pub mod stats;

pub use config::SchedulerConfig;
pub use event::{
    EndReason, Event, Millis, Priority, RejectReason, SequenceId, SequenceRequest, ShardLimits, Update, Usage,
};
pub use plan::{
    BlockCopy, Chunk, SampledToken, SamplingParams, SequenceError, SequenceErrorCode, SequenceOutcome,
    SequenceResult, SequenceStart, StepPlan, StepResult, TokenLogprob,
};
pub use scheduler::Scheduler;
pub use stats::Stats;
pub use trunkline_kv::Salt;
