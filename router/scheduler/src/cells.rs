//! Keeps sequences apart that may crash the shard together.
//!
//! Some sequences crash the shard only in one step with certain others. Each of them is cleared when it runs by itself
//! (`loss.rs`), and the next step that has them both crashes again. So sequences that were in flight at two losses are
//! divided among cells, and a step has sequences of one cell only. If they are in flight at one more loss, the cells
//! become smaller, and at last each sequence has one of its own.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::Millis;
use crate::poison::POISON_MS;
use crate::sequence::{CellId, Sequence, SequenceKey};
use crate::sequences::Sequences;

/// The numbers of cells among which the sequences of a cell are divided, the first time and the second time. The third
/// time each gets a cell of its own.
///
/// Two sequences stay together with a probability of one in so many, and the steps of separated sequences become
/// smaller by the same factor.
const NUM_CELLS: [u64; 2] = [4, 16];
/// The number of separations after which a sequence shares its steps with no other one.
const MAX_SEPARATIONS: u8 = NUM_CELLS.len() as u8 + 1;

/// The cells, as far as sequences are separated.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    /// The moment from which all sequences may share steps again; none if they may now.
    until: Option<Millis>,
    /// The highest number in use.
    newest: CellId,
}

/// The turns that the cells take on a lane.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The last cell that had a step, other than cell 0.
    last: CellId,
    /// True if the last step was of cell 0.
    was_common: bool,
}

impl Turns {
    /// Notes that the next step is one of this cell.
    pub(crate) fn took(&mut self, cell: CellId) {
        self.was_common = cell == 0;
        if cell > 0 {
            self.last = cell;
        }
    }
}

impl Cells {
    /// Returns true while some sequences may not share steps.
    pub(crate) fn are_apart(&self) -> bool {
        self.until.is_some()
    }

    /// Gives a new sequence a cell of its own.
    pub(crate) fn isolate(&mut self, sequence: &mut Sequence, now: Millis) {
        (sequence.num_separations, sequence.cell) = (MAX_SEPARATIONS, self.new_cells(1));
        self.until = Some(now.plus(POISON_MS));
    }

    /// Divides these sequences among new cells. Returns those of them whose cell is smaller now. Sequences of different
    /// cells never come into the same one.
    pub(crate) fn separate(
        &mut self,
        sequences: &mut Sequences,
        keys: &[SequenceKey],
        now: Millis,
    ) -> Vec<SequenceKey> {
        let mut groups: BTreeMap<CellId, Vec<SequenceKey>> = BTreeMap::new();
        for &key in keys.iter().filter(|&&key| sequences[key].num_separations < MAX_SEPARATIONS) {
            groups.entry(sequences[key].cell).or_default().push(key);
        }
        for group in groups.values() {
            let num_before = sequences[group[0]].num_separations;
            let num_cells = NUM_CELLS.get(usize::from(num_before)).copied().unwrap_or(group.len() as u64);
            let first = self.new_cells(num_cells);
            for (index, &key) in (0..).zip(group) {
                sequences[key].cell = first + index % num_cells;
                sequences[key].num_separations = num_before + 1;
            }
            self.until = Some(now.plus(POISON_MS));
        }
        groups.into_values().flatten().collect()
    }

    /// Returns the cells in the order in which they may have the lane's next step; none if all sequences may share it.
    /// Cell 0 has every second step, so that separated sequences slow the others down by half at most.
    pub(crate) fn order(
        &mut self,
        turns: &Turns,
        sequences: &mut Sequences,
        now: Millis,
    ) -> Option<Vec<CellId>> {
        if self.until? <= now {
            self.until = None;
            sequences.join_cells();
            return None;
        }
        let cells = sequences.iter().map(|(_, sequence)| sequence.cell);
        let present: BTreeSet<CellId> = cells.filter(|&cell| cell > 0).collect();
        let (earlier, later) = (present.range(..=turns.last), present.range(turns.last + 1..));
        let mut order: Vec<CellId> = later.chain(earlier).copied().collect();
        order.insert(if turns.was_common { order.len() } else { 0 }, 0);
        Some(order)
    }

    fn new_cells(&mut self, count: u64) -> CellId {
        let first = self.newest + 1;
        self.newest += count;
        first
    }
}
