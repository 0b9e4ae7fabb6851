//! Time as a value: `Tick` is monotonic time since the process's clock began. Everything below the edge takes a
//! `Tick` as an argument; only this module reads the operating system's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Monotonic time since the clock began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub Duration);

impl Tick {
    /// Time from `earlier` to `self`; zero if it lies in the future.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// This much later.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay))
    }
}

/// A source of monotonic time. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System(std::time::Instant),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The operating system's monotonic clock.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the clock")]
    pub fn system() -> Self {
        Self(Source::System(std::time::Instant::now()))
    }

    /// A clock that moves only when told to, for tests.
    #[must_use]
    pub fn manual() -> (Self, ManualClock) {
        let nanos = Arc::new(AtomicU64::new(0));
        (Self(Source::Manual(Arc::clone(&nanos))), ManualClock(nanos))
    }

    #[must_use]
    pub fn now(&self) -> Tick {
        match &self.0 {
            Source::System(start) => Tick(start.elapsed()),
            Source::Manual(nanos) => Tick(Duration::from_nanos(nanos.load(Ordering::SeqCst))),
        }
    }

    /// What a wall clock showed at `at`, by its difference to now: for what other machines are told. Never for
    /// measuring. A manual clock begins with the Unix epoch.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the clock")]
    pub fn wall(&self, at: Tick) -> SystemTime {
        let now = self.now();
        let wall = match &self.0 {
            Source::System(_) => SystemTime::now(),
            Source::Manual(_) => UNIX_EPOCH + now.0,
        };
        let shown = if at > now { wall.checked_add(at.since(now)) } else { wall.checked_sub(now.since(at)) };
        shown.unwrap_or(wall)
    }
}

/// Moves a manual clock.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    pub fn advance(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Ordering::SeqCst);
    }
}

/// Seconds since the Unix epoch, for texts that people or templates read. Never for measuring.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the one place that reads the clock")]
pub fn unix_seconds() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
