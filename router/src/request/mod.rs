//! What a client asks for: first as it was sent, then with every limit checked.

pub mod deadline;
pub mod ready;
pub mod retention;
pub mod service_tier;
pub mod tokens;
pub mod validate;
