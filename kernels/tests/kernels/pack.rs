use trunkline_kernels::pack::{Format, PackError, SourceRows};

#[test]
fn interleaved_heads_are_put_in_order() {
    // Two heads of six rows of one number each, stored as 0 3 1 4 2 5.
    let stored = [0u32, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15].map(u32::to_le_bytes).concat();
    let rows = SourceRows::new(Format::F32, &stored, 12, 1).unwrap();
    let ordered = rows.interleaved(6).unwrap();
    let read: Vec<u8> = (0..12).map(|row| ordered.row(row)[0]).collect();
    assert_eq!(read, [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]);
    for head_size in [0, 5, 8] {
        assert_eq!(rows.interleaved(head_size).unwrap_err(), PackError::Heads { num_rows: 12, head_size });
    }
}
