//! The weight image: all weights of a program in one run of bytes, packed from their sources, mapped from a cache, or
//! streamed from it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::ProgramError;
use super::gate::WeightGate;
use super::graph::{Progress, WeightId, index_of};
use super::raw_weight::RawWeight;
use crate::aligned::{ALIGNMENT_BYTES, AlignedBytes};
use crate::pack::{
    Format, PackError, PackedWeight, Region, SourceRows, TILE, TileMut, WeightLayout, dequantize_row, encode,
};
use crate::shared_mut::SharedMut;
use crate::threads::ThreadPool;

/// Bytes of a file that a thread packs at a time: small enough that all threads finish at about the same time.
const PIECE_BYTES: usize = 256 << 10;

/// Entries are packed in runs of this many bytes, or of one larger entry, if the image does not fit in memory.
const RUN_BYTES: usize = 64 << 20;

/// The matrices and vectors that the lowered instructions use.
#[derive(Default)]
pub(super) struct WeightPlan {
    matrices: Vec<Vec<WeightId>>,
    vectors: Vec<Vec<WeightId>>,
}

impl WeightPlan {
    /// Returns the index of the matrix whose rows are those of `parts`, one part after another.
    pub(super) fn matrix(&mut self, parts: &[WeightId]) -> usize {
        index_of(&mut self.matrices, parts.to_vec())
    }

    /// Adds matrices that no other kernel uses, and returns the index of the first.
    pub(super) fn matrices(&mut self, matrices: Vec<Vec<WeightId>>) -> usize {
        let first = self.matrices.len();
        self.matrices.extend(matrices);
        first
    }

    /// Returns the index of the f32 vector that concatenates `parts`.
    pub(super) fn vector(&mut self, parts: &[WeightId]) -> usize {
        index_of(&mut self.vectors, parts.to_vec())
    }

    pub(super) fn lay_out(&self, raw: &[RawWeight]) -> Result<ImageTable, ProgramError> {
        let mut table = ImageTable { entries: Vec::new(), num_bytes: 0 };
        for parts in &self.matrices {
            let fail = |source| ProgramError::Weight { weight: parts[0].0, source };
            let first = &raw[parts[0].0];
            let out_features = parts.iter().map(|part| raw[part.0].shape[0]).sum();
            let layout = WeightLayout::new(first.format, out_features, first.shape[1]).map_err(fail)?;
            table.push(parts, EntryKind::Matrix(layout), layout.num_bytes()).map_err(fail)?;
        }
        for parts in &self.vectors {
            let fail = |source| ProgramError::Weight { weight: parts[0].0, source };
            let len = parts.iter().map(|part| raw[part.0].shape[0]).sum();
            table.push(parts, EntryKind::Vector { len }, len * size_of::<f32>()).map_err(fail)?;
        }
        Ok(table)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Matrix(WeightLayout),
    /// f32 elements in native byte order.
    Vector {
        len: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: EntryKind,
    /// The ids of the weights that are concatenated in this entry.
    pub(crate) parts: Vec<u32>,
    /// Offset of the first byte, a multiple of [`ALIGNMENT_BYTES`].
    pub(crate) offset: usize,
    pub(crate) num_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageTable {
    /// The matrices, then the vectors, each in the program's order.
    pub(crate) entries: Vec<Entry>,
    pub(crate) num_bytes: usize,
}

impl ImageTable {
    fn push(&mut self, parts: &[WeightId], kind: EntryKind, num_bytes: usize) -> Result<(), PackError> {
        let parts = parts.iter().map(|part| part.0 as u32).collect();
        self.entries.push(Entry { kind, parts, offset: self.num_bytes, num_bytes });
        let end = self
            .num_bytes
            .checked_add(num_bytes)
            .and_then(|end| end.checked_next_multiple_of(ALIGNMENT_BYTES));
        self.num_bytes = end.filter(|end| *end <= isize::MAX as usize).ok_or(PackError::TooLarge {
            format: Format::F32,
            out_features: self.num_bytes,
            in_features: num_bytes,
        })?;
        Ok(())
    }
}

/// All weights of a program in one run of bytes.
#[derive(Clone, Debug)]
pub(crate) struct WeightImage {
    pub(crate) table: Arc<ImageTable>,
    pub(crate) region: Arc<Region>,
    /// Fills the region while the program runs; `None` if all of it is in memory.
    pub(crate) gate: Option<Arc<dyn WeightGate>>,
}

/// The matrices that one instruction reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MatrixUse {
    pub(crate) instruction: usize,
    pub(crate) matrices: Range<usize>,
    pub(crate) is_by_row: bool,
}

/// The sources of an image that is not packed yet.
pub(crate) struct Packing<'a> {
    pub(crate) table: Arc<ImageTable>,
    pub(crate) uses: Vec<MatrixUse>,
    pub(crate) num_layers: usize,
    pub(super) raw: &'a mut [RawWeight],
    pub(super) progress: Option<&'a Progress>,
}

impl Packing<'_> {
    /// Packs all weights from their sources with all threads of the pool. The pages of a mapped source are dropped as
    /// soon as its matrix is packed, so few source pages are in memory at a time.
    pub(crate) fn pack(&mut self, pool: &mut ThreadPool) -> Result<WeightImage, ProgramError> {
        self.raw.iter_mut().enumerate().try_for_each(|(weight, raw)| raw.read(weight))?;
        let bytes = self.pack_entries(0..self.table.entries.len(), pool)?;
        Ok(WeightImage { table: Arc::clone(&self.table), region: Arc::new(Region::from(bytes)), gate: None })
    }

    /// Like [`Packing::pack`], a run of entries at a time, each of which `take` receives with its range of the table's
    /// entries.
    pub(crate) fn pack_in_runs(
        &mut self,
        pool: &mut ThreadPool,
        mut take: impl FnMut(Range<usize>, &[u8]) -> Result<(), ProgramError>,
    ) -> Result<(), ProgramError> {
        let table = Arc::clone(&self.table);
        let mut first = 0;
        while let Some(begin) = table.entries.get(first) {
            let fits = |entry: &&Entry| entry.offset + entry.num_bytes - begin.offset <= RUN_BYTES;
            let run = first..first + table.entries[first..].iter().take_while(fits).count().max(1);
            let mut later = Vec::new();
            for part in table.entries[run.clone()].iter().flat_map(|entry| &entry.parts) {
                let weight = *part as usize;
                later.extend(self.raw[weight].read_for_now(weight)?.map(|source| (weight, source)));
            }
            let bytes = self.pack_entries(run.clone(), pool)?;
            later.into_iter().for_each(|(weight, source)| self.raw[weight].bytes = source);
            take(run.clone(), bytes.as_slice())?;
            first = run.end;
        }
        Ok(())
    }

    /// Packs some of the entries, whose sources have been read. The first begins at offset 0 of the result.
    fn pack_entries(&self, run: Range<usize>, pool: &mut ThreadPool) -> Result<AlignedBytes, ProgramError> {
        let (raw, table) = (&*self.raw, &*self.table);
        let begin = table.entries.get(run.start).map_or(0, |entry| entry.offset);
        let end = table.entries.get(run.end).map_or(table.num_bytes, |entry| entry.offset);
        let mut bytes = AlignedBytes::zeroed(end - begin);
        let mut matrices = Vec::new();
        for entry in &table.entries[run] {
            let offset = entry.offset - begin;
            match entry.kind {
                EntryKind::Matrix(layout) => matrices.push(Matrix::new(entry, offset, layout, raw)?),
                EntryKind::Vector { .. } => {
                    pack_vector(&entry.parts, raw, &mut bytes.as_mut_slice()[offset..][..entry.num_bytes])?;
                }
            }
        }
        let pieces: Vec<(&Matrix<'_>, usize)> = matrices
            .iter()
            .flat_map(|matrix| (0..matrix.num_pieces()).map(move |piece| (matrix, piece)))
            .collect();
        let next = AtomicUsize::new(0);
        let shared = SharedMut::new(bytes.as_mut_slice());
        let share = |num_taken: usize| {
            let packed = num_taken.min(pieces.len()) as f64 / pieces.len() as f64;
            (begin as f64 + packed * (end - begin) as f64) / table.num_bytes as f64
        };
        pool.run(|thread_idx, _| {
            let mut quantized = Quantized::default();
            let progress = self.progress.filter(|_| thread_idx == 0);
            let mut reported = Instant::now();
            while let Some((matrix, piece)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                // SAFETY: the counter gives each piece to one thread, and pieces do not overlap.
                unsafe { matrix.pack_piece(*piece, shared, &mut quantized) };
                if matrix.num_left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    matrix.drop_pages();
                }
                if let Some(progress) = progress.filter(|progress| reported.elapsed() >= progress.interval) {
                    (progress.report)(share(next.load(Ordering::Relaxed)));
                    reported = Instant::now();
                }
            }
        });
        let bad = matrices.iter().map(|matrix| matrix.bad.load(Ordering::Relaxed)).min();
        if let Some(weight) = bad.filter(|weight| *weight != usize::MAX) {
            return Err(ProgramError::Weight {
                weight,
                source: PackError::NotFinite { to: raw[weight].format },
            });
        }
        Ok(bytes)
    }
}

impl WeightImage {
    /// The matrices, as views into the image.
    pub(super) fn weights(&self) -> Vec<PackedWeight> {
        let matrix = |entry: &Entry| match entry.kind {
            EntryKind::Matrix(layout) => Some(PackedWeight::place(layout, &self.region, entry.offset)),
            EntryKind::Vector { .. } => None,
        };
        self.table.entries.iter().filter_map(matrix).collect()
    }

    pub(super) fn vectors(&self) -> Vec<Vec<f32>> {
        let vector = |entry: &Entry| match entry.kind {
            EntryKind::Matrix(_) => None,
            EntryKind::Vector { .. } => {
                let bytes = self.region.slice(entry.offset..entry.offset + entry.num_bytes);
                let value = |bytes: &[u8]| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                Some(bytes.chunks_exact(size_of::<f32>()).map(value).collect())
            }
        };
        self.table.entries.iter().filter_map(vector).collect()
    }
}

/// A matrix that is being packed into the image.
struct Matrix<'a> {
    layout: WeightLayout,
    offset: usize,
    ids: Vec<usize>,
    sources: Vec<&'a RawWeight>,
    parts: Vec<SourceRows<'a>>,
    tiles_per_piece: usize,
    num_left: AtomicUsize,
    /// The least id of a part with a number that is not finite or cannot be quantised, `usize::MAX` if there is none.
    bad: AtomicUsize,
}

/// The rows of a tile while they are quantised.
#[derive(Default)]
struct Quantized {
    values: Vec<f32>,
    bytes: Vec<u8>,
}

impl<'a> Matrix<'a> {
    fn new(
        entry: &Entry,
        offset: usize,
        layout: WeightLayout,
        raw: &'a [RawWeight],
    ) -> Result<Self, ProgramError> {
        let sources: Vec<&RawWeight> = entry.parts.iter().map(|part| &raw[*part as usize]).collect();
        let rows = |(source, part): (&&'a RawWeight, &u32)| {
            source.rows().map_err(|source| ProgramError::Weight { weight: *part as usize, source })
        };
        let parts = sources.iter().zip(&entry.parts).map(rows).collect::<Result<Vec<_>, _>>()?;
        let num_bytes: usize = sources.iter().map(|source| source.bytes.as_slice().len()).sum();
        let tiles_per_piece = (PIECE_BYTES / (num_bytes / layout.num_tiles()).max(1)).max(1);
        let num_left = AtomicUsize::new(layout.num_tiles().div_ceil(tiles_per_piece));
        let ids = entry.parts.iter().map(|part| *part as usize).collect();
        let bad = AtomicUsize::new(usize::MAX);
        Ok(Self { layout, offset, ids, sources, parts, tiles_per_piece, num_left, bad })
    }

    fn drop_pages(&self) {
        self.sources.iter().for_each(|source| source.bytes.drop_pages(0..source.bytes.as_slice().len()));
    }

    fn num_pieces(&self) -> usize {
        self.layout.num_tiles().div_ceil(self.tiles_per_piece)
    }

    /// # Safety
    /// No other thread may pack or read the same piece at the same time.
    unsafe fn pack_piece(&self, piece: usize, image: SharedMut<'_, u8>, quantized: &mut Quantized) {
        let first = piece * self.tiles_per_piece;
        for tile in first..(first + self.tiles_per_piece).min(self.layout.num_tiles()) {
            let [quants, scales, mins] = self.layout.tile_ranges(tile).map(|range| {
                // SAFETY: the ranges of a tile overlap neither each other nor those of other tiles and entries, and the
                // caller has exclusive access to this tile.
                unsafe { image.slice_mut(self.offset + range.start..self.offset + range.end) }
            });
            let into = TileMut { quants, scales, mins };
            let bad = if self.sources.iter().all(|source| source.stored == source.format) {
                self.layout.pack_tile(tile, |row| SourceRows::of_joined(&self.parts, row), into)
            } else {
                let row_bytes = self.quantize_tile(tile, quantized);
                let row = |row| &quantized.bytes[(row - tile * TILE) * row_bytes..][..row_bytes];
                self.layout.pack_tile(tile, row, into)
            };
            if let Some(row) = bad {
                self.bad.fetch_min(self.part_of(row), Ordering::Relaxed);
            }
        }
    }

    /// Returns the id of the part that has a row.
    fn part_of(&self, row: usize) -> usize {
        let mut end = 0;
        let mut ends = self.parts.iter().map(|part| {
            end += part.num_rows();
            end
        });
        self.ids[ends.position(|end| row < end).expect("a row of the matrix")]
    }

    /// Writes the rows of a tile in the format of the matrix. Returns the bytes of a row.
    fn quantize_tile(&self, tile: usize, into: &mut Quantized) -> usize {
        let (format, columns) = (self.sources[0].format, self.sources[0].shape[1]);
        let row_bytes = columns / format.block_elements() * format.block_bytes();
        into.values.resize(columns, 0.0);
        into.bytes.resize(TILE * row_bytes, 0);
        let mut rows = into.bytes.chunks_exact_mut(row_bytes);
        let mut skipped = tile * TILE;
        for ((source, part), id) in self.sources.iter().zip(&self.parts).zip(&self.ids) {
            for row in skipped..part.num_rows() {
                let Some(bytes) = rows.next() else { return row_bytes };
                if source.stored == format {
                    bytes.copy_from_slice(part.row(row));
                } else if dequantize_row(source.stored, part.row(row), &mut into.values).is_err()
                    || !encode(&into.values, format, bytes)
                {
                    self.bad.fetch_min(*id, Ordering::Relaxed);
                }
            }
            skipped = skipped.saturating_sub(part.num_rows());
        }
        row_bytes
    }
}

/// Writes the elements of `parts` to `into` as f32, one part after another.
fn pack_vector(parts: &[u32], raw: &[RawWeight], mut into: &mut [u8]) -> Result<(), ProgramError> {
    for part in parts {
        let source = &raw[*part as usize];
        let mut values = vec![0.0; source.shape[0]];
        dequantize_row(source.format, source.bytes.as_slice(), &mut values)
            .map_err(|source| ProgramError::Weight { weight: *part as usize, source })?;
        let (own, rest) = into.split_at_mut(size_of_val(&values[..]));
        for (index, bytes) in own.chunks_exact_mut(size_of::<f32>()).enumerate() {
            let stored = source.interleaved_heads.map_or(index, |heads| heads.stored(index));
            bytes.copy_from_slice(&values[stored].to_ne_bytes());
        }
        into = rest;
    }
    Ok(())
}
