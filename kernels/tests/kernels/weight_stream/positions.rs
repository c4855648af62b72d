//! Two readers and an executor at random: what counts as loaded is in memory, whatever fails.

use trunkline_kernels::weight_stream::positions::{Positions, Taken};

use crate::random::Random;

/// What the pieces of a pass hold, and who reads.
struct Machine {
    positions: Positions,
    /// True for the pieces that are in memory.
    is_there: Vec<bool>,
    /// The position that each reader reads.
    reading: [Option<u64>; 2],
    free: u64,
    has_failed: bool,
}

impl Machine {
    fn piece(&mut self, position: u64) -> &mut bool {
        let len = self.is_there.len() as u64;
        &mut self.is_there[(position % len) as usize]
    }

    /// Begins or ends a read. One in `odds` fails.
    fn read(&mut self, reader: usize, odds: usize, random: &mut Random) {
        if let Some(position) = self.reading[reader].take() {
            let is_good = random.below(odds) > 0;
            *self.piece(position) = is_good;
            self.positions.end_read(position, is_good);
            self.has_failed |= !is_good;
            while self.positions.can_advance() {
                self.positions.advance();
            }
        } else if !self.has_failed
            && let Some(Taken { position, dropped }) = self.positions.take()
        {
            dropped.into_iter().for_each(|dropped| *self.piece(dropped) = false);
            self.reading[reader] = Some(position);
        }
    }

    /// Waits for the readers, whose reads succeed or not, and restarts.
    fn restart(&mut self, position: Option<u64>, random: &mut Random) {
        for reader in 0..2 {
            if self.reading[reader].is_some() {
                self.read(reader, 3, random);
            }
        }
        assert!(self.positions.is_idle());
        self.positions.restart(position).for_each(|dropped| *self.piece(dropped) = false);
        self.has_failed = false;
        self.free = position.unwrap_or(self.free);
    }

    fn check(&mut self, what: &str) {
        let len = self.is_there.len() as u64;
        for position in self.free..self.positions.loaded() {
            assert!(*self.piece(position), "{what}: position {position} of passes of {len} is not in memory");
        }
    }
}

#[test]
fn what_is_loaded_is_in_memory_until_it_is_given_back() {
    let (mut num_passes, mut num_failed) = (0, 0);
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let num_places = 1 + random.below(8);
        let len = num_places + 1 + random.below(12);
        let odds = 2 + random.below(60);
        let mut machine = Machine {
            positions: Positions::new(num_places),
            is_there: vec![false; len],
            reading: [None; 2],
            free: 0,
            has_failed: false,
        };
        let mut base = 0;
        for event in 0..2000 {
            let what = format!("seed {seed}, event {event}");
            match random.below(4) {
                reader @ 0..2 => machine.read(reader, odds, &mut random),
                2 if machine.free < machine.positions.loaded() => {
                    machine.free += 1;
                    machine.positions.give_back(machine.free);
                }
                // A failure ends the pass where it needs what could not be read, or the next one tries again.
                3 if machine.has_failed && machine.free == base => machine.restart(None, &mut random),
                3 if machine.has_failed && machine.free == machine.positions.loaded() => {
                    num_failed += 1;
                    base += len as u64;
                    machine.restart(Some(base), &mut random);
                }
                _ => {}
            }
            machine.check(&what);
            assert!(machine.is_there.iter().filter(|is| **is).count() <= num_places + 1, "{what}");
            if machine.free == base + len as u64 {
                num_passes += 1;
                base = machine.free;
            }
        }
    }
    assert!(num_passes > 1000 && num_failed > 1000, "{num_passes} {num_failed}");
}
