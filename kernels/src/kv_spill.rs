//! K and V that exceed their memory: a file holds the parts of the pool that no current step needs.
//!
//! ```text
//! residency  which units are in memory, and which one makes room for another (pure)
//! worker     the threads that read units and write them back
//! ```
//!
//! The pool has addresses for all of its blocks ([`KvPool::by_layer`]), so kernels and results do not change. A unit
//! is the part of one layer that some neighbouring blocks have. A step needs the units of its sequences by layer, and
//! only those of a layer must be in memory at the same time: [`KvSpill::enter`] waits for them, while the threads
//! read those of the next layers.
//!
//! Each unit has a checksum from when it was written to the file. If one cannot be read or differs, the step fails, and
//! its sequences have to begin anew.

pub mod residency;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::direct_file::{BLOCK_BYTES, DirectFile};
use crate::kv_pool::{KvGeometry, KvPool, KvPoolError};
use crate::program::{Instruction, KvStages, ProgramError, SpillOptions};
use residency::Residency;
use worker::{Shared, UnitMemory, work};

/// Threads that read and write units. While one computes a checksum, the other keeps the disk busy.
const NUM_WORKERS: usize = 2;
/// Smaller reads are slow on most disks. Larger units hold more blocks that a step may not need.
const LEAST_UNIT_BYTES: usize = 256 << 10;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpillError {
    #[error(
        "`--kv-memory` is {memory_bytes} bytes, but a KV pool of {num_tokens} tokens needs {needed_bytes} for one \
         layer; hint: raise it to at least {needed_mib}MiB, or lower `--max-batch-total-tokens`"
    )]
    TooLittle { memory_bytes: usize, num_tokens: usize, needed_bytes: usize, needed_mib: usize },
    #[error("the model keeps K and V or states in window parts, which `--kv-memory` does not leave on disk")]
    WindowParts,
    #[error(
        "cannot reserve {mib} MiB for the KV cache in `{path}`: {source}; hint: set TMPDIR to a folder on a disk that \
         has them"
    )]
    File { mib: u64, path: PathBuf, source: std::io::Error },
    #[error("cannot start a thread for the KV cache's file: {source}")]
    Thread { source: std::io::Error },
    #[error(transparent)]
    KvPool(#[from] KvPoolError),
}

impl From<SpillError> for ProgramError {
    fn from(error: SpillError) -> Self {
        Self::Spill(Box::new(error))
    }
}

/// The sizes of a pool with a file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillSizes {
    pub memory_bytes: usize,
    pub file_bytes: usize,
}

/// The division of a pool into units.
#[derive(Clone, Copy, Debug)]
struct Units {
    num_blocks_each: usize,
    bytes_each: usize,
    num_of_layer: usize,
    num_layers: usize,
}

impl Units {
    fn new(geometry: &KvGeometry, num_blocks: usize) -> Self {
        let mut num_blocks_each = 1;
        let bytes_of = |count: usize| count * geometry.layer_bytes();
        while bytes_of(num_blocks_each) < LEAST_UNIT_BYTES
            || !bytes_of(num_blocks_each).is_multiple_of(BLOCK_BYTES)
        {
            num_blocks_each *= 2;
        }
        Self {
            num_blocks_each,
            bytes_each: bytes_of(num_blocks_each),
            num_of_layer: num_blocks.div_ceil(num_blocks_each),
            num_layers: geometry.num_layers,
        }
    }

    fn num_bytes(&self) -> usize {
        self.num_layers * self.num_of_layer * self.bytes_each
    }

    /// The place of a block's unit in each layer.
    fn place_of(&self, block_id: u32) -> u32 {
        block_id / self.num_blocks_each as u32
    }

    /// The unit of a layer at a place.
    fn unit(&self, layer: usize, place: u32) -> u32 {
        (layer * self.num_of_layer) as u32 + place
    }
}

/// The file of a pool and what keeps its memory within the limit. Must be dropped before the pool.
#[derive(Debug)]
pub(crate) struct KvSpill {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    units: Units,
    sizes: SpillSizes,
    stages: KvStages,
    /// The places that the current pass needs, by window.
    needed: Vec<Vec<u32>>,
    /// The places that it writes.
    written: Vec<u32>,
}

impl KvSpill {
    /// Creates a pool whose memory is limited, for a program with these instructions.
    pub(crate) fn new(
        geometry: KvGeometry,
        num_blocks: usize,
        options: &SpillOptions,
        (instructions, num_windows): (&[Instruction], usize),
    ) -> Result<(KvPool, Self), SpillError> {
        let units = Units::new(&geometry, num_blocks);
        let capacity = options.memory_bytes / units.bytes_each;
        if capacity < units.num_of_layer {
            let needed_bytes = units.num_of_layer * units.bytes_each;
            return Err(SpillError::TooLittle {
                memory_bytes: options.memory_bytes,
                num_tokens: num_blocks * geometry.block_size,
                needed_bytes,
                needed_mib: needed_bytes.div_ceil(1 << 20),
            });
        }
        let mut pool = KvPool::by_layer(geometry, num_blocks, units.num_of_layer * units.bytes_each)?;
        let file = Self::file(&options.folder, units.num_bytes() as u64)?;
        let memory = UnitMemory::new(pool.memory(), units.bytes_each);
        let residency = Residency::new(units.num_layers * units.num_of_layer, capacity);
        let sizes = SpillSizes { memory_bytes: capacity * units.bytes_each, file_bytes: units.num_bytes() };
        let mut spill = Self {
            shared: Arc::new(Shared::new(memory, file, residency)),
            threads: Vec::new(),
            units,
            sizes,
            stages: KvStages::of(instructions),
            needed: vec![Vec::new(); num_windows],
            written: Vec::new(),
        };
        for index in 0..NUM_WORKERS {
            let shared = Arc::clone(&spill.shared);
            let named = std::thread::Builder::new().name(format!("kv-{index}"));
            let thread = named.spawn(move || work(&shared));
            spill.threads.push(thread.map_err(|source| SpillError::Thread { source })?);
        }
        Ok((pool, spill))
    }

    fn file(folder: &Path, num_bytes: u64) -> Result<DirectFile, SpillError> {
        DirectFile::temporary(folder, num_bytes).map_err(|source| SpillError::File {
            mib: num_bytes.div_ceil(1 << 20),
            path: folder.to_owned(),
            source,
        })
    }

    pub(crate) fn sizes(&self) -> SpillSizes {
        self.sizes
    }

    /// Begins a step. `needed` are the blocks that its rows read, by window; `written` those that they write.
    pub(crate) fn begin_step<'a, B: Iterator<Item = &'a [u32]>>(
        &mut self,
        needed: impl Fn(usize) -> B,
        written: impl Iterator<Item = u32>,
    ) {
        let units = self.units;
        self.written.clear();
        self.written.extend(written.map(|block| units.place_of(block)));
        sort(&mut self.written);
        for (window, places) in self.needed.iter_mut().enumerate() {
            places.clear();
            places.extend(needed(window).flatten().map(|block| units.place_of(*block)));
            places.extend_from_slice(&self.written);
            sort(places);
        }
        let stages = self.stages.iter().map(|stage| {
            let places = stage.window.map_or(&self.written, |window| &self.needed[window]);
            places.iter().map(move |place| units.unit(stage.layer, *place))
        });
        self.shared.begin_pass(stages);
    }

    /// Waits until K and V that an instruction needs are in memory. Returns false, to all threads alike, if they cannot
    /// be read. All threads have finished the earlier instructions; one of them is the leader.
    pub(crate) fn enter(&self, instruction: usize, is_leader: bool) -> bool {
        let Some((index, stage)) = self.stages.at(instruction) else { return true };
        let written = self.written.iter().map(|place| self.units.unit(stage.layer, *place));
        self.shared.enter(index, is_leader.then_some(written))
    }

    /// Ends a step. Returns why it failed, if K and V could not be read.
    pub(crate) fn end_step(&self) -> Result<(), String> {
        self.shared.end_pass()
    }

    /// Copies the first positions of a block to another one, in all layers. Fails if K and V cannot be read.
    pub(crate) fn copy_block(
        &self,
        pool: &mut KvPool,
        (source, destination): (u32, u32),
        num_tokens: usize,
    ) -> Result<Result<(), String>, KvPoolError> {
        pool.check_copy(source, destination, num_tokens)?;
        let mut places = vec![self.units.place_of(source), self.units.place_of(destination)];
        sort(&mut places);
        let layers = 0..self.units.num_layers;
        let unit = |layer, place: u32| self.units.unit(layer, place);
        self.shared
            .begin_pass(layers.clone().map(|layer| places.iter().map(move |place| unit(layer, *place))));
        for layer in layers {
            let written = std::iter::once(unit(layer, self.units.place_of(destination)));
            if !self.shared.enter(layer, Some(written)) {
                break;
            }
            pool.copy_layer(layer, source, destination, num_tokens)?;
        }
        Ok(self.shared.end_pass())
    }
}

fn sort(places: &mut Vec<u32>) {
    places.sort_unstable();
    places.dedup();
}

impl Drop for KvSpill {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            // A panic was printed by the thread, and its steps have failed.
            let _ = thread.join();
        }
    }
}
