use trunkline_kernels::aligned::{ALIGNMENT_BYTES, AlignedBytes};

/// The size from which on buffers are mapped.
const HUGE_PAGE_BYTES: usize = 2 << 20;

#[test]
fn buffers_are_zero_and_aligned_at_every_size() {
    for len in [0, 1, 63, 64, 65, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 5] {
        let mut bytes = AlignedBytes::zeroed(len);
        assert_eq!(bytes.as_slice().len(), len);
        assert!(bytes.as_slice().as_ptr().addr().is_multiple_of(ALIGNMENT_BYTES));
        assert!(bytes.as_slice().iter().all(|&byte| byte == 0));
        bytes.as_mut_slice().fill(7);
        assert!(bytes.as_slice().iter().all(|&byte| byte == 7));
    }
}
