//! Checksums of the pages of a file, for the fingerprints of `server/trunkline_server/weights/fingerprint.py`.

use crate::pack::SourceBytes;
use crate::threads::{ThreadPool, split};

pub const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / size_of::<u64>();
/// After this many pages, the pages of a mapped file are dropped from memory.
const PIECE_PAGES: usize = 1024;

/// The factor of each word: SplitMix64 (doi:10.1145/2714064.2660195) of 1, 2, 3, ..., made odd.
const FACTORS: [u64; PAGE_WORDS] = {
    let mut factors = [0; PAGE_WORDS];
    let mut index = 0;
    while index < PAGE_WORDS {
        let mut z = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        factors[index] = (z ^ (z >> 31)) | 1;
        index += 1;
    }
    factors
};

/// Computes `sum(word[i] * factor[i]) mod 2^64` over the little-endian words of each page, with the pool's threads. The
/// pages of a mapped file are dropped from memory once they are summed.
///
/// # Panics
/// Panics if the number of bytes is not a multiple of [`PAGE_BYTES`].
pub fn page_sums(source: &SourceBytes, pool: &mut ThreadPool) -> Vec<u64> {
    let bytes = source.as_slice();
    assert!(bytes.len().is_multiple_of(PAGE_BYTES), "{} bytes are not whole pages", bytes.len());
    let mut sums = vec![0; bytes.len() / PAGE_BYTES];
    let (num_pages, num_threads) = (sums.len(), pool.num_threads());
    let shared = crate::shared_mut::SharedMut::new(&mut sums);
    pool.run(|thread_idx, _| {
        let pages = split(0..num_pages, num_threads, thread_idx);
        // SAFETY: the shares of threads do not overlap.
        let sums = unsafe { shared.slice_mut(pages.clone()) };
        for (piece, sums) in sums.chunks_mut(PIECE_PAGES).enumerate() {
            let start = (pages.start + piece * PIECE_PAGES) * PAGE_BYTES;
            for (sum, page) in sums.iter_mut().zip(bytes[start..].chunks_exact(PAGE_BYTES)) {
                *sum = page_sum(page);
            }
            source.drop_pages(start..start + sums.len() * PAGE_BYTES);
        }
    });
    sums
}

fn page_sum(page: &[u8]) -> u64 {
    let words = page.as_chunks::<{ size_of::<u64>() }>().0;
    words
        .iter()
        .zip(&FACTORS)
        .fold(0, |sum: u64, (word, factor)| sum.wrapping_add(u64::from_le_bytes(*word).wrapping_mul(*factor)))
}
