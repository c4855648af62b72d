//! The thread pool, which runs one closure on all threads at once, with barriers inside.
//!
//! A step of the model is several hundred operations of tens of microseconds each. Handing each one to sleeping threads
//! would cost as much as the work, so a whole step is one [`ThreadPool::run`], and threads wait at a [`Barrier`]
//! between operations. A wait spins for a bounded time and then sleeps: short waits are cheap, an oversubscribed
//! machine still makes progress, and an idle pool uses no CPU.
//!
//! If the system puts two threads of a pool on one CPU, the one that spins keeps the other from running, and yielding
//! may hand the CPU to another process. So each thread records its current CPU, and a thread that would wait for
//! another thread on its own CPU sleeps at once. When it wakes up, the system looks for an idle CPU.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use crate::cpus::{UsableCpus, pin, unpin};

/// The longest time that a thread spins at a barrier within a step before it sleeps.
const STEP_SPIN: Duration = Duration::from_micros(100);
/// The longest time that a worker spins after a step, in case the next one follows immediately.
const IDLE_SPIN: Duration = Duration::from_micros(50);
/// Number of spins between two clock reads.
const SPINS_PER_CLOCK: u32 = 32;

/// The default number of threads: one per core that the calling thread may use, within the cgroup quota.
pub fn default_num_threads() -> usize {
    UsableCpus::detect().default_num_threads()
}

/// The pinning of a pool's threads to separate cores.
///
/// Without pinning, the system may put two threads on one core while another process is busy on the other core. Pinned
/// threads never share a core, but they cannot move away from a busy one either: beside a program that keeps one of two
/// cores busy, they are up to a fifth slower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pinning {
    /// On if the threads occupy every usable core and no cgroup quota limits them.
    Auto,
    On,
    /// The system places the threads.
    #[default]
    Off,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pinning {name:?} is unknown; hint: use `auto`, `on` or `off`")]
pub struct UnknownPinning {
    pub name: String,
}

impl std::str::FromStr for Pinning {
    type Err = UnknownPinning;

    fn from_str(name: &str) -> Result<Self, UnknownPinning> {
        match name {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(UnknownPinning { name: name.to_owned() }),
        }
    }
}

impl Pinning {
    /// The CPUs of each thread; `None` lets the system place them.
    fn placement(self, num_threads: usize, usable: &UsableCpus) -> Option<Vec<Vec<usize>>> {
        let is_pinned = match self {
            Self::Auto => num_threads > 1 && usable.are_all_taken_by(num_threads),
            Self::On => true,
            Self::Off => false,
        };
        if is_pinned { usable.placement(num_threads) } else { None }
    }
}

/// Returns part `index` of `range`, divided into `parts` contiguous parts whose lengths differ by at most one. The
/// longer parts come first. Parts may be empty.
///
/// # Panics
/// Panics if `index >= parts`.
pub fn split(range: Range<usize>, parts: usize, index: usize) -> Range<usize> {
    assert!(index < parts, "part {index} of {parts}");
    let len = range.len();
    let (quotient, remainder) = (len / parts, len % parts);
    let start = range.start + index * quotient + index.min(remainder);
    start..start + quotient + usize::from(index < remainder)
}

/// Puts a value on its own cache lines, to avoid false sharing.
#[derive(Debug, Default)]
#[repr(align(128))]
struct OwnLine<T>(T);

/// A thread's state at a rendezvous, visible to the other threads.
#[derive(Debug, Default)]
struct Arrival {
    /// Number of the CPU on which the thread last arrived or woke up.
    cpu: AtomicU32,
    count: AtomicU32,
}

/// A reusable rendezvous of all threads of a pool.
///
/// It counts arrivals. The last thread to arrive advances `epoch`, which the others watch.
#[derive(Debug)]
struct Rendezvous {
    /// The longest time that a thread spins before it sleeps.
    spin: Duration,
    arrived: OwnLine<AtomicU32>,
    epoch: OwnLine<AtomicU32>,
    /// The state of each thread: a hint whether spinning is useful. Correctness does not depend on it.
    arrivals: Vec<OwnLine<Arrival>>,
    /// Number of threads in the slow path. A sleeper increments it before its last load of `epoch`, and the waker loads
    /// it after storing `epoch`. All four are sequentially consistent, so either the sleeper sees the new epoch or the
    /// waker sees the sleeper.
    num_sleepers: AtomicU32,
    poisoned: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

/// The payload that unwinds a thread because another thread panicked. `run` reports the other thread's panic.
struct OtherThreadPanicked;

impl Rendezvous {
    fn new(num_threads: usize, spin: Duration) -> Self {
        Self {
            spin,
            arrived: OwnLine::default(),
            epoch: OwnLine::default(),
            arrivals: (0..num_threads).map(|_| OwnLine::default()).collect(),
            num_sleepers: AtomicU32::new(0),
            poisoned: AtomicBool::new(false),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Waits until every thread has called it. Unwinds if another thread panicked.
    fn wait(&self, thread_idx: usize) {
        let epoch = self.epoch.0.load(Ordering::SeqCst);
        if !self.is_poisoned() {
            let own = &self.arrivals[thread_idx].0;
            own.cpu.store(current_cpu(), Ordering::Relaxed);
            own.count.fetch_add(1, Ordering::Relaxed);
            if self.arrived.0.fetch_add(1, Ordering::SeqCst) as usize + 1 == self.arrivals.len() {
                self.arrived.0.store(0, Ordering::SeqCst);
                self.epoch.0.store(epoch.wrapping_add(1), Ordering::SeqCst);
                self.wake_sleepers();
            } else if !self.spin_until_open(epoch, thread_idx) {
                self.sleep_until_open(epoch);
                own.cpu.store(current_cpu(), Ordering::Relaxed);
            }
        }
        if self.is_poisoned() {
            resume_unwind(Box::new(OtherThreadPanicked));
        }
    }

    fn is_open(&self, epoch: u32) -> bool {
        self.epoch.0.load(Ordering::SeqCst) != epoch || self.is_poisoned()
    }

    fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::SeqCst)
    }

    /// Spins until the epoch has passed and returns true. Returns false if it is better to sleep.
    fn spin_until_open(&self, epoch: u32, thread_idx: usize) -> bool {
        let mut start = None;
        loop {
            for _ in 0..SPINS_PER_CLOCK {
                if self.is_open(epoch) {
                    return true;
                }
                std::hint::spin_loop();
            }
            let waited = start.get_or_insert_with(Instant::now).elapsed();
            if waited >= self.spin || self.shares_cpu_with_late_thread(thread_idx) {
                return false;
            }
        }
    }

    /// Returns true if a thread that has not arrived yet was last on this thread's CPU.
    fn shares_cpu_with_late_thread(&self, thread_idx: usize) -> bool {
        let own_arrivals = self.arrivals[thread_idx].0.count.load(Ordering::Relaxed);
        let cpu = current_cpu();
        cpu != UNKNOWN_CPU
            && self.arrivals.iter().any(|OwnLine(arrival)| {
                arrival.count.load(Ordering::Relaxed) != own_arrivals
                    && arrival.cpu.load(Ordering::Relaxed) == cpu
            })
    }

    fn sleep_until_open(&self, epoch: u32) {
        self.num_sleepers.fetch_add(1, Ordering::SeqCst);
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_open(epoch) {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.num_sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake_sleepers(&self) {
        if self.num_sleepers.load(Ordering::SeqCst) > 0 {
            // While the lock is held, no sleeper is between its last check of the epoch and its sleep.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    /// Releases all current and future waiters, which then unwind.
    fn poison(&self) {
        self.poisoned.store(true, Ordering::SeqCst);
        self.wake_sleepers();
    }

    /// Makes the rendezvous usable again after a panic. No thread may be waiting.
    fn reset(&self) {
        if self.is_poisoned() {
            self.arrived.0.store(0, Ordering::SeqCst);
            self.arrivals.iter().for_each(|OwnLine(arrival)| arrival.count.store(0, Ordering::Relaxed));
            self.poisoned.store(false, Ordering::SeqCst);
        }
    }
}

const UNKNOWN_CPU: u32 = u32::MAX;

/// The number of the CPU that the calling thread runs on, which may change at any time.
#[cfg(target_os = "linux")]
fn current_cpu() -> u32 {
    // SAFETY: the call has no arguments. It returns -1 on failure, which is `UNKNOWN_CPU`.
    unsafe { libc::sched_getcpu() }.cast_unsigned()
}

/// The number of the CPU that the calling thread runs on, which is not known on this system.
#[cfg(not(target_os = "linux"))]
fn current_cpu() -> u32 {
    UNKNOWN_CPU
}

/// One thread's handle to the barrier of a run.
#[derive(Debug)]
pub struct Barrier<'a> {
    rendezvous: &'a Rendezvous,
    thread_idx: usize,
}

impl Barrier<'_> {
    /// Waits until every thread of the pool has called it. Writes before the call are visible to all threads after it.
    ///
    /// Unwinds if another thread panicked.
    pub fn wait(&self) {
        self.rendezvous.wait(self.thread_idx);
    }
}

type Job<'a> = &'a (dyn Fn(usize, &Barrier<'_>) + Sync + 'a);

/// The workers' next task, written by the pool's owner while they wait at `start`.
enum Order {
    Run(Job<'static>),
    Exit,
}

struct Shared {
    /// Begins a run. The owner arrives after it has written `order`.
    start: Rendezvous,
    /// The barrier within a run, poisoned by a panic.
    step: Rendezvous,
    /// Ends a run. After it, no worker uses the job.
    end: Rendezvous,
    order: UnsafeCell<Order>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `order` is written only by the pool's owner between `end` and `start`, when every worker waits at `start`,
// and read only between `start` and `end`. Both order memory accesses. The job in it is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as for `Sync`; no field is bound to a thread.
unsafe impl Send for Shared {}

impl Shared {
    fn run_job(&self, job: Job<'_>, thread_idx: usize) {
        let barrier = Barrier { rendezvous: &self.step, thread_idx };
        let outcome = catch_unwind(AssertUnwindSafe(|| job(thread_idx, &barrier)));
        if let Err(payload) = outcome {
            if !payload.is::<OtherThreadPanicked>() {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
            }
            self.step.poison();
        }
    }

    fn work(&self, thread_idx: usize) {
        loop {
            self.start.wait(thread_idx);
            // SAFETY: `order` is not written between `start` and `end`.
            match unsafe { &*self.order.get() } {
                Order::Run(job) => self.run_job(*job, thread_idx),
                Order::Exit => return,
            }
            self.end.wait(thread_idx);
        }
    }
}

/// A fixed set of threads that run one closure together. The calling thread is thread 0, the others are workers.
///
/// Dropping the pool stops and joins the workers.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    placement: Option<Vec<Vec<usize>>>,
    /// The caller of `run` that was pinned last.
    pinned_caller: Option<ThreadId>,
    nodes: Vec<usize>,
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ThreadPool").field("num_threads", &self.num_threads()).finish()
    }
}

impl ThreadPool {
    /// Like [`ThreadPool::with_pinning`], without pinning.
    pub fn new(num_threads: usize) -> std::io::Result<Self> {
        Self::with_pinning(num_threads, Pinning::Off)
    }

    /// Starts `num_threads - 1` workers; 0 threads count as 1. Fails if the system cannot start a thread.
    ///
    /// Threads are pinned to CPUs that the calling thread may use. A thread that cannot be pinned runs unpinned. The
    /// thread that calls [`ThreadPool::run`] is pinned by its first call, until it drops the pool.
    pub fn with_pinning(num_threads: usize, pinning: Pinning) -> std::io::Result<Self> {
        let num_threads = num_threads.max(1);
        let usable = UsableCpus::detect();
        // With more threads than CPUs, a spinning thread may keep the thread that it waits for from running.
        let may_spin = num_threads <= usable.max_parallel_threads();
        let placement = pinning.placement(num_threads, &usable);
        let spin = |duration| if may_spin { duration } else { Duration::ZERO };
        let mut pool = Self {
            shared: Arc::new(Shared {
                start: Rendezvous::new(num_threads, spin(IDLE_SPIN)),
                step: Rendezvous::new(num_threads, spin(STEP_SPIN)),
                end: Rendezvous::new(num_threads, spin(STEP_SPIN)),
                order: UnsafeCell::new(Order::Exit),
                panic: Mutex::new(None),
            }),
            workers: Vec::with_capacity(num_threads - 1),
            placement,
            pinned_caller: None,
            nodes: usable.nodes(),
        };
        for thread_idx in 1..num_threads {
            let shared = Arc::clone(&pool.shared);
            let cpus = pool.placement.as_ref().map(|placement| placement[thread_idx].clone());
            let builder = std::thread::Builder::new().name(format!("kernel-{thread_idx}"));
            let work = move || {
                if let Some(cpus) = cpus {
                    pin(&cpus);
                }
                shared.work(thread_idx);
            };
            match builder.spawn(work) {
                Ok(worker) => pool.workers.push(worker),
                Err(error) => {
                    pool.abandon();
                    return Err(error);
                }
            }
        }
        Ok(pool)
    }

    /// Returns true if each thread is assigned to its own core or CPU.
    pub fn is_pinned(&self) -> bool {
        self.placement.is_some()
    }

    /// The NUMA nodes that the threads may run on.
    pub fn nodes(&self) -> &[usize] {
        &self.nodes
    }

    /// Pins the calling thread to the CPUs of thread 0.
    fn pin_caller(&mut self) {
        let Some(placement) = &self.placement else { return };
        let thread = std::thread::current().id();
        if self.pinned_caller != Some(thread) {
            pin(&placement[0]);
            self.pinned_caller = Some(thread);
        }
    }

    /// Number of threads that run a closure, including the caller.
    pub fn num_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job(thread_idx, barrier)` on every thread, with `thread_idx` from 0, and waits until all calls have
    /// returned. Every call must wait at the barrier the same number of times.
    ///
    /// # Panics
    /// If a call panics, the others unwind at their next `barrier.wait()`, and `run` resumes the panic. The pool stays
    /// usable.
    pub fn run<F>(&mut self, job: F)
    where
        F: Fn(usize, &Barrier<'_>) + Sync,
    {
        self.pin_caller();
        let shared = &*self.shared;
        if self.workers.is_empty() {
            shared.run_job(&job, 0);
        } else {
            let job: Job<'_> = &job;
            // SAFETY: the workers use the job only between `start` and `end`, and this call waits for `end` before it
            // returns or unwinds, so no worker uses the job beyond its real lifetime.
            let job_for_workers = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
            // SAFETY: every worker waits at `start` or is between `end` and `start`, and reads `order` only after this
            // thread has arrived.
            unsafe { *shared.order.get() = Order::Run(job_for_workers) };
            shared.start.wait(0);
            shared.run_job(job, 0);
            shared.end.wait(0);
        }
        shared.step.reset();
        let payload = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }

    /// Stops the workers that were started before one could not be.
    fn abandon(&mut self) {
        self.shared.start.poison();
        self.workers.drain(..).for_each(|worker| drop(worker.join()));
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        if self.pinned_caller == Some(std::thread::current().id()) {
            unpin();
        }
        if self.workers.is_empty() {
            return;
        }
        // SAFETY: as in `run`.
        unsafe { *self.shared.order.get() = Order::Exit };
        self.shared.start.wait(0);
        self.workers.drain(..).for_each(|worker| drop(worker.join()));
    }
}
