//! The thread pool: one closure on all threads at once, with barriers inside.
//!
//! A step of the model is some hundred operations of tens of microseconds each. Handing each one to sleeping threads
//! would cost as much as the work, so a whole step is one [`ThreadPool::run`], and threads meet at a [`Barrier`]
//! between operations. Waiting spins for a bounded while and then sleeps: short waits are cheap, an oversubscribed
//! machine still gets on, and an idle pool uses no CPU.
//!
//! Two threads of a pool that the system has put on one CPU would each spin for the other in vain, and yielding would
//! hand the CPU to some other process. So threads note the CPU on which they were last seen, and one that would wait
//! for a companion on its own CPU sleeps at once; waking it up, the system looks for an idle CPU.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use crate::cpus::{UsableCpus, pin, unpin};

/// How long a thread spins for the others inside a step before it sleeps.
const STEP_SPIN: Duration = Duration::from_micros(100);
/// How long a worker spins after a step, in case that the next one follows at once.
const IDLE_SPIN: Duration = Duration::from_micros(50);
/// Spins between two looks at the clock.
const SPINS_PER_CLOCK: u32 = 32;

/// Number of threads that compute best here: one per core that the calling thread may use, within the cgroup's quota.
pub fn default_num_threads() -> usize {
    UsableCpus::detect().default_num_threads()
}

/// Whether each thread of a pool stays on a core of its own.
///
/// Pinned threads never share a core, as the system may let them when a neighbour is busy on the other one; they cannot
/// give way to a neighbour either. On two cores shared with other work, pinning was at times twice as fast and at times
/// half as fast: so threads are not pinned, unless asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pinning {
    /// On if the threads take every core that they may use, and no quota holds them back.
    Auto,
    On,
    /// Left to the system.
    #[default]
    Off,
}

/// Not one of `auto`, `on` and `off`.
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
    /// CPUs for each thread; `None` leaves them to the system.
    fn placement(self, num_threads: usize, usable: &UsableCpus) -> Option<Vec<Vec<usize>>> {
        let is_pinned = match self {
            Self::Auto => num_threads > 1 && usable.are_all_taken_by(num_threads),
            Self::On => true,
            Self::Off => false,
        };
        if is_pinned { usable.placement(num_threads) } else { None }
    }
}

/// Part `index` of `parts` nearly equal, contiguous parts of `range`; the first ones are one longer. Parts may be
/// empty.
///
/// Panics if `index >= parts`.
pub fn split(range: Range<usize>, parts: usize, index: usize) -> Range<usize> {
    assert!(index < parts, "part {index} of {parts}");
    let len = range.len();
    let (quotient, remainder) = (len / parts, len % parts);
    let start = range.start + index * quotient + index.min(remainder);
    start..start + quotient + usize::from(index < remainder)
}

/// Keeps what different threads write on different cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct OwnLine<T>(T);

/// What a thread shows of itself at a meeting point.
#[derive(Debug, Default)]
struct Seen {
    /// Number of the CPU on which it last arrived or left.
    cpu: AtomicU32,
    /// How often it has arrived.
    num_arrivals: AtomicU32,
}

/// A meeting point of all threads of a pool, usable again and again.
///
/// Counts arrivals; the last one advances `epoch`, which the others watch.
#[derive(Debug)]
struct Meeting {
    /// Longest time that a thread spins.
    spin: Duration,
    arrived: OwnLine<AtomicU32>,
    epoch: OwnLine<AtomicU32>,
    /// One for each thread. A hint for whom to spin; correctness does not depend on it.
    seen: Vec<OwnLine<Seen>>,
    /// Threads inside the slow path. Written before they look at `epoch` for the last time, read after `epoch` was
    /// written, both sequentially consistent: so either the sleeper sees the epoch or the waker sees the sleeper.
    num_sleepers: AtomicU32,
    poisoned: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

/// Unwinds a thread whose companion panicked; `run` reports the companion's panic.
struct CompanionPanicked;

impl Meeting {
    fn new(num_threads: usize, spin: Duration) -> Self {
        Self {
            spin,
            arrived: OwnLine::default(),
            epoch: OwnLine::default(),
            seen: (0..num_threads).map(|_| OwnLine::default()).collect(),
            num_sleepers: AtomicU32::new(0),
            poisoned: AtomicBool::new(false),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Returns when every thread has called it. Unwinds if another thread panicked.
    fn wait(&self, thread_idx: usize) {
        let epoch = self.epoch.0.load(Ordering::SeqCst);
        if !self.is_poisoned() {
            let seen = &self.seen[thread_idx].0;
            seen.cpu.store(current_cpu(), Ordering::Relaxed);
            seen.num_arrivals.fetch_add(1, Ordering::Relaxed);
            if self.arrived.0.fetch_add(1, Ordering::SeqCst) as usize + 1 == self.seen.len() {
                self.arrived.0.store(0, Ordering::SeqCst);
                self.epoch.0.store(epoch.wrapping_add(1), Ordering::SeqCst);
                self.wake_sleepers();
            } else if !self.spin_until_open(epoch, thread_idx) {
                self.sleep_until_open(epoch);
                seen.cpu.store(current_cpu(), Ordering::Relaxed);
            }
        }
        if self.is_poisoned() {
            resume_unwind(Box::new(CompanionPanicked));
        }
    }

    fn is_open(&self, epoch: u32) -> bool {
        self.epoch.0.load(Ordering::SeqCst) != epoch || self.is_poisoned()
    }

    fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::SeqCst)
    }

    /// True once the epoch has passed; false if it is better to sleep.
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
            if waited >= self.spin || self.occupies_cpu_of_companion(thread_idx) {
                return false;
            }
        }
    }

    /// True if a thread that has not arrived yet was last seen on the CPU of this one.
    fn occupies_cpu_of_companion(&self, thread_idx: usize) -> bool {
        let own_arrivals = self.seen[thread_idx].0.num_arrivals.load(Ordering::Relaxed);
        let cpu = current_cpu();
        cpu != UNKNOWN_CPU
            && self.seen.iter().any(|OwnLine(seen)| {
                seen.num_arrivals.load(Ordering::Relaxed) != own_arrivals
                    && seen.cpu.load(Ordering::Relaxed) == cpu
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
            // With the lock held no sleeper is between its last look at the epoch and its sleep.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    /// Lets every waiting and every future thread through, to unwind.
    fn poison(&self) {
        self.poisoned.store(true, Ordering::SeqCst);
        self.wake_sleepers();
    }

    /// Usable again after a panic. Only while no thread is inside.
    fn reset(&self) {
        if self.is_poisoned() {
            self.arrived.0.store(0, Ordering::SeqCst);
            self.seen.iter().for_each(|OwnLine(seen)| seen.num_arrivals.store(0, Ordering::Relaxed));
            self.poisoned.store(false, Ordering::SeqCst);
        }
    }
}

/// No CPU has this number.
const UNKNOWN_CPU: u32 = u32::MAX;

/// Number of the CPU that this thread is on, about now.
#[cfg(target_os = "linux")]
fn current_cpu() -> u32 {
    // SAFETY: no arguments; -1 on failure, which is `UNKNOWN_CPU`.
    unsafe { libc::sched_getcpu() }.cast_unsigned()
}

/// Number of the CPU that this thread is on: not known on this system.
#[cfg(not(target_os = "linux"))]
fn current_cpu() -> u32 {
    UNKNOWN_CPU
}

/// One thread's way to meet the others inside a run.
#[derive(Debug)]
pub struct Barrier<'a> {
    meeting: &'a Meeting,
    thread_idx: usize,
}

impl Barrier<'_> {
    /// Returns when every thread of the pool has called it; writes before it are visible to all threads after it.
    ///
    /// Unwinds if another thread panicked.
    pub fn wait(&self) {
        self.meeting.wait(self.thread_idx);
    }
}

type Job<'a> = &'a (dyn Fn(usize, &Barrier<'_>) + Sync + 'a);

/// What the workers do next; written by the pool's owner while they wait at `start`.
enum Order {
    Run(Job<'static>),
    Exit,
}

struct Shared {
    /// Opens a run: the owner arrives last, after it has written `order`.
    start: Meeting,
    /// Inside a run; poisoned by a panic.
    step: Meeting,
    /// Closes a run: nobody touches the job any more.
    end: Meeting,
    order: UnsafeCell<Order>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `order` is written only by the pool's owner between `end` and `start`, when every worker waits at `start`,
// and read only between `start` and `end`; both barriers order memory. The job it holds is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as for `Sync`; nothing in it is bound to a thread.
unsafe impl Send for Shared {}

impl Shared {
    fn run_job(&self, job: Job<'_>, thread_idx: usize) {
        let barrier = Barrier { meeting: &self.step, thread_idx };
        let outcome = catch_unwind(AssertUnwindSafe(|| job(thread_idx, &barrier)));
        if let Err(payload) = outcome {
            if !payload.is::<CompanionPanicked>() {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
            }
            self.step.poison();
        }
    }

    fn work(&self, thread_idx: usize) {
        loop {
            self.start.wait(thread_idx);
            // SAFETY: between `start` and `end` nobody writes `order`.
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
/// Dropping the pool ends and joins the workers.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// CPUs of each thread, if threads are pinned.
    placement: Option<Vec<Vec<usize>>>,
    /// The caller of `run` that has been pinned last.
    pinned_caller: Option<ThreadId>,
    nodes: Vec<usize>,
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ThreadPool").field("num_threads", &self.num_threads()).finish()
    }
}

impl ThreadPool {
    /// [`ThreadPool::with_pinning`], with threads left to the system.
    pub fn new(num_threads: usize) -> std::io::Result<Self> {
        Self::with_pinning(num_threads, Pinning::Off)
    }

    /// Starts `num_threads - 1` workers; 0 counts as 1. Fails if the system refuses a thread.
    ///
    /// CPUs are those that the calling thread may use. A thread that cannot be pinned runs where the system likes. The
    /// thread that calls [`ThreadPool::run`] is pinned by its first call, until the pool is dropped.
    pub fn with_pinning(num_threads: usize, pinning: Pinning) -> std::io::Result<Self> {
        let num_threads = num_threads.max(1);
        let usable = UsableCpus::detect();
        // With more threads than CPUs whoever spins keeps the one it waits for from running.
        let may_spin = num_threads <= usable.max_parallel_threads();
        let placement = pinning.placement(num_threads, &usable);
        let spin = |duration| if may_spin { duration } else { Duration::ZERO };
        let mut pool = Self {
            shared: Arc::new(Shared {
                start: Meeting::new(num_threads, spin(IDLE_SPIN)),
                step: Meeting::new(num_threads, spin(STEP_SPIN)),
                end: Meeting::new(num_threads, spin(STEP_SPIN)),
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

    /// True if each thread has a core, or a CPU, of its own.
    pub fn is_pinned(&self) -> bool {
        self.placement.is_some()
    }

    /// NUMA nodes on which its threads may run.
    pub fn nodes(&self) -> &[usize] {
        &self.nodes
    }

    /// Puts the calling thread on the CPUs of thread 0.
    fn pin_caller(&mut self) {
        let Some(placement) = &self.placement else { return };
        let thread = std::thread::current().id();
        if self.pinned_caller != Some(thread) {
            pin(&placement[0]);
            self.pinned_caller = Some(thread);
        }
    }

    /// Number of threads that run a closure, the caller among them.
    pub fn num_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job(thread_idx, barrier)` on every thread, `thread_idx` from 0; returns when all calls have returned.
    ///
    /// A panic of one call unwinds the others at their next `barrier.wait()` and then comes out here; the pool stays
    /// usable. Every call must wait at the barrier equally often.
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
            // returns or unwinds, so the longer lifetime is never used.
            let job_for_workers = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
            // SAFETY: every worker is at `start` or on its way there from `end`, and reads nothing before we arrive.
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

    /// Lets workers go whose companions could not be started.
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
