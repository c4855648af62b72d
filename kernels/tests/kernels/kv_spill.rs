//! Tests of K and V that exceed their memory: which units are in memory, and executors whose pools have a file.

mod residency;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use trunkline_kernels::executor::{Chunk, Executor, ExecutorError, SequenceResult};
use trunkline_kernels::kv_pool::KvGeometry;
use trunkline_kernels::kv_spill::SpillError;
use trunkline_kernels::program::{ProgramError, SpillOptions};
use trunkline_kernels::sampling::SamplingParams;

use crate::best;
use crate::executor::model::{
    BLOCK_SIZE, GEMMA, INT4, LATENT, PLAIN, Recipe, VOCAB, build, geometry, try_build,
};
use crate::random::Random;

/// Places of each of the two layers. The pools of tests have memory for [`NUM_UNITS`] of both.
const NUM_PLACES: usize = 4;
const NUM_UNITS: usize = 5;
const NUM_SEQUENCES: usize = 5;

/// The blocks in a unit, and its bytes: whole pages of at least 256 KiB.
fn unit_of(geometry: &KvGeometry) -> (usize, usize) {
    let bytes = |count: &usize| count * geometry.layer_bytes();
    let is_unit = |count: &usize| bytes(count) >= 256 << 10 && bytes(count).is_multiple_of(4096);
    let blocks = (0..20).map(|power| 1 << power).find(is_unit).unwrap();
    (blocks, bytes(&blocks))
}

fn options(recipe: Recipe, num_units: usize, folder: &Path) -> SpillOptions {
    let memory_bytes = num_units * unit_of(&geometry(recipe)).1;
    SpillOptions { memory_bytes, folder: folder.to_owned() }
}

struct Sequence {
    tokens: Vec<u32>,
    num_computed: usize,
    num_blocks: usize,
    /// The blocks that the next chunk brings along: those of a prefix.
    found: Vec<u32>,
    blocks: Vec<u32>,
}

/// An executor whose pool is in memory and one with a file, which take the same steps.
struct Pair {
    executors: [Executor; 2],
    blocks_each: usize,
    random: Random,
    sequences: Vec<Sequence>,
    num_blocks_taken: usize,
}

impl Pair {
    fn new(recipe: Recipe, seed: u64, folder: &Path) -> Self {
        let blocks_each = unit_of(&geometry(recipe)).0;
        let recipe = Recipe { num_blocks: NUM_PLACES * blocks_each, ..recipe };
        let spilled = try_build(recipe, 2, best(), Some(options(recipe, NUM_UNITS, folder))).unwrap();
        let executors = [build(recipe, 2, best()), spilled];
        let random = Random::new(seed);
        let mut pair = Self { executors, blocks_each, random, sequences: vec![], num_blocks_taken: 0 };
        pair.start_again();
        pair
    }

    /// Ends all sequences and starts others.
    fn start_again(&mut self) {
        for id in 0..self.sequences.len() {
            self.executors.iter_mut().for_each(|executor| executor.end(id as u64).unwrap());
        }
        self.sequences.clear();
        for _ in 0..NUM_SEQUENCES {
            let num_tokens = 1 + self.random.below(9 * BLOCK_SIZE);
            let tokens = (0..num_tokens).map(|_| self.random.below(VOCAB) as u32).collect();
            self.start(tokens, 0, Vec::new());
        }
    }

    fn start(&mut self, tokens: Vec<u32>, num_computed: usize, found: Vec<u32>) {
        let id = self.sequences.len() as u64;
        let sampling = SamplingParams { logprobs: true, ..Default::default() };
        for executor in &mut self.executors {
            executor.start(id, tokens.clone(), tokens.len(), sampling.clone()).unwrap();
        }
        self.sequences.push(Sequence {
            tokens,
            num_computed,
            num_blocks: found.len(),
            found,
            blocks: vec![],
        });
    }

    /// Returns a new block. Each is at another place than the last, so that sequences have blocks at all places.
    fn take_block(&mut self) -> u32 {
        let count = self.num_blocks_taken;
        self.num_blocks_taken += 1;
        (count % NUM_PLACES * self.blocks_each + count / NUM_PLACES) as u32
    }

    /// The next positions of a sequence: a part of what is known but not computed.
    fn chunk(&mut self, id: usize) -> Chunk {
        let Sequence { num_computed, .. } = self.sequences[id];
        let num_tokens = self.sequences[id].tokens.len();
        let end = (num_computed + 1 + self.random.below(5 * BLOCK_SIZE)).min(num_tokens);
        let mut new_block_ids = std::mem::take(&mut self.sequences[id].found);
        while self.sequences[id].num_blocks * BLOCK_SIZE < end {
            new_block_ids.push(self.take_block());
            self.sequences[id].num_blocks += 1;
        }
        Chunk {
            sequence_id: id as u64,
            first_position: num_computed as u32,
            num_tokens: (end - num_computed) as u32,
            new_block_ids,
            sample: end == num_tokens,
            score: false,
            draft_token_ids: Vec::new(),
            draft_masks: Vec::new(),
        }
    }

    /// Takes a step of some sequences with both executors, and returns the results.
    fn step(&mut self) -> [Vec<SequenceResult>; 2] {
        let ids: Vec<usize> = (0..self.sequences.len()).filter(|_| self.random.below(3) > 0).collect();
        let chunks: Vec<Chunk> = ids.into_iter().map(|id| self.chunk(id)).collect();
        let results = self.executors.each_mut().map(|executor| executor.step(&chunks));
        for chunk in &chunks {
            let sequence = &mut self.sequences[chunk.sequence_id as usize];
            sequence.num_computed += chunk.num_tokens as usize;
            sequence.blocks.extend(&chunk.new_block_ids);
        }
        for result in &results[0] {
            let token_id = result.outcome.as_ref().unwrap().token_id;
            self.sequences[result.sequence_id as usize].tokens.push(token_id);
        }
        results
    }

    /// Starts a sequence that has found most of what another one has computed, with a copy of its last block.
    fn branch(&mut self, id: usize) {
        let Sequence { tokens, num_computed, blocks, .. } = &self.sequences[id];
        let Some(num_found) = num_computed.checked_sub(2).filter(|count| count % BLOCK_SIZE > 0) else {
            return;
        };
        let tokens = [&tokens[..num_found], &[7, 8, 9]].concat();
        let mut found = blocks[..num_found.div_ceil(BLOCK_SIZE)].to_vec();
        let copy = self.take_block();
        let source = std::mem::replace(found.last_mut().unwrap(), copy);
        for executor in &mut self.executors {
            executor.copy_block(source, copy, num_found % BLOCK_SIZE).unwrap();
        }
        self.start(tokens, num_found, found);
    }
}

#[test]
fn pools_with_a_file_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    for (recipe, seed) in [PLAIN, INT4, GEMMA, LATENT].into_iter().zip(1..) {
        let mut pair = Pair::new(recipe, seed, folder.path());
        for step in 0..40 {
            let [expected, got] = pair.step();
            assert_eq!(got, expected, "seed {seed}, step {step}");
            if step % 8 == 5 {
                pair.branch(step % NUM_SEQUENCES);
            }
        }
        let sizes = pair.executors[1].spill_sizes().unwrap();
        assert_eq!(sizes.file_bytes * NUM_UNITS, sizes.memory_bytes * 2 * NUM_PLACES);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
}

/// Opens the file without a name in a folder.
fn nameless(folder: &Path) -> File {
    let is_ours = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.starts_with(folder) && target != folder)
    };
    let mut files = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path()).filter(is_ours);
    OpenOptions::new().read(true).write(true).open(files.next().expect("a file")).unwrap()
}

#[test]
fn damaged_units_fail_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let mut pair = Pair::new(PLAIN, 9, folder.path());
    (0..20).for_each(|_| drop(pair.step()));
    let file = nameless(folder.path());
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let damaged: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
    file.write_all_at(&damaged, 0).unwrap();
    // All sequences together need every unit, and a part of them is on the disk.
    let chunks: Vec<Chunk> = (0..pair.sequences.len()).map(|id| pair.chunk(id)).collect();
    match pair.executors[1].step_into(&chunks, &mut Vec::new()) {
        Err(ExecutorError::LostKv { what }) => {
            assert!(what.contains("other bytes than were written"), "{what}")
        }
        other => panic!("{other:?}"),
    }
    // Units that the step has written are right.
    let unit_bytes = unit_of(&geometry(PLAIN)).1;
    for (index, (unit, damaged)) in bytes.chunks(unit_bytes).zip(damaged.chunks(unit_bytes)).enumerate() {
        let mut current = vec![0; unit_bytes];
        file.read_exact_at(&mut current, (index * unit_bytes) as u64).unwrap();
        if current == damaged {
            file.write_all_at(unit, (index * unit_bytes) as u64).unwrap();
        }
    }
    pair.start_again();
    for step in 0..20 {
        let [expected, got] = pair.step();
        assert_eq!(got, expected, "step {step}");
    }
}

#[test]
fn a_pool_needs_memory_for_a_layer_and_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = Recipe { num_blocks: NUM_PLACES * unit_of(&geometry(PLAIN)).0, ..PLAIN };
    let refused = |recipe, options| match try_build(recipe, 1, best(), Some(options)) {
        Err(ProgramError::Spill(error)) => *error.downcast::<SpillError>().unwrap(),
        other => panic!("{:?}", other.err()),
    };
    let error = refused(recipe, options(PLAIN, NUM_PLACES - 1, folder.path()));
    assert!(matches!(error, SpillError::TooLittle { .. }), "{error}");
    let error = refused(recipe, options(PLAIN, NUM_UNITS, &folder.path().join("missing")));
    assert!(matches!(error, SpillError::File { .. }), "{error}");
    let parts = Recipe { num_window_parts: Some(8), num_blocks: recipe.num_blocks, ..GEMMA };
    let error = refused(parts, options(GEMMA, NUM_UNITS, folder.path()));
    assert!(matches!(error, SpillError::WindowParts), "{error}");
}
