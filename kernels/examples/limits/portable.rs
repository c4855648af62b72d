//! Loops for all other architectures.

use super::Rate;

/// Returns nothing, because the instructions are not known.
pub fn rates() -> Vec<Rate> {
    Vec::new()
}

pub const READERS: [fn(&[u8]); 1] = [read];

fn read(bytes: &[u8]) {
    let sums = bytes.chunks_exact(64).fold([0u8; 64], |mut sums, line| {
        sums.iter_mut().zip(line).for_each(|(sum, byte)| *sum ^= byte);
        sums
    });
    std::hint::black_box(sums);
}
