//! Tests of the thread pool: barriers, panics and sleep.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use trunkline_kernels::shared_mut::SharedMut;
use trunkline_kernels::threads::{ThreadPool, default_num_threads, split};

#[test]
fn every_thread_runs_the_closure_once() {
    for num_threads in [0, 1, 2, 5] {
        let mut pool = ThreadPool::new(num_threads).unwrap();
        assert_eq!(pool.num_threads(), num_threads.max(1));
        for _ in 0..50 {
            let calls: Vec<AtomicUsize> = (0..pool.num_threads()).map(|_| AtomicUsize::new(0)).collect();
            pool.run(|thread_idx, _| {
                calls[thread_idx].fetch_add(1, Ordering::Relaxed);
            });
            assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1), "{calls:?}");
        }
    }
}

#[test]
fn the_caller_is_thread_0() {
    let caller = std::thread::current().id();
    ThreadPool::new(3).unwrap().run(|thread_idx, _| {
        assert_eq!(thread_idx == 0, std::thread::current().id() == caller);
    });
}

/// In each round every thread sums what all threads wrote in the previous round. The sum is wrong if a thread passes a
/// barrier early or misses a write. There are more threads than CPUs, so that waits also sleep.
#[test]
fn writes_before_a_barrier_are_visible_after_it() {
    const ROUNDS: u64 = 300;
    for num_threads in [1, 2, 3, 8] {
        let mut cells = vec![1u64; 2 * num_threads];
        let shared = SharedMut::new(&mut cells);
        let mut pool = ThreadPool::new(num_threads).unwrap();
        for _ in 0..3 {
            pool.run(|thread_idx, barrier| {
                for round in 0..ROUNDS as usize {
                    let (read, write) = (round % 2 * num_threads, (round + 1) % 2 * num_threads);
                    // SAFETY: threads read one half and write disjoint elements of the other.
                    unsafe {
                        let sum = shared
                            .slice(read..read + num_threads)
                            .iter()
                            .fold(0u64, |a, b| a.wrapping_add(*b));
                        shared.slice_mut(write + thread_idx..write + thread_idx + 1)[0] = sum;
                    }
                    barrier.wait();
                }
            });
        }
        let expected = (0..3 * ROUNDS).fold(1u64, |value, _| value.wrapping_mul(num_threads as u64));
        assert!(
            cells[..num_threads].iter().all(|&cell| cell == expected),
            "{num_threads} threads: {cells:?}"
        );
    }
}

#[test]
fn a_panic_on_any_thread_propagates_and_leaves_the_pool_usable() {
    for num_threads in [1, 2, 4] {
        let mut pool = ThreadPool::new(num_threads).unwrap();
        for bad in 0..num_threads {
            for panic_round in [0, 1, 7] {
                let after = AtomicUsize::new(0);
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    pool.run(|thread_idx, barrier| {
                        for round in 0..20 {
                            assert!(
                                thread_idx != bad || round != panic_round,
                                "thread {bad} in round {round}"
                            );
                            barrier.wait();
                            after.fetch_add(usize::from(round >= panic_round), Ordering::Relaxed);
                        }
                    });
                }));
                let payload = outcome.expect_err("a panic");
                let message = payload.downcast_ref::<String>().unwrap();
                assert_eq!(*message, format!("thread {bad} in round {panic_round}"));
                assert_eq!(
                    after.load(Ordering::Relaxed),
                    0,
                    "somebody passed a barrier that one never reached"
                );
                let calls = AtomicUsize::new(0);
                pool.run(|_, barrier| {
                    barrier.wait();
                    calls.fetch_add(1, Ordering::Relaxed);
                });
                assert_eq!(calls.load(Ordering::Relaxed), num_threads);
            }
        }
    }
}

#[test]
fn pools_that_never_ran_can_be_dropped() {
    for num_threads in [1, 2, 16] {
        drop(ThreadPool::new(num_threads).unwrap());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_idle_pool_sleeps() {
    let mut pool = ThreadPool::new(3).unwrap();
    let worker_ids = std::sync::Mutex::new(Vec::new());
    pool.run(|thread_idx, _| {
        if thread_idx > 0 {
            // SAFETY: the call has no arguments and cannot fail.
            worker_ids.lock().unwrap().push(unsafe { libc::gettid() });
        }
    });
    // A sleeping thread is in state S, which it reaches after its bounded spin. A spinning thread never does.
    for thread_id in worker_ids.into_inner().unwrap() {
        let path = format!("/proc/self/task/{thread_id}/stat");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let stat = std::fs::read_to_string(&path).unwrap();
            let state = stat.rsplit(')').next().unwrap().trim_start().chars().next();
            if state == Some('S') {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "worker {thread_id} is in state {state:?}");
            std::thread::yield_now();
        }
    }
}

#[test]
fn parts_of_a_range_are_contiguous_and_nearly_equal() {
    for len in [0usize, 1, 2, 7, 8, 100] {
        for parts in [1, 2, 3, 7, 64] {
            let mut next = 5;
            for index in 0..parts {
                let part = split(5..5 + len, parts, index);
                assert_eq!(part.start, next);
                assert!(part.len() == len / parts || part.len() == len / parts + 1);
                next = part.end;
            }
            assert_eq!(next, 5 + len);
        }
    }
}

#[test]
fn there_is_at_least_one_thread_by_default() {
    assert!(default_num_threads() >= 1);
}
