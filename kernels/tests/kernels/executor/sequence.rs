use trunkline_kernels::executor::Chunk;
use trunkline_kernels::executor::sequence::{ChunkLimits, Sequence, SequenceCapacity, SequenceTable};
use trunkline_kernels::sampling::SamplingParams;

const LIMITS: ChunkLimits = ChunkLimits {
    num_blocks: 4,
    block_size: 16,
    num_embeddings: 100,
    max_positions: usize::MAX,
    is_whole: false,
};

const CAPACITY: SequenceCapacity = SequenceCapacity { num_tokens: 64, num_blocks: 4, vocab_size: 100 };

fn sequence() -> Sequence {
    Sequence::new((0..20).collect(), 18, SamplingParams::default(), &CAPACITY).unwrap()
}

fn chunk(first: usize, num_tokens: usize, new_block_ids: &[u32], sample: bool) -> Chunk {
    super::chunk(1, first, first + num_tokens, new_block_ids, sample)
}

#[test]
fn invalid_chunks_are_refused_and_change_nothing() {
    let cases = [
        (chunk(0, 0, &[0], false), "`num_tokens` is 0"),
        (chunk(3, 18, &[0, 1], false), "20 tokens are known"),
        (chunk(0, 19, &[0, 1], true), "`sample` after position 18, but 20"),
        (chunk(0, 20, &[0, 4], true), "block 4 does not exist, the pool has 4 blocks"),
        (chunk(0, 20, &[0], true), "1 blocks of 16 do not hold 20 positions"),
    ];
    let mut s = sequence();
    for (bad, message) in cases {
        let error = s.accept(&bad, &LIMITS).unwrap_err();
        assert!(error.contains(message), "{bad:?}: {error}");
        assert!(s.block_table.is_empty());
    }
    s.token_ids[7] = 100;
    assert_eq!(
        s.accept(&chunk(0, 8, &[1], false), &LIMITS).unwrap_err(),
        "the token at position 7 is not below 100"
    );
    s.accept(&chunk(8, 4, &[1], false), &LIMITS).unwrap();
    let error = s.accept(&chunk(8, 4, &[], false), &LIMITS).unwrap_err();
    assert_eq!(error, "`first_position` is 8, but 12 positions are computed");
    s.accept(&chunk(12, 8, &[3], true), &LIMITS).unwrap();
    assert_eq!(s.written_blocks(&chunk(12, 8, &[], true), 16), [1, 3]);
}

#[test]
fn invalid_starts_are_refused() {
    let start = |tokens: Vec<u32>, num_prompt| {
        Sequence::new(tokens, num_prompt, SamplingParams::default(), &CAPACITY)
    };
    assert!(start(vec![], 0).unwrap_err().contains("`token_ids` has 0 tokens"));
    assert!(start(vec![1], 2).unwrap_err().contains("`num_prompt_tokens` is 2, expected 1 to 1"));
    assert!(start(vec![1], 0).is_err());
}

#[test]
fn slots_are_reused_and_ids_are_unique() {
    let mut table = SequenceTable::default();
    assert!(table.insert(5, sequence()) && table.insert(9, sequence()));
    assert!(!table.insert(5, sequence()));
    let slot = table.find(5).unwrap();
    assert!(table.remove(5) && !table.remove(5));
    assert!(table.insert(6, sequence()));
    assert_eq!(table.find(6), Some(slot));
    table.clear();
    assert!(table.is_empty() && table.find(9).is_none());
}
