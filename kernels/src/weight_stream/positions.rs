//! The state of the pieces: those that have been read, are being read and may be read next.
//!
//! Positions count the pieces of all passes: pass `p` has those from `p * order.len()` on. Three of them divide time:
//!
//! ```text
//!  given back      in use or read ahead        being read        not begun
//! ------------ free ------------------ loaded ------------ next ----------
//!              |<--------------- at most `num_places` --------->|
//! ```

use std::collections::VecDeque;
use std::ops::Range;

#[derive(Debug)]
pub struct Positions {
    num_places: u64,
    free: u64,
    loaded: u64,
    next: u64,
    /// True for the positions from `loaded` on that have been read.
    is_read: VecDeque<bool>,
    num_reading: usize,
}

/// A piece that is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub position: u64,
    /// The position whose piece has to be dropped from memory before another one is taken. A later position may be of
    /// the same piece.
    pub dropped: Option<u64>,
}

impl Positions {
    pub fn new(num_places: usize) -> Self {
        let num_places = num_places as u64;
        Self { num_places, free: 0, loaded: 0, next: 0, is_read: VecDeque::new(), num_reading: 0 }
    }

    /// Pieces at earlier positions have been read; those from [`Positions::give_back`] on are in memory.
    pub fn loaded(&self) -> u64 {
        self.loaded
    }

    /// Returns true if no read has begun that has not ended.
    pub fn is_idle(&self) -> bool {
        self.num_reading == 0
    }

    /// Begins a read. Returns `None` if there is no room.
    pub fn take(&mut self) -> Option<Taken> {
        if self.next >= self.free + self.num_places {
            return None;
        }
        let position = self.next;
        self.next += 1;
        self.num_reading += 1;
        self.is_read.push_back(false);
        Some(Taken { position, dropped: position.checked_sub(self.num_places) })
    }

    /// Ends a read, which has succeeded if `is_good`.
    pub fn end_read(&mut self, position: u64, is_good: bool) {
        self.num_reading -= 1;
        // Fits, because there are at most `num_places` of them.
        self.is_read[(position - self.loaded) as usize] = is_good;
    }

    /// Returns true if the next piece to be loaded has been read.
    pub fn can_advance(&self) -> bool {
        self.is_read.front() == Some(&true)
    }

    /// Counts the next piece, which has been read, as loaded.
    pub fn advance(&mut self) {
        self.is_read.pop_front();
        self.loaded += 1;
    }

    /// Gives back the places of all pieces at positions before `free`. Returns false if they were given back before.
    pub fn give_back(&mut self, free: u64) -> bool {
        let is_news = free > self.free;
        self.free = self.free.max(free);
        is_news
    }

    /// Begins to read behind what is loaded, or at `position`, before which nothing is kept. No read has begun. Returns
    /// the positions whose pieces have to be dropped from memory.
    pub fn restart(&mut self, position: Option<u64>) -> Range<u64> {
        let read = self.next.saturating_sub(self.num_places)..self.next;
        self.is_read.clear();
        self.next = position.unwrap_or(self.loaded);
        let Some(position) = position else { return 0..0 };
        (self.free, self.loaded) = (position, position);
        read
    }
}
