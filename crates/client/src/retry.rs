//! How often and when a turn is tried again. Pure: randomness and hints are arguments.

use std::time::Duration;

/// Bounded, jittered, exponential retries. They happen only where nothing was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Tries in all, the first included.
    pub attempts: u32,
    /// Longest wait before the second try; doubles with each further one.
    pub base: Duration,
    /// No wait is longer than this.
    pub cap: Duration,
}

impl Default for Retry {
    /// Six tries over at most about six seconds.
    fn default() -> Self {
        Self { attempts: 6, base: Duration::from_millis(200), cap: Duration::from_secs(3) }
    }
}

impl Retry {
    /// One try only.
    #[must_use]
    pub const fn never() -> Self {
        Self { attempts: 1, base: Duration::ZERO, cap: Duration::ZERO }
    }

    /// The wait after the failed try number `tried` (from 1), or `None` when it was the last. `chance` in [0, 1)
    /// spreads clients ("full jitter" with a floor of half the step); `hint` is the server's own wish and is the
    /// floor where it is longer, up to the cap.
    #[must_use]
    pub fn delay(&self, tried: u32, chance: f64, hint: Option<Duration>) -> Option<Duration> {
        if tried >= self.attempts {
            return None;
        }
        let doublings = tried.saturating_sub(1).min(30);
        let step = self.base.saturating_mul(1 << doublings).min(self.cap);
        let drawn = step.mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0));
        Some(drawn.max(hint.unwrap_or_default()).min(self.cap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_stay_under_the_cap_and_end() {
        let retry = Retry::default();
        for chance in [0.0, 0.3, 0.999] {
            let waits: Vec<_> = (1..).map_while(|tried| retry.delay(tried, chance, None)).collect();
            assert_eq!(waits.len(), 5, "one wait between two tries");
            assert!(waits.is_sorted(), "{waits:?}");
            assert!(waits.iter().all(|&wait| wait > Duration::ZERO && wait <= retry.cap), "{waits:?}");
        }
        assert_eq!(Retry::never().delay(1, 0.5, None), None);
    }

    #[test]
    fn a_hint_is_a_floor_and_the_cap_bounds_it() {
        let retry = Retry::default();
        let second = Duration::from_secs(1);
        assert_eq!(retry.delay(1, 0.0, Some(second)), Some(second));
        assert_eq!(retry.delay(1, 0.0, Some(Duration::from_secs(60))), Some(retry.cap));
    }
}
