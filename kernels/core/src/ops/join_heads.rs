//! Rows of heads that are put together from two parts.

/// Writes each of `num_heads` heads of the first part, followed by the same head of the second, to `out`. Panics unless
/// the lengths are whole heads and add up.
pub fn join_heads(parts: [&[f32]; 2], num_heads: usize, out: &mut [f32]) {
    let [first, second] = parts.map(|part| {
        assert!(part.len().is_multiple_of(num_heads), "{} elements of {num_heads} heads", part.len());
        part.len() / num_heads
    });
    assert_eq!(out.len(), parts[0].len() + parts[1].len());
    for (head, out) in out.chunks_exact_mut(first + second).enumerate() {
        out[..first].copy_from_slice(&parts[0][head * first..][..first]);
        out[first..].copy_from_slice(&parts[1][head * second..][..second]);
    }
}
