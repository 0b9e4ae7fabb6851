//! A transport that takes the time of its calls.
//!
//! Promises two looks at the clock per call and nothing else: what is called, and what comes of it, is the inner
//! transport's. The timer can be read from any thread, also while a call waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hawser_common::clock::{Clock, Tick};

use super::{AbortHandle, Collective, CollectiveError, Reduce, StepTag, Traffic, Values};

/// One rank's end of a group, with a timer.
#[derive(Debug)]
pub struct Timed {
    inner: Box<dyn Collective>,
    timer: CallTimer,
}

/// The time that a rank spends in calls, waiting for the others included. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CallTimer {
    clock: Clock,
    times: Arc<Times>,
}

/// In nanoseconds of the timer's clock.
#[derive(Debug, Default)]
struct Times {
    spent: AtomicU64,
    /// When the call that is running began, and one more, so that 0 is none.
    began: AtomicU64,
}

impl CallTimer {
    fn new() -> Self {
        Self { clock: Clock::system(), times: Arc::default() }
    }

    /// In calls that have ended.
    #[must_use]
    pub fn spent(&self) -> Duration {
        Duration::from_nanos(self.times.spent.load(Ordering::Relaxed))
    }

    /// How long the call that is running has taken so far; `None`: none is running.
    #[must_use]
    pub fn in_call(&self) -> Option<Duration> {
        let began = self.times.began.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.clock.now().since(Tick(Duration::from_nanos(began))))
    }

    fn time<T>(&self, call: impl FnOnce() -> T) -> T {
        let began = nanos(self.clock.now());
        self.times.began.store(began + 1, Ordering::Relaxed);
        let done = call();
        self.times.spent.fetch_add(nanos(self.clock.now()).saturating_sub(began), Ordering::Relaxed);
        self.times.began.store(0, Ordering::Relaxed);
        done
    }
}

fn nanos(tick: Tick) -> u64 {
    u64::try_from(tick.0.as_nanos()).unwrap_or(u64::MAX - 1)
}

impl Timed {
    #[must_use]
    pub fn new(inner: Box<dyn Collective>) -> Self {
        Self { inner, timer: CallTimer::new() }
    }

    #[must_use]
    pub fn timer(&self) -> &CallTimer {
        &self.timer
    }
}

impl Collective for Timed {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn begin_step(&mut self, step: StepTag) {
        self.inner.begin_step(step);
    }

    fn all_reduce(&mut self, data: Values<'_>, by: Reduce) -> Result<(), CollectiveError> {
        self.timer.time(|| self.inner.all_reduce(data, by))
    }

    fn reduce_to_leader(&mut self, data: Values<'_>, by: Reduce) -> Result<(), CollectiveError> {
        self.timer.time(|| self.inner.reduce_to_leader(data, by))
    }

    fn gather(&mut self, part: &[f32], counts: &[usize], whole: &mut [f32]) -> Result<(), CollectiveError> {
        self.timer.time(|| self.inner.gather(part, counts, whole))
    }

    fn broadcast(&mut self, data: Values<'_>) -> Result<(), CollectiveError> {
        self.timer.time(|| self.inner.broadcast(data))
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.timer.time(|| self.inner.barrier())
    }

    fn abort_handle(&self) -> AbortHandle {
        self.inner.abort_handle()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::collective::ThreadGroup;

    /// A rank that waits for another is seen to wait, and its time is counted once the other has come.
    #[test]
    fn who_waits_is_seen_to_wait() {
        let mut ranks =
            ThreadGroup::new(2, Duration::from_secs(30)).into_iter().map(|rank| Timed::new(Box::new(rank)));
        let (mut first, mut second) = (ranks.next().unwrap(), ranks.next().unwrap());
        let timer = first.timer().clone();
        assert_eq!((timer.in_call(), timer.spent()), (None, Duration::ZERO));
        let waits = std::thread::spawn(move || first.barrier().map(|()| first));
        let clock = Clock::system();
        while timer.in_call().is_none_or(|time| time < Duration::from_millis(2)) {
            assert!(clock.now().0 < Duration::from_secs(30), "the call was never seen");
            std::thread::yield_now();
        }
        second.barrier().unwrap();
        let first = waits.join().unwrap().unwrap();
        assert_eq!(timer.in_call(), None);
        assert!(timer.spent() >= Duration::from_millis(2));
        assert_eq!(first.traffic(), second.traffic());
    }
}
