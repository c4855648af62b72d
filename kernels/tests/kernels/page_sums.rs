use trunkline_kernels::pack::SourceBytes;
use trunkline_kernels::page_sums::{PAGE_BYTES, page_sums};
use trunkline_kernels::threads::ThreadPool;

use crate::random::Random;

#[test]
fn every_word_affects_its_sum_on_any_number_of_threads() {
    let mut random = Random::new(3);
    let mut bytes: Vec<u8> = (0..5 * PAGE_BYTES).map(|_| random.next() as u8).collect();
    let sums = |bytes: &[u8], threads| {
        page_sums(&SourceBytes::Owned(bytes.to_vec()), &mut ThreadPool::new(threads).unwrap())
    };
    let one = sums(&bytes, 1);
    assert_eq!(sums(&bytes, 3), one);
    for at in [0, 7, PAGE_BYTES - 1, PAGE_BYTES, 5 * PAGE_BYTES - 1] {
        bytes[at] ^= 1;
        let changed = sums(&bytes, 2);
        let differing: Vec<usize> = (0..5).filter(|page| changed[*page] != one[*page]).collect();
        assert_eq!(differing, [at / PAGE_BYTES]);
        bytes[at] ^= 1;
    }
    assert!(sums(&[], 2).is_empty());
}
