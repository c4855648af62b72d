use trunkline_kernels::shared_mut::SharedMut;

#[test]
fn parts_are_disjoint_views_of_one_slice() {
    let mut values = [0u32; 8];
    let shared = SharedMut::new(&mut values);
    // SAFETY: the two parts do not overlap.
    let (low, high) = unsafe { (shared.slice_mut(0..4), shared.part(4..8).slice_mut(1..2)) };
    low.fill(1);
    high.fill(2);
    assert_eq!(values, [1, 1, 1, 1, 0, 2, 0, 0]);
}

#[test]
#[should_panic(expected = "outside of 0..3")]
fn out_of_bounds_part_panics() {
    SharedMut::new(&mut [0u8; 3]).part(1..4);
}
