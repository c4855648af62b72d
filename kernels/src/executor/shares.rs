//! Work stealing for matrix products: each thread begins with its own part and then takes units from other parts.
//!
//! A thread on a slow core takes fewer units, so the others do not wait long for it. Parts are contiguous: while all
//! threads are equally fast, each reads the same weights in every step, front to back. The result does not depend on
//! which thread computes a unit.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::linear::PANEL;
use crate::threads::split;

/// Bytes of the input rows of a unit, chosen so that they stay in the second-level cache while tiles are read.
const ROW_BLOCK_BYTES: usize = 384 << 10;
/// A unit should take at least as long as reading this many bytes of weights (about 3 us on one core).
const UNIT_BYTES: usize = 64 << 10;
/// A unit should also take at least as long as this many multiply-accumulates.
const UNIT_MACS: usize = 1 << 20;
pub(super) const MIN_UNITS: usize = 4;
/// The number of other parts that a thread searches for work.
const MAX_VICTIMS: usize = 7;

/// The number of units taken from a part, on its own cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cursor(AtomicUsize);

/// Two sets of cursors, one cursor per thread in each: while one set serves a product, the other is reset for the next.
#[derive(Debug)]
pub struct Cursors {
    sets: [Vec<Cursor>; 2],
}

impl Cursors {
    pub fn new(num_threads: usize) -> Self {
        let set = || (0..num_threads).map(|_| Cursor::default()).collect();
        Self { sets: [set(), set()] }
    }

    pub fn reset(&mut self) {
        self.sets.iter_mut().flatten().for_each(|cursor| *cursor.0.get_mut() = 0);
    }

    /// Resets this thread's cursor for the next product, in place of [`Cursors::share`], if a product has no rows.
    pub fn skip(&self, ordinal: usize, thread_idx: usize) {
        // All threads have finished the previous product, which used the same set as the next one.
        self.sets[(ordinal + 1) % 2][thread_idx].0.store(0, Ordering::Relaxed);
    }

    /// Calls `work` with units of product `ordinal` of the step until all are taken. Every thread calls this or
    /// [`Cursors::skip`] for every product, with a barrier between products.
    pub fn share(&self, ordinal: usize, thread_idx: usize, units: &Units, mut work: impl FnMut(Unit)) {
        self.skip(ordinal, thread_idx);
        let set = &self.sets[ordinal % 2];
        let num_threads = set.len();
        for offset in 0..num_threads.min(1 + MAX_VICTIMS) {
            let owner = (thread_idx + offset) % num_threads;
            let part = units.part(owner, num_threads);
            loop {
                let next = &set[owner].0;
                // Load first: `fetch_add` would take the cache line away from its owner.
                if offset > 0 && next.load(Ordering::Relaxed) >= part.num_units() {
                    break;
                }
                let taken = next.fetch_add(1, Ordering::Relaxed);
                if taken >= part.num_units() {
                    break;
                }
                work(part.unit(taken, units));
            }
        }
    }
}

/// Rows and tiles of a product that one thread computes at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub rows: Range<usize>,
    pub tiles: Range<usize>,
}

#[derive(Clone, Copy, Debug)]
pub struct Units {
    num_rows: usize,
    num_tiles: usize,
    rows_per_unit: usize,
    tiles_per_unit: usize,
}

/// The tiles that belong to one thread.
struct Part {
    tiles: Range<usize>,
    num_row_blocks: usize,
    num_tile_blocks: usize,
}

impl Part {
    fn num_units(&self) -> usize {
        self.num_row_blocks * self.num_tile_blocks
    }

    /// Returns unit `index`. All tiles of a block of rows come before the next block.
    fn unit(&self, index: usize, units: &Units) -> Unit {
        let (row_block, tile_block) = (index / self.num_tile_blocks, index % self.num_tile_blocks);
        let first_row = row_block * units.rows_per_unit;
        let first_tile = self.tiles.start + tile_block * units.tiles_per_unit;
        Unit {
            rows: first_row..(first_row + units.rows_per_unit).min(units.num_rows),
            tiles: first_tile..(first_tile + units.tiles_per_unit).min(self.tiles.end),
        }
    }
}

/// The number of tiles, up to `most`, whose products with some rows are worth a unit.
pub fn tiles_per_unit(num_rows: usize, tile_bytes: usize, tile_elements: usize, most: usize) -> usize {
    let tile_cost = (tile_bytes * (UNIT_MACS / UNIT_BYTES)).max(num_rows.max(1) * tile_elements).max(1);
    // An even number, because AMX multiplies two tiles at once.
    (UNIT_MACS / tile_cost).max(1).next_multiple_of(2).min(most.max(1))
}

impl Units {
    /// Divides a product of `num_rows` rows of `row_bytes` with a weight of `num_tiles` tiles, each of `tile_bytes` and
    /// `tile_elements`. Units are smaller if a thread would otherwise have fewer than [`MIN_UNITS`].
    pub fn new(
        num_rows: usize,
        row_bytes: usize,
        (num_tiles, tile_bytes, tile_elements): (usize, usize, usize),
        num_threads: usize,
    ) -> Self {
        let mut rows_per_unit = (ROW_BLOCK_BYTES / row_bytes.max(1)).next_multiple_of(PANEL).max(PANEL);
        if num_tiles < num_threads {
            let row_blocks = num_threads.div_ceil(num_tiles.max(1));
            rows_per_unit = rows_per_unit.min(num_rows.div_ceil(row_blocks).next_multiple_of(PANEL));
        }
        let rows = rows_per_unit.min(num_rows);
        let most = num_tiles.div_ceil(num_threads * MIN_UNITS);
        let tiles_per_unit = tiles_per_unit(rows, tile_bytes, tile_elements, most);
        Self { num_rows, num_tiles, rows_per_unit, tiles_per_unit }
    }

    /// Divides `num_tiles` tiles, with all rows of each in one unit.
    pub fn of_tiles(num_tiles: usize, tiles_per_unit: usize) -> Self {
        Self { num_rows: 1, num_tiles, rows_per_unit: 1, tiles_per_unit }
    }

    fn part(&self, owner: usize, num_threads: usize) -> Part {
        let tiles = split(0..self.num_tiles, num_threads, owner);
        let num_tile_blocks = tiles.len().div_ceil(self.tiles_per_unit);
        Part { tiles, num_row_blocks: self.num_rows.div_ceil(self.rows_per_unit), num_tile_blocks }
    }
}
