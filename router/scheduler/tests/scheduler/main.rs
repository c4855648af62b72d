//! All tests of the crate. They are one binary, because each binary is linked by itself.

mod adapters;
mod allocations;
mod behaviour;
#[path = "../../../../kernels/tests/kernels/counting.rs"]
mod counting;
mod drafts;
#[path = "../../../kv/tests/kv/draw.rs"]
mod draw;
mod fairness;
mod isolation;
mod kv_events;
mod lanes;
mod late_masks;
mod parts {
    mod budget;
    mod estimate;
    mod fairness;
    mod queue;
    mod step_cost;
}
mod pins;
mod poisons;
mod sim;
mod simulation;
mod store;
