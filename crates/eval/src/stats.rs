//! The statistics behind the reports: means, quantiles, intervals of paired differences, and lines between
//! measured points.
//!
//! Every function is a pure function of its arguments, the seed among them: the same numbers give the same answer.
//! Nothing here invents a value where there is no data; it answers `None`.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// How often a bootstrap draws sessions anew in every report.
pub const RESAMPLES: usize = 10_000;

/// A mean and the bounds between which it lies with 95 % confidence, in the unit of the values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// Whether the difference is settled: 0 lies outside the interval.
    #[must_use]
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }

    /// The interval of the negated values.
    #[must_use]
    pub fn negated(&self) -> Self {
        Self { mean: -self.mean, low: -self.high, high: -self.low }
    }
}

/// The arithmetic mean; `None` of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    if values.is_empty() { None } else { Some(values.iter().sum::<f64>() / values.len() as f64) }
}

/// The value below which the share `q` of the values lies, linear between neighbours (the default of R and NumPy).
///
/// `q` is brought into 0..=1. `None` of nothing.
#[must_use]
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted_quantile(&sorted, q)
}

fn sorted_quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = q.clamp(0.0, 1.0) * last as f64;
    // Truncation is the floor of a place that is never negative.
    let below = (place as usize).min(last);
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64))
}

/// The 95 % interval of the mean of paired differences: a percentile bootstrap.
///
/// Each difference belongs to one session, which is the unit that is drawn: turns of one session depend on each
/// other, sessions do not. `resamples` times, as many differences as there are get drawn with replacement; the bounds
/// are the 2.5 % and 97.5 % quantiles of the means. The intervals of fewer than about 20 sessions come out too narrow.
/// The draws are those of `StdRng` and may change with its version.
///
/// `None` for fewer than two differences, since one says nothing about how they spread, and for no resamples.
#[must_use]
pub fn paired_bootstrap(differences: &[f64], resamples: usize, seed: u64) -> Option<Interval> {
    if differences.len() < 2 {
        return None;
    }
    let mut random = StdRng::seed_from_u64(seed);
    let count = differences.len();
    let mut means: Vec<f64> = (0..resamples)
        .map(|_| (0..count).map(|_| differences[random.random_range(0..count)]).sum::<f64>() / count as f64)
        .collect();
    means.sort_by(f64::total_cmp);
    Some(Interval {
        mean: mean(differences)?,
        low: sorted_quantile(&means, 0.025)?,
        high: sorted_quantile(&means, 0.975)?,
    })
}

/// Measured points `(x, y)` with straight lines between neighbours in x.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// In ascending x, each x once.
    points: Vec<(f64, f64)>,
}

/// A value read off a [`Curve`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Read {
    pub y: f64,
    /// Distance in x between the two points that the value lies between; 0 at a measured point.
    pub gap: f64,
}

impl Curve {
    /// The curve through the points. Those with the same x become one, with the mean of their y.
    #[must_use]
    pub fn new(mut points: Vec<(f64, f64)>) -> Self {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let merged = points.chunk_by(|a, b| a.0 == b.0).map(|same| {
            let y = same.iter().map(|point| point.1).sum::<f64>() / same.len() as f64;
            (same[0].0, y)
        });
        Self { points: merged.collect() }
    }

    /// The value at `x`; `None` outside the measured points, since a curve is never continued beyond its ends.
    #[must_use]
    pub fn at(&self, x: f64) -> Option<Read> {
        let above = self.points.partition_point(|point| point.0 < x);
        let (right, y_right) = *self.points.get(above)?;
        if right == x {
            return Some(Read { y: y_right, gap: 0.0 });
        }
        let (left, y_left) = self.points[above.checked_sub(1)?];
        let share = (x - left) / (right - left);
        Some(Read { y: y_left + (y_right - y_left) * share, gap: right - left })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_quantiles_are_those_of_the_textbook() {
        assert_eq!(mean(&[1.0, 2.0, 6.0]), Some(3.0));
        assert_eq!(quantile(&[4.0, 1.0, 3.0, 2.0], 0.5), Some(2.5));
        assert_eq!(quantile(&[4.0, 1.0, 3.0, 2.0], 0.0), Some(1.0));
        assert_eq!(quantile(&[4.0, 1.0, 3.0, 2.0], 1.0), Some(4.0));
        let hundred: Vec<f64> = (0..=100).map(f64::from).collect();
        assert!((quantile(&hundred, 0.95).unwrap() - 95.0).abs() < 1e-12);
        assert_eq!((mean(&[]), quantile(&[], 0.5)), (None, None));
    }

    #[test]
    fn constant_differences_have_an_interval_without_width() {
        for constant in [0.0, 0.1, -0.3] {
            let interval = paired_bootstrap(&[constant; 7], 1_000, 5).unwrap();
            assert_eq!((interval.low, interval.high), (interval.mean, interval.mean));
            assert!((interval.mean - constant).abs() < 1e-15);
            assert_eq!(interval.excludes_zero(), constant != 0.0);
        }
    }

    #[test]
    fn one_session_has_no_interval() {
        assert_eq!(paired_bootstrap(&[1.0], 1_000, 1), None);
        assert_eq!(paired_bootstrap(&[], 1_000, 1), None);
        assert_eq!(paired_bootstrap(&[1.0, 2.0], 0, 1), None);
    }

    #[test]
    fn an_interval_depends_on_numbers_and_seed_only() {
        let differences = [0.3, -0.1, 0.7, 0.2, 0.4];
        let first = paired_bootstrap(&differences, 1_000, 9);
        assert_eq!(first, paired_bootstrap(&differences, 1_000, 9));
        assert_ne!(first, paired_bootstrap(&differences, 1_000, 10));
        let mirrored: Vec<f64> = differences.iter().map(|difference| -difference).collect();
        let mirrored = paired_bootstrap(&mirrored, 1_000, 9).unwrap().negated();
        let first = first.unwrap();
        assert!((mirrored.low - first.low).abs() < 1e-12 && (mirrored.high - first.high).abs() < 1e-12);
    }

    /// A percentile interval of 40 uniform draws covers the true mean in about 94 % of trials. Of 200 trials, fewer
    /// than 172 or all of them would each happen in less than one of ten thousand runs with sound intervals.
    #[test]
    fn intervals_cover_a_known_mean_about_as_often_as_they_say() {
        let seed = 20_260_101;
        let mut random = StdRng::seed_from_u64(seed);
        let (trials, truth) = (200_u64, 0.5);
        let covered = (0..trials)
            .filter(|trial| {
                let sample: Vec<f64> = (0..40).map(|_| random.random::<f64>()).collect();
                let interval = paired_bootstrap(&sample, 500, *trial).unwrap();
                interval.low <= truth && truth <= interval.high
            })
            .count();
        assert!(
            (172..200).contains(&covered),
            "{covered} of {trials} intervals cover the mean (seed {seed})"
        );
    }

    #[test]
    fn interpolation_is_exact_on_a_line() {
        let line = |x: f64| 3.0 - 2.0 * x;
        let curve = Curve::new([0.75, 0.25, 0.5].map(|x| (x, line(x))).to_vec());
        for x in [0.25, 0.375, 0.5, 0.625, 0.75] {
            assert_eq!(curve.at(x).map(|read| read.y), Some(line(x)), "at {x}");
        }
        assert_eq!(curve.at(0.375).map(|read| read.gap), Some(0.25));
        assert_eq!(curve.at(0.5).map(|read| read.gap), Some(0.0));
    }

    #[test]
    fn a_curve_ends_where_its_points_end() {
        let curve = Curve::new(vec![(0.25, 1.0), (0.5, 0.5)]);
        assert_eq!((curve.at(0.249), curve.at(0.501)), (None, None));
        assert_eq!(Curve::default().at(0.5), None);
        let twice = Curve::new(vec![(0.5, 1.0), (0.5, 3.0), (1.0, 0.0)]);
        assert_eq!(twice.at(0.5).map(|read| read.y), Some(2.0));
        assert_eq!(twice.at(0.75).map(|read| read.y), Some(1.0));
    }
}
