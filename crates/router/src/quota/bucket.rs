//! A rate of calls with a burst, as one point in time. Pure; time is an argument.
//!
//! The generic cell rate algorithm (ITU-T I.371): a bucket of tokens that needs no refilling. What is kept is when the
//! bucket will be full again; a call moves it one interval further, and is refused where that is more than a burst
//! ahead.

use std::time::Duration;

use hawser_common::clock::Tick;

use super::Quota;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    full_at: Tick,
}

impl Bucket {
    /// Takes one call, or says how long until one may be taken.
    pub(crate) fn take(&mut self, quota: &Quota, now: Tick) -> Result<(), Duration> {
        if quota.requests_per_s == 0 {
            return Ok(());
        }
        let interval = Duration::from_secs(1) / quota.requests_per_s;
        let burst = if quota.burst == 0 { quota.requests_per_s } else { quota.burst };
        let next = self.full_at.max(now).after(interval);
        let ahead = next.since(now);
        let allowed = interval * burst;
        if ahead > allowed {
            return Err(ahead.saturating_sub(allowed));
        }
        self.full_at = next;
        Ok(())
    }

    /// Nothing is remembered that matters.
    pub(crate) fn is_full(&self, now: Tick) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quota(requests_per_s: u32, burst: u32) -> Quota {
        Quota { requests_per_s, burst, ..Quota::default() }
    }

    #[test]
    fn a_burst_then_the_rate() {
        let (mut bucket, quota) = (Bucket::default(), quota(10, 3));
        let at = |ms| Tick(Duration::from_millis(ms));
        let taken = (0..5).filter(|_| bucket.take(&quota, at(1_000)).is_ok()).count();
        assert_eq!(taken, 3);
        assert_eq!(bucket.take(&quota, at(1_000)), Err(Duration::from_millis(100)));
        assert_eq!(bucket.take(&quota, at(1_100)), Ok(()));
        assert_eq!(bucket.take(&quota, at(1_150)), Err(Duration::from_millis(50)));
        assert!(!bucket.is_full(at(1_150)) && bucket.is_full(at(1_400)));
    }

    proptest! {
        /// In no stretch of time are there more calls than the burst and the rate allow; and the hint is the truth.
        #[test]
        fn never_more_than_the_rate_and_the_burst(
            rate in 1u32..1_000,
            burst in 1u32..50,
            gaps in prop::collection::vec(0u64..50_000, 1..200),
        ) {
            let (mut bucket, quota) = (Bucket::default(), quota(rate, burst));
            let (mut now, mut taken) = (Tick::default(), Vec::new());
            for gap in gaps {
                now = now.after(Duration::from_micros(gap));
                match bucket.take(&quota, now) {
                    Ok(()) => taken.push(now),
                    Err(wait) => {
                        prop_assert!(wait > Duration::ZERO);
                        let mut later = bucket;
                        prop_assert_eq!(later.take(&quota, now.after(wait)), Ok(()));
                    }
                }
            }
            for (i, first) in taken.iter().enumerate() {
                for (j, last) in taken.iter().enumerate().skip(i) {
                    let elapsed = last.since(*first).as_secs_f64();
                    let allowed = f64::from(burst) + elapsed * f64::from(rate);
                    prop_assert!((j - i + 1) as f64 <= allowed + 1e-3, "{} calls in {elapsed} s", j - i + 1);
                }
            }
        }
    }
}
