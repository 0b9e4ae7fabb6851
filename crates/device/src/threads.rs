//! A fork-join pool for kernels. A decode step has hundreds of short parallel sections, so workers spin for some
//! microseconds before they sleep: a section then starts and ends within about a microsecond, and an idle server
//! still burns no CPU.
//!
//! Promises that [`Threads::run`] returns only after every part is done, also when one panics. Never queues work,
//! never runs two sections at once: a second caller waits, and a section started inside a job runs on its thread.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hawser_common::clock::Clock;

mod shared;
pub(crate) use shared::SharedMut;

/// How long a waiting thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Turns between two looks at the clock while spinning.
const SPINS_PER_LOOK: u32 = 64;

thread_local! {
    /// Whether this thread is inside a job of some pool.
    static IN_JOB: Cell<bool> = const { Cell::new(false) };
}

/// Threads that run one job at a time, each its own part.
pub struct Threads {
    core: Arc<Core>,
    workers: Vec<JoinHandle<()>>,
    /// Held for a whole section: one section at a time.
    turn: Mutex<()>,
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Threads({})", self.count())
    }
}

impl Threads {
    /// A pool of `count` threads, the caller of [`Threads::run`] included: `count - 1` are started here. Where the
    /// system starts fewer, the pool has fewer.
    #[must_use]
    pub fn new(count: NonZeroUsize) -> Self {
        let core = Arc::new(Core::new(count.get() - 1));
        let start = |index: usize| {
            let core = Arc::clone(&core);
            let name = format!("kernel-{index}");
            std::thread::Builder::new().name(name).spawn(move || core.work(index)).ok()
        };
        let workers = (1..count.get()).map_while(start).collect();
        Self { core, workers, turn: Mutex::new(()) }
    }

    /// Threads in the pool, the caller included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job(i)` once for each `i` in `0..count()`; the caller runs `i = 0`. Returns when all are done. A panic
    /// in a job is raised again here, after all parts have ended; the pool stays usable.
    pub fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || IN_JOB.get() {
            (0..self.count()).for_each(job);
            return;
        }
        let turn = lock(&self.turn);
        self.start(job);
        let own = catch_unwind(AssertUnwindSafe(|| in_job(|| job(0))));
        // The job is borrowed: nothing may leave this function before the last worker is done with it.
        self.core.caller.0.wait(|| self.core.pending.0.load(Ordering::SeqCst) == 0);
        let other = lock(&self.core.panic).take();
        drop(turn);
        if let Some(payload) = own.err().or(other) {
            resume_unwind(payload);
        }
    }

    fn start(&self, job: &(dyn Fn(usize) + Sync)) {
        let core = &*self.core;
        core.pending.0.store(self.workers.len(), Ordering::SeqCst);
        // SAFETY: only the lifetime is erased. `run` waits for `pending` to reach zero before it returns, and
        // workers do not touch the job after they have counted themselves out.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: `turn` is held and no worker reads the cell between two sections.
        unsafe { *core.job.get() = Some(job) };
        // Publishes the job, the counter and everything the caller wrote before.
        core.section.0.fetch_add(1, Ordering::SeqCst);
        core.workers.iter().for_each(|worker| worker.0.wake());
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.core.stop.store(true, Ordering::SeqCst);
        self.core.workers.iter().for_each(|worker| worker.0.wake());
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its jobs, so joining it cannot fail.
            let _ = worker.join();
        }
    }
}

type Job = &'static (dyn Fn(usize) + Sync);

/// What caller and workers share.
#[derive(Default)]
struct Core {
    /// Grows by one with each section.
    section: CacheLine<AtomicUsize>,
    /// Workers still inside the current section.
    pending: CacheLine<AtomicUsize>,
    caller: CacheLine<Sleeper>,
    workers: Vec<CacheLine<Sleeper>>,
    job: UnsafeCell<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

// SAFETY: `job` is written only by the caller that holds the turn, between sections, and read by workers only inside
// a section; `section` and `pending` order the two.
unsafe impl Sync for Core {}
// SAFETY: the job is Sync, so it may be called from any thread; nothing else here is bound to a thread.
unsafe impl Send for Core {}

impl Core {
    fn new(workers: usize) -> Self {
        Self { workers: (0..workers).map(|_| CacheLine::default()).collect(), ..Self::default() }
    }

    /// A worker's life. `index` is its part of each section, from 1.
    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            let called = || self.section.0.load(Ordering::SeqCst) != seen || self.stop.load(Ordering::SeqCst);
            self.workers[index - 1].0.wait(called);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            seen += 1;
            // SAFETY: `section` was seen to change, so the caller has written the job and will not touch it again
            // before this worker has counted itself out.
            let job = unsafe { *self.job.get() }.expect("a section starts with a job");
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| in_job(|| job(index)))) {
                *lock(&self.panic) = Some(payload);
            }
            if self.pending.0.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.caller.0.wake();
            }
        }
    }
}

/// Keeps what different threads write on different cache lines (two, because CPUs fetch them in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CacheLine<T>(pub(crate) T);

/// Where one thread waits for a condition that another thread makes true.
#[derive(Default)]
struct Sleeper {
    asleep: AtomicBool,
    gate: Mutex<()>,
    woken: Condvar,
}

impl Sleeper {
    /// Returns once `ready` holds: spins first, then sleeps. Whoever makes it hold calls [`Sleeper::wake`] after.
    fn wait(&self, ready: impl Fn() -> bool) {
        if spin(&ready) {
            return;
        }
        let mut gate = lock(&self.gate);
        self.asleep.store(true, Ordering::SeqCst);
        // Either this check sees the condition, or the waker sees `asleep` and comes through the gate: all four
        // accesses are sequentially consistent.
        while !ready() {
            gate = self.woken.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            let _gate = lock(&self.gate);
            self.woken.notify_one();
        }
    }
}

/// Whether `ready` came to hold while spinning for [`SPIN`].
fn spin(ready: &impl Fn() -> bool) -> bool {
    let mut clock: Option<Clock> = None;
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        let started = clock.get_or_insert_with(Clock::system);
        if started.now().0 >= SPIN {
            return false;
        }
    }
}

fn in_job<R>(job: impl FnOnce() -> R) -> R {
    /// Clears the mark also when the job panics.
    struct Mark;
    impl Drop for Mark {
        fn drop(&mut self) {
            IN_JOB.set(false);
        }
    }
    IN_JOB.set(true);
    let _mark = Mark;
    job()
}

/// A panic while a lock is held leaves nothing half done here, so poison means nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Part `index` of `parts` of `0..len`, cut on multiples of `align`: parts are disjoint, cover the whole, and differ
/// by at most `align` in length. Later parts may be empty.
#[must_use]
pub fn split(len: usize, parts: usize, index: usize, align: usize) -> Range<usize> {
    assert!(index < parts && align > 0, "part {index} of {parts}, aligned to {align}");
    let units = len.div_ceil(align);
    let cut = |index: usize| (units * index / parts * align).min(len);
    cut(index)..cut(index + 1)
}

#[cfg(test)]
mod tests;
