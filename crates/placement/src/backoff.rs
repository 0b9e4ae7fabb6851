//! How long to wait before the next try: doubling, bounded, and cut by a random part. Pure but for the draw.

use std::time::Duration;

/// Wait of the first try.
pub(crate) const FIRST: Duration = Duration::from_millis(100);

/// `time` cut by a random part of up to half, so that processes which lost the store together return one by one.
pub(crate) fn jittered(time: Duration) -> Duration {
    time.mul_f64(1.0 - rand::random::<f64>() / 2.0)
}

/// A random part of `time`, so that what was lost together comes back one by one.
pub(crate) fn spread(time: Duration) -> Duration {
    time.mul_f64(rand::random::<f64>())
}

/// The wait after `failures` failures: doubling from [`FIRST`] up to `limit`, jittered.
pub(crate) fn after(failures: u32, limit: Duration) -> Duration {
    let wait = FIRST * 2u32.saturating_pow(failures.min(10));
    jittered(wait.min(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_lose_half_at_most() {
        let limit = Duration::from_secs(2);
        for (failures, full) in [(0, 100), (1, 200), (4, 1600), (5, 2000), (u32::MAX, 2000)] {
            let full = Duration::from_millis(full);
            for _ in 0..100 {
                let wait = after(failures, limit);
                assert!(wait >= full / 2 && wait <= full, "{wait:?} after {failures} failures");
            }
        }
    }
}
