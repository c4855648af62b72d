//! Decides which units are in memory, and which one makes room for another. Pure: no memory, no file.
//!
//! A pass needs its units in the order of its stages, and every pass over the same sequences needs the same ones again.
//! With such a cycle, the unit that was needed last is the one that is needed latest, so evicting the least recently
//! used one would never give a hit. Room is made, in this order, by
//!
//! 1. units that the pass does not need, the least recently needed first,
//! 2. units of stages that have ended, the latest first,
//! 3. units of later stages, the latest first.
//!
//! Units are read at most [`STAGES_AHEAD`] stages ahead of the one that runs, because each of them takes the place of
//! one that the next pass would have found.

use std::collections::BTreeSet;
use std::ops::Range;

/// Stages behind the current one whose units are read ahead.
pub const STAGES_AHEAD: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Disk,
    /// It is being read, or written back.
    Moving,
    Memory,
}

#[derive(Clone, Copy, Debug)]
struct Unit {
    place: Place,
    /// Positions of stages that have not ended for which the unit was found or read.
    holds: u32,
    is_dirty: bool,
    /// True once the file has its bytes.
    is_stored: bool,
    /// The last pass that needed it.
    last_pass: u64,
}

#[derive(Debug)]
pub struct Residency {
    units: Vec<Unit>,
    capacity: usize,
    num_taken: usize,
    /// The units in memory, by the last pass that needed them.
    by_use: BTreeSet<(u64, u32)>,
    pass: u64,
    /// The units of the pass, by position.
    order: Vec<u32>,
    /// The end of each stage in `order`.
    ends: Vec<usize>,
    stage: usize,
    /// The first position that was not looked at.
    next: usize,
    /// Units at later positions have been looked at as victims.
    far: usize,
    /// Units of stages that have ended.
    passed: Vec<u32>,
    /// Positions that are being read.
    in_flight: Vec<usize>,
}

/// A unit that is to be read. Its victim has to leave first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    pub position: usize,
    pub unit: u32,
    /// False if nothing was ever written to the unit, whose bytes are then arbitrary.
    pub is_stored: bool,
    pub victim: Option<Victim>,
}

/// A unit that gives its memory up, and is written to the file before if it is dirty. [`Residency::evicted`] tells how
/// that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    pub unit: u32,
    pub is_dirty: bool,
}

impl Residency {
    /// Panics unless `capacity` is at least 1.
    pub fn new(num_units: usize, capacity: usize) -> Self {
        assert!(capacity > 0, "room for a unit");
        let unit = Unit { place: Place::Disk, holds: 0, is_dirty: false, is_stored: false, last_pass: 0 };
        Self {
            units: vec![unit; num_units],
            capacity,
            num_taken: 0,
            by_use: BTreeSet::new(),
            pass: 0,
            order: Vec::new(),
            ends: Vec::new(),
            stage: 0,
            next: 0,
            far: 0,
            passed: Vec::new(),
            in_flight: Vec::new(),
        }
    }

    /// Begins a pass with the given stages, each of which needs all of its units, without duplicates, at the same time.
    ///
    /// Panics if the last pass has not ended, or if a stage needs more units than there is room for.
    pub fn begin_pass(&mut self, stages: impl Iterator<Item = impl Iterator<Item = u32>>) {
        assert!(self.is_idle(), "the last pass has ended");
        self.pass += 1;
        self.order.clear();
        self.ends.clear();
        self.passed.clear();
        for stage in stages {
            let begin = self.order.len();
            self.order.extend(stage);
            assert!(self.order.len() - begin <= self.capacity, "room for a stage");
            self.ends.push(self.order.len());
        }
        for index in 0..self.order.len() {
            self.touch(self.order[index]);
        }
        (self.stage, self.next, self.far) = (0, 0, self.order.len());
    }

    /// Notes that the pass needs a unit.
    fn touch(&mut self, id: u32) {
        let unit = &mut self.units[id as usize];
        if unit.last_pass != self.pass {
            if unit.place == Place::Memory {
                self.by_use.remove(&(unit.last_pass, id));
                self.by_use.insert((self.pass, id));
            }
            unit.last_pass = self.pass;
        }
    }

    /// The positions of a stage.
    pub fn positions(&self, stage: usize) -> Range<usize> {
        let begin = stage.checked_sub(1).map_or(0, |before| self.ends[before]);
        begin..self.ends[stage]
    }

    /// All units at earlier positions are in memory.
    pub fn loaded(&self) -> usize {
        self.in_flight.iter().copied().min().unwrap_or(self.next)
    }

    /// The units that are in memory or being moved.
    pub fn num_taken(&self) -> usize {
        self.num_taken
    }

    /// Returns true if nothing is being read or written back.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Holds the next units that are in memory, up to the first one that has to be read. Returns its position.
    pub fn skip(&mut self) -> Option<usize> {
        let ahead = (self.stage + STAGES_AHEAD).min(self.ends.len().saturating_sub(1));
        let end = self.ends.get(ahead).copied().unwrap_or(0);
        while self.next < end {
            let unit = &mut self.units[self.order[self.next] as usize];
            if unit.place != Place::Memory {
                return Some(self.next);
            }
            unit.holds += 1;
            self.next += 1;
        }
        None
    }

    /// Returns the next unit that has to be read, or `None` if there is none or it has to wait.
    pub fn take(&mut self) -> Option<Load> {
        let position = self.skip()?;
        let id = self.order[position];
        // A victim of this pass may be needed before it has left.
        if self.units[id as usize].place == Place::Moving {
            return None;
        }
        let victim = if self.num_taken < self.capacity {
            self.num_taken += 1;
            None
        } else {
            Some(self.evict()?)
        };
        self.next += 1;
        self.in_flight.push(position);
        let unit = &mut self.units[id as usize];
        unit.place = Place::Moving;
        Some(Load { position, unit: id, is_stored: unit.is_stored, victim })
    }

    fn evict(&mut self) -> Option<Victim> {
        let id = self.victim()?;
        let unit = &mut self.units[id as usize];
        self.by_use.remove(&(unit.last_pass, id));
        unit.place = Place::Moving;
        Some(Victim { unit: id, is_dirty: unit.is_dirty })
    }

    fn victim(&mut self) -> Option<u32> {
        if let Some(&(last_pass, id)) = self.by_use.first()
            && last_pass < self.pass
        {
            return Some(id);
        }
        let is_free = |unit: &Unit| unit.place == Place::Memory && unit.holds == 0;
        while let Some(id) = self.passed.pop() {
            if is_free(&self.units[id as usize]) {
                return Some(id);
            }
        }
        while self.far > self.next + 1 {
            self.far -= 1;
            let id = self.order[self.far];
            if is_free(&self.units[id as usize]) {
                return Some(id);
            }
        }
        None
    }

    /// Ends the eviction of a victim. If it could not be written, the unit stays in memory, and the one that should
    /// take its place must be given up with [`Residency::give_up`].
    pub fn evicted(&mut self, id: u32, is_ok: bool) {
        let unit = &mut self.units[id as usize];
        if is_ok {
            unit.place = Place::Disk;
            unit.is_stored |= unit.is_dirty;
            unit.is_dirty = false;
        } else {
            unit.place = Place::Memory;
            self.by_use.insert((unit.last_pass, id));
            self.num_taken += 1;
        }
    }

    /// Ends the read at a position.
    pub fn end_read(&mut self, position: usize) {
        self.in_flight.retain(|each| *each != position);
        let id = self.order[position];
        let unit = &mut self.units[id as usize];
        unit.place = Place::Memory;
        unit.holds += 1;
        self.by_use.insert((unit.last_pass, id));
    }

    /// Leaves a unit on disk that could not be read.
    pub fn give_up(&mut self, position: usize) {
        self.in_flight.retain(|each| *each != position);
        self.units[self.order[position] as usize].place = Place::Disk;
        self.num_taken -= 1;
    }

    /// Begins a stage, before which the earlier ones have ended.
    pub fn enter(&mut self, stage: usize) {
        while self.stage < stage {
            for position in self.positions(self.stage) {
                self.release(position);
            }
            self.stage += 1;
        }
    }

    fn release(&mut self, position: usize) {
        let id = self.order[position];
        let unit = &mut self.units[id as usize];
        unit.holds = unit.holds.saturating_sub(1);
        if unit.holds == 0 {
            self.passed.push(id);
        }
    }

    /// Marks a unit of the current stage as written to.
    pub fn mark_dirty(&mut self, id: u32) {
        self.units[id as usize].is_dirty = true;
    }

    /// Reads nothing more for this pass.
    pub fn stop(&mut self) {
        self.ends.clear();
    }

    /// Ends the pass. It must be idle.
    pub fn end_pass(&mut self) {
        self.stop();
        for index in 0..self.order.len() {
            self.units[self.order[index] as usize].holds = 0;
        }
    }
}
