//! The states of recurrent layers: where later prompts can begin.

use trunkline_kv::{BlockTable, KvCache, Salt, WindowLimits};

const BLOCK_SIZE: u32 = 4;

fn cache(num_parts: u32) -> KvCache {
    let mut kv = KvCache::new(BLOCK_SIZE, 64);
    kv.device_mut().set_windows(WindowLimits { num_parts, window_size: 2, is_recurrent: true });
    kv
}

/// A sequence and the number of its computed tokens.
struct Run {
    table: BlockTable,
    computed: u32,
    num_found: u32,
}

fn open(kv: &mut KvCache, tokens: &[u32]) -> Run {
    let salt = Salt::default();
    let hit = kv.lookup(&salt, tokens);
    assert_eq!(hit.partial(), None, "a state is that of a whole block");
    let num_found = hit.num_tokens();
    Run { table: kv.open(&salt, &hit), computed: num_found, num_found }
}

/// Computes `tokens` in chunks of at most `most` tokens, as plans would. Returns the copies of states.
fn compute(kv: &mut KvCache, run: &mut Run, tokens: &[u32], most: u32) -> usize {
    let mut num_copies = 0;
    while run.computed < tokens.len() as u32 {
        let device = kv.device_mut();
        device.pass_window(&mut run.table, run.computed);
        let wanted = most.min(tokens.len() as u32 - run.computed);
        let num_blocks = (run.computed + wanted).div_ceil(BLOCK_SIZE) - run.table.blocks().len() as u32;
        assert!(device.grow(&mut run.table, num_blocks), "there are blocks");
        let num_tokens = device.reserve_parts(&mut run.table, run.computed, wanted);
        assert!(num_tokens > 0, "there are parts");
        device.begin_fill(&run.table, run.computed, num_tokens);
        run.computed += num_tokens;
        num_copies += usize::from(device.copy_state(&mut run.table).is_some());
        device.take_window_drops();
        kv.index(&mut run.table, &tokens[..run.computed as usize]);
        kv.check_invariants();
    }
    num_copies
}

/// Runs a whole request in long chunks. Returns how many tokens were found.
fn request(kv: &mut KvCache, tokens: &[u32]) -> u32 {
    let mut run = open(kv, tokens);
    compute(kv, &mut run, tokens, 20);
    kv.close(run.table, tokens);
    kv.check_invariants();
    run.num_found
}

fn text(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|position| seed * 1_000 + position).collect()
}

#[test]
fn the_same_prompt_begins_at_its_last_whole_block() {
    for len in 38..44 {
        let mut kv = cache(8);
        assert_eq!(request(&mut kv, &text(1, len)), 0);
        assert_eq!(request(&mut kv, &text(1, len)), (len - 1) / BLOCK_SIZE * BLOCK_SIZE, "{len} tokens");
    }
}

#[test]
fn the_next_turn_begins_at_the_end_of_the_last_one() {
    for len in 38..44 {
        let mut kv = cache(8);
        let mut run = open(&mut kv, &text(1, 30));
        compute(&mut kv, &mut run, &text(1, 30), 20);
        // The output, token by token.
        compute(&mut kv, &mut run, &text(1, len), 1);
        kv.close(run.table, &text(1, len));
        assert_eq!(request(&mut kv, &text(1, 60)), len / BLOCK_SIZE * BLOCK_SIZE, "{len} tokens");
        // Another output of the same prompt.
        let other = [text(1, 30), text(2, 5)].concat();
        assert_eq!(request(&mut kv, &other), 28);
    }
}

#[test]
fn the_third_prompt_begins_where_the_second_branched_off() {
    let prompt = |seed| [text(1, 30), text(seed, 17)].concat();
    for first_runs_on in [false, true] {
        let mut kv = cache(12);
        let mut first = open(&mut kv, &prompt(2));
        compute(&mut kv, &mut first, &prompt(2), 20);
        let mut table = Some(first.table);
        if !first_runs_on {
            kv.close(table.take().unwrap(), &prompt(2));
        }
        let mut second = open(&mut kv, &prompt(3));
        assert_eq!(second.num_found, 20, "the end of a chunk of the first prompt");
        let num_copies = compute(&mut kv, &mut second, &prompt(3), 20);
        assert_eq!(num_copies, usize::from(first_runs_on), "the index has blocks that the first one holds");
        kv.close(second.table, &prompt(3));
        assert_eq!(request(&mut kv, &prompt(4)), 28);
        if let Some(table) = table {
            kv.close(table, &prompt(2));
        }
        kv.check_invariants();
        assert_eq!(request(&mut kv, &prompt(5)), 28);
    }
}

#[test]
fn an_offer_ends_with_its_sequence() {
    let prompt = |seed| [text(1, 30), text(seed, 17)].concat();
    let mut kv = cache(12);
    let mut first = open(&mut kv, &prompt(2));
    compute(&mut kv, &mut first, &prompt(2), 20);
    let mut second = open(&mut kv, &prompt(3));
    // Up to the branch, without a plan that could make the copy.
    let device = kv.device_mut();
    assert!(device.grow(&mut second.table, 7));
    assert_eq!(device.reserve_parts(&mut second.table, 20, 27), 8);
    device.begin_fill(&second.table, 20, 8);
    kv.close(second.table, &prompt(3)[..28]);
    kv.check_invariants();
    kv.close(first.table, &prompt(2));
    kv.check_invariants();
    assert_eq!(kv.device().num_window_needs(), 0);
}

#[test]
fn a_chunk_ends_with_its_first_block_if_states_are_short() {
    let mut kv = cache(3);
    let mut first = open(&mut kv, &text(1, 30));
    compute(&mut kv, &mut first, &text(1, 18), 18);
    // The first sequence needs the last one of its two states.
    let mut second = open(&mut kv, &text(2, 30));
    let device = kv.device_mut();
    assert!(device.grow(&mut second.table, 8));
    assert_eq!(device.reserve_parts(&mut second.table, 0, 30), BLOCK_SIZE);
    assert_eq!(device.reserve_parts(&mut second.table, BLOCK_SIZE, 2), 0);
    device.pass_window(&mut first.table, 18);
    assert_eq!(device.reserve_parts(&mut second.table, BLOCK_SIZE, 2), 2);
    kv.check_invariants();
}
