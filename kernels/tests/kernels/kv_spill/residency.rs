//! Workers and steps at random: a stage finds what was written last, within the memory, and hits stay in memory.

use std::collections::HashMap;

use trunkline_kernels::kv_spill::residency::{Load, Residency, STAGES_AHEAD};

use crate::random::Random;

/// Units that hold the number of the write that wrote them last.
struct Machine {
    residency: Residency,
    memory: HashMap<u32, u64>,
    disk: HashMap<u32, u64>,
    /// The write that each unit should hold.
    expected: HashMap<u32, u64>,
    /// The load of each worker, and true once its victim has left.
    working: Vec<(Load, bool)>,
    num_writes: u64,
    num_reads: usize,
    failed_at: Option<usize>,
}

impl Machine {
    fn new(num_units: usize, capacity: usize) -> Self {
        Self {
            residency: Residency::new(num_units, capacity),
            memory: HashMap::new(),
            disk: HashMap::new(),
            expected: HashMap::new(),
            working: Vec::new(),
            num_writes: 0,
            num_reads: 0,
            failed_at: None,
        }
    }

    /// Lets a worker do its next thing, if there is any. One in `odds` reads and writes fails.
    fn work(&mut self, odds: Option<usize>, random: &mut Random) {
        let fails = odds.is_some_and(|odds| random.below(odds) == 0);
        let begins = self.working.len() < 2 && self.failed_at.is_none() && random.below(2) == 0;
        if begins && let Some(load) = self.residency.take() {
            self.working.push((load, load.victim.is_none()));
            return;
        }
        if self.working.is_empty() {
            return;
        }
        let index = random.below(self.working.len());
        let (load, has_left) = self.working[index];
        if has_left {
            self.working.swap_remove(index);
            if fails && load.is_stored {
                self.fail(load);
                return;
            }
            let held = if load.is_stored { self.disk[&load.unit] } else { 0 };
            assert!(self.memory.insert(load.unit, held).is_none(), "one worker reads a unit");
            self.num_reads += 1;
            self.residency.end_read(load.position);
        } else if let Some(victim) = load.victim {
            if victim.is_dirty && fails {
                self.working.swap_remove(index);
                self.residency.evicted(victim.unit, false);
                self.fail(load);
                return;
            }
            let held = self.memory.remove(&victim.unit).expect("victims are in memory");
            if victim.is_dirty {
                self.disk.insert(victim.unit, held);
            }
            self.residency.evicted(victim.unit, true);
            self.working[index].1 = true;
        }
    }

    fn fail(&mut self, load: Load) {
        self.residency.give_up(load.position);
        self.failed_at = Some(self.failed_at.map_or(load.position, |at| at.min(load.position)));
    }

    /// Runs a pass whose stages need the given units. Writes one in `writes` of them.
    fn pass(&mut self, stages: &[Vec<u32>], writes: usize, odds: Option<usize>, random: &mut Random) {
        self.residency.begin_pass(stages.iter().map(|stage| stage.iter().copied()));
        for (stage, units) in stages.iter().enumerate() {
            self.residency.enter(stage);
            let end = self.residency.positions(stage).end;
            let mut num_turns = 0;
            while self.residency.loaded() < end && self.failed_at.is_none_or(|at| at >= end) {
                self.work(odds, random);
                num_turns += 1;
                assert!(num_turns < 1000 * (1 + units.len()), "stage {stage} waits for ever");
            }
            if self.failed_at.is_some_and(|at| at < end) {
                break;
            }
            for unit in units {
                let held = self.memory.get(unit).expect("the stage's units are in memory");
                assert_eq!(*held, self.expected.get(unit).copied().unwrap_or(0), "unit {unit}");
                if random.below(writes) == 0 {
                    self.num_writes += 1;
                    self.residency.mark_dirty(*unit);
                    self.memory.insert(*unit, self.num_writes);
                    self.expected.insert(*unit, self.num_writes);
                }
            }
            (0..random.below(6)).for_each(|_| self.work(odds, random));
        }
        self.residency.stop();
        while !self.residency.is_idle() {
            self.work(odds, random);
        }
        self.residency.end_pass();
        self.failed_at = None;
    }
}

/// A random choice of the places of `num_layers` layers, as a step needs them.
fn stages(num_layers: usize, num_places: usize, random: &mut Random) -> Vec<Vec<u32>> {
    let places: Vec<u32> = (0..num_places as u32).filter(|_| random.below(2) == 0).collect();
    let mut layers: Vec<usize> = (0..num_layers).collect();
    // A layer that reads K and V of an earlier one.
    if random.below(3) == 0 {
        layers.push(random.below(num_layers));
    }
    layers
        .into_iter()
        .map(|layer| places.iter().map(|at| (layer * num_places) as u32 + at).collect())
        .collect()
}

#[test]
fn stages_find_what_was_written_last() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (num_layers, num_places) = (1 + random.below(6), 1 + random.below(6));
        let num_units = num_layers * num_places;
        let capacity = num_places + random.below(num_units);
        let mut machine = Machine::new(num_units, capacity);
        for _ in 0..20 {
            let stages = stages(num_layers, num_places, &mut random);
            let odds = if random.below(4) == 0 { Some(1 + random.below(8)) } else { None };
            machine.pass(&stages, 3, odds, &mut random);
            assert!(machine.residency.num_taken() <= capacity, "seed {seed}");
            assert_eq!(machine.memory.len(), machine.residency.num_taken(), "seed {seed}");
        }
    }
}

#[test]
fn passes_over_the_same_units_find_most_of_the_memory() {
    let (num_layers, num_places, capacity) = (20, 4, 50);
    let mut random = Random::new(1);
    let mut machine = Machine::new(num_layers * num_places, capacity);
    let all: Vec<Vec<u32>> = (0..num_layers as u32)
        .map(|layer| (layer * num_places as u32..(layer + 1) * num_places as u32).collect())
        .collect();
    for pass in 0..10 {
        machine.num_reads = 0;
        machine.pass(&all, usize::MAX, None, &mut random);
        let most = num_layers * num_places - capacity + (STAGES_AHEAD + 1) * num_places;
        assert!(pass == 0 || machine.num_reads <= most, "{} reads in pass {pass}", machine.num_reads);
    }
    // Two sequences by turns that fit into the memory together are read once.
    let half = |places: [u32; 2]| -> Vec<Vec<u32>> {
        (0..12).map(|layer| places.map(|place| layer * num_places as u32 + place).to_vec()).collect()
    };
    for pass in 0..10 {
        machine.num_reads = 0;
        machine.pass(&half(if pass % 2 == 0 { [0, 1] } else { [2, 3] }), 1, None, &mut random);
        assert!(pass < 2 || machine.num_reads == 0, "{} reads in pass {pass}", machine.num_reads);
    }
}
