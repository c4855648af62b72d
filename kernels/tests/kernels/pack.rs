use trunkline_kernels::pack::{Format, InterleavedHeads, PackError, SourceRows};

#[test]
fn interleaved_heads_are_put_in_order() {
    // Two heads of six rows of one number each, stored as 0 3 1 4 2 5.
    let stored = [0u32, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15].map(u32::to_le_bytes).concat();
    let rows = SourceRows::new(Format::F32, &stored, 12, 1).unwrap();
    let read = |head_size, rotary_size| {
        let ordered = rows.interleaved(InterleavedHeads { head_size, rotary_size }).unwrap();
        (0..12).map(|row| ordered.row(row)[0]).collect::<Vec<u8>>()
    };
    assert_eq!(read(6, 6), [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]);
    // Only the first four rows of a head.
    assert_eq!(read(6, 4), [0, 1, 3, 4, 2, 5, 10, 11, 13, 14, 12, 15]);
    for (head_size, rotary_size) in [(0, 0), (6, 0), (6, 5), (6, 8), (8, 8)] {
        let error = rows.interleaved(InterleavedHeads { head_size, rotary_size }).unwrap_err();
        assert_eq!(error, PackError::Heads { num_rows: 12, head_size, rotary_size });
    }
}
