//! Weights that exceed their memory: pieces of the weight cache's file that are read again in every pass.
//!
//! ```text
//! schedule   which pieces stay in memory, and in which order the others are read
//! positions  which pieces are in memory, are being read and may be read next
//! reader     the threads that read ahead, and what instructions wait for
//! memory     addresses for the whole image
//! ```
//!
//! The image has one run of addresses, as if it were mapped, so kernels and results do not change. Only the pieces that
//! stay and those that are read ahead take memory. [`WeightGate::enter`] waits for the pieces of an instruction and
//! tells the readers which pieces no thread needs any more.
//!
//! # Checks
//! An entry's checksum is compared when its last piece is read for the first time. A piece's own checksum is recorded
//! then and compared at each later read. If a piece cannot be read, or differs, the passes that need it fail, and each
//! later pass tries again.

mod memory;
pub mod positions;
mod reader;
pub mod schedule;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use xxhash_rust::xxh3::xxh3_64;

use crate::aligned::AlignedBytes;
use crate::direct_file::{BLOCK_BYTES, DirectFile};
use crate::pack::Region;
use crate::program::{EntryKind, ImageTable, MatrixUse, StreamSizes, WeightGate};
use memory::ImageMemory;
use reader::{Reader, reads};
use schedule::{Schedule, TooLittleMemory, WeightUse};

/// Threads that read. While one computes the checksum of what it has read, the other keeps the disk busy.
const NUM_READERS: usize = 2;
/// The disk is measured with at least this many bytes.
const MIN_MEASURED_BYTES: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    #[error(
        "`--weights-memory` is {memory_bytes} bytes, but the model needs {needed_bytes}; hint: raise it to at least \
         {needed_mib}MiB"
    )]
    TooLittle { memory_bytes: usize, needed_bytes: usize, needed_mib: usize },
    #[error("cannot {what} `{path}`: {source}")]
    System { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot reserve {bytes} bytes of addresses for the weights: {source}")]
    Map { bytes: usize, source: io::Error },
    /// The entry of the file differs from what was packed.
    #[error("`{path}` has damaged bytes in entry {entry} of {num_entries}")]
    Damaged { path: PathBuf, entry: usize, num_entries: usize },
}

/// A file of packed weights whose pieces are read while a program runs.
#[derive(Debug)]
pub struct WeightStream {
    reader: Arc<Reader>,
    threads: Vec<JoinHandle<()>>,
    sizes: StreamSizes,
}

/// The file of an image.
pub(crate) struct ImageFile<'a> {
    /// The name under which the file is opened.
    pub(crate) at: &'a Path,
    /// The name that the file has, or will have once it is complete.
    pub(crate) path: &'a Path,
    pub(crate) image_offset: usize,
    pub(crate) table: &'a Arc<ImageTable>,
    /// The checksums of the table's entries.
    pub(crate) checksums: Vec<u64>,
    /// Removes the file, which is damaged.
    pub(crate) remove: Box<dyn Fn() + Send + Sync>,
}

/// Plans the memory of an image. Returns `None` if all of it fits.
pub(crate) fn plan(
    table: &ImageTable,
    uses: &[MatrixUse],
    memory_bytes: usize,
    num_layers: usize,
) -> Result<Option<Schedule>, StreamError> {
    let bytes = |entries: std::ops::Range<usize>| {
        let last = &table.entries[entries.end - 1];
        table.entries[entries.start].offset..last.offset + last.num_bytes
    };
    let uses: Vec<WeightUse> = uses
        .iter()
        .map(|each| WeightUse {
            instruction: each.instruction,
            bytes: bytes(each.matrices.clone()),
            is_by_row: each.is_by_row,
        })
        .collect();
    let is_vector = |index: &usize| matches!(table.entries[*index].kind, EntryKind::Vector { .. });
    let vectors: Vec<_> =
        (0..table.entries.len()).filter(is_vector).map(|index| bytes(index..index + 1)).collect();
    Schedule::new(table.num_bytes, &uses, &vectors, memory_bytes, num_layers).map_err(
        |TooLittleMemory { needed_bytes }| StreamError::TooLittle {
            memory_bytes,
            needed_bytes,
            needed_mib: needed_bytes.div_ceil(1 << 20),
        },
    )
}

impl WeightStream {
    /// Reads the resident pieces of a file, measures the disk and starts the threads. Returns the stream with the
    /// region of the image.
    pub(crate) fn open(file: ImageFile<'_>, schedule: Schedule) -> Result<(Self, Region), StreamError> {
        let name = file.path.to_owned();
        let fail = |what| {
            let path = name.clone();
            move |source| StreamError::System { what, path, source }
        };
        let image_bytes = file.table.num_bytes;
        let direct = DirectFile::open(file.at, file.path).map_err(fail("open"))?;
        let memory = ImageMemory::reserve(image_bytes)
            .map_err(|source| StreamError::Map { bytes: image_bytes, source })?;
        let memory = Arc::new(memory);
        let sum = |pieces: &[usize]| -> usize {
            pieces.iter().map(|piece| schedule.bytes_of(*piece, image_bytes).len()).sum()
        };
        let mut sizes = StreamSizes {
            resident_bytes: sum(&schedule.resident),
            streamed_bytes: sum(&schedule.order),
            ahead_bytes: schedule.num_places * schedule.piece_bytes,
            bytes_per_second: 0,
        };
        let began = Instant::now();
        for piece in &schedule.resident {
            let bytes = schedule.bytes_of(*piece, image_bytes);
            // SAFETY: nobody else has the memory yet.
            let into = unsafe { memory.slice_mut(bytes.start..bytes.end.next_multiple_of(BLOCK_BYTES)) };
            let offset = (file.image_offset + bytes.start) as u64;
            direct.read(into, offset, bytes.len()).map_err(fail("read"))?;
        }
        let mut took = began.elapsed();
        let mut measured = sizes.resident_bytes;
        let mut spare = AlignedBytes::zeroed(schedule.piece_bytes.next_multiple_of(BLOCK_BYTES));
        for piece in &schedule.order {
            if measured >= MIN_MEASURED_BYTES {
                break;
            }
            let bytes = schedule.bytes_of(*piece, image_bytes);
            let (began, offset) = (Instant::now(), (file.image_offset + bytes.start) as u64);
            let into = &mut spare.as_mut_slice()[..bytes.len().next_multiple_of(BLOCK_BYTES)];
            direct.read(into, offset, bytes.len()).map_err(fail("read"))?;
            took += began.elapsed();
            measured += bytes.len();
        }
        sizes.bytes_per_second = (measured as f64 / took.as_secs_f64().max(1e-9)) as u64;
        let reader = Arc::new(Reader::new(direct, Arc::clone(&memory), schedule, file)?);
        // SAFETY: `memory` owns the bytes, and the reader writes only to pieces that no instruction may read.
        let region = unsafe { Region::of_shared(memory.start(), image_bytes, memory) };
        let threads = (0..NUM_READERS).map(|index| {
            let reader = Arc::clone(&reader);
            let named = std::thread::Builder::new().name(format!("weights-{index}"));
            named.spawn(move || reads(&reader)).map_err(fail("start a thread that reads"))
        });
        let mut stream = Self { reader: Arc::clone(&reader), threads: Vec::new(), sizes };
        for thread in threads {
            stream.threads.push(thread?);
        }
        Ok((stream, region))
    }
}

impl WeightGate for WeightStream {
    fn begin_pass(&self) {
        self.reader.begin_pass();
    }

    fn enter(&self, instruction: usize, is_leader: bool) -> bool {
        self.reader.enter(instruction, is_leader)
    }

    fn end_pass(&self) -> Result<(), String> {
        self.reader.end_pass()
    }

    fn sizes(&self) -> StreamSizes {
        self.sizes
    }
}

impl Drop for WeightStream {
    fn drop(&mut self) {
        self.reader.stop();
        for thread in self.threads.drain(..) {
            // A panic was printed by the thread, and its passes have failed.
            let _ = thread.join();
        }
    }
}

/// The checksum of an entry or a piece.
fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}
