//! Loops for all other architectures.

use super::{Rate, read};

/// Returns nothing, because the instructions are not known.
pub fn rates() -> Vec<Rate> {
    Vec::new()
}

pub const READERS: [fn(&[u8]); 1] = [read];
