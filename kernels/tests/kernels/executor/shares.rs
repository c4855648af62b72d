use std::sync::Mutex;

use trunkline_kernels::executor::shares::{Cursors, Unit, Units};
use trunkline_kernels::linear::PANEL;
use trunkline_kernels::threads::ThreadPool;

use crate::random::Random;

struct Product {
    num_rows: usize,
    num_tiles: usize,
    units: Units,
    num_units: usize,
}

impl Product {
    fn random(random: &mut Random, num_threads: usize) -> Self {
        let tile = (random.below(70), 1 + random.below(10_000), 16 * (1 + random.below(2000)));
        let num_rows = 1 + random.below(300);
        let units = Units::new(num_rows, 1 + random.below(60_000), tile, num_threads);
        Self { num_rows, num_tiles: tile.0, units, num_units: taken_alone(&units, num_threads).len() }
    }
}

/// Returns the units that the first thread takes if no other thread runs.
fn taken_alone(units: &Units, num_threads: usize) -> Vec<Unit> {
    let mut taken = vec![];
    Cursors::new(num_threads).share(0, 0, units, |unit| taken.push(unit));
    taken
}

#[test]
fn every_row_of_every_tile_is_in_one_unit_at_any_thread_speed() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let num_threads = 1 + random.below(5);
        let mut pool = ThreadPool::new(num_threads).unwrap();
        let mut cursors = Cursors::new(num_threads);
        for _ in 0..2 {
            let products: Vec<Product> = (0..5).map(|_| Product::random(&mut random, num_threads)).collect();
            let slow = random.below(num_threads + 1);
            cursors.reset();
            let taken: Vec<Mutex<Vec<Unit>>> = products.iter().map(|_| Default::default()).collect();
            let cursors = &cursors;
            pool.run(|thread_idx, barrier| {
                for (ordinal, product) in products.iter().enumerate() {
                    barrier.wait();
                    // One thread starts after the others are done.
                    let is_slow = thread_idx == slow && num_threads > 1;
                    if is_slow {
                        while taken[ordinal].lock().unwrap().len() < product.num_units {
                            std::thread::yield_now();
                        }
                    }
                    cursors.share(ordinal, thread_idx, &product.units, |unit| {
                        assert!(!is_slow, "nothing is left for who comes last");
                        taken[ordinal].lock().unwrap().push(unit);
                    });
                }
            });
            for (product, taken) in products.iter().zip(taken) {
                let mut seen = vec![0; product.num_rows * product.num_tiles];
                for unit in taken.into_inner().unwrap() {
                    assert!(unit.rows.start.is_multiple_of(PANEL) && !unit.tiles.is_empty());
                    for row in unit.rows {
                        unit.tiles.clone().for_each(|tile| seen[row * product.num_tiles + tile] += 1);
                    }
                }
                assert!(seen.iter().all(|count| *count == 1), "seed {seed}: {:?}", product.units);
            }
        }
    }
}

#[test]
fn units_are_small_enough_to_be_shared_and_large_enough_to_be_worth_it() {
    // Products of SmolLM2-135M on two threads: one row of the output head, one and 1,000 rows of gate and up.
    let first = |num_rows, tiles: (usize, usize, usize)| {
        taken_alone(&Units::new(num_rows, 576, tiles, 2), 2).remove(0)
    };
    assert_eq!(first(1, (3072, 16 * 612, 16 * 576)), Unit { rows: 0..1, tiles: 0..6 });
    assert_eq!(first(1, (192, 16 * 360, 16 * 576)), Unit { rows: 0..1, tiles: 0..12 });
    assert_eq!(first(1000, (192, 16 * 360, 16 * 576)), Unit { rows: 0..688, tiles: 0..2 });
    assert_eq!(first(1, (36, 16 * 360, 16 * 576)), Unit { rows: 0..1, tiles: 0..5 });
}
