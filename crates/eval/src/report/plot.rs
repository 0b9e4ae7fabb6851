//! The geometry of a plot: scales, ticks, and labels that do not cover each other.
//!
//! Numbers in, numbers out; knows nothing of SVG.

/// A span of values laid over a span of pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    from_px: f64,
    to_px: f64,
}

impl Scale {
    /// `low` at `from_px`, `high` at `to_px`; `low < high`.
    pub(super) fn new((low, high): (f64, f64), (from_px, to_px): (f64, f64)) -> Self {
        debug_assert!(low < high, "a scale spans something");
        Self { low, high, from_px, to_px }
    }

    pub(super) fn px(&self, value: f64) -> f64 {
        self.from_px + (value - self.low) / (self.high - self.low) * (self.to_px - self.from_px)
    }
}

/// Ticks of an axis of shares from 0 to at least `max`: the last one is the end of the axis, at most 1 where `max` is.
pub(super) fn share_ticks(max: f64) -> Vec<f64> {
    let step = [0.01, 0.02, 0.05, 0.1, 0.2].into_iter().find(|step| max / step <= 8.0);
    let step = step.unwrap_or_else(|| (max / 5.0).max(0.2));
    let steps = (max / step - 1e-9).ceil().max(1.0) as u32;
    (0..=steps).map(|index| f64::from(index) * step).collect()
}

/// The ends of a logarithmic axis around positive values and the ticks in it: 1, 2 and 5 of each power of ten, or the
/// powers alone where there would be many.
pub(super) fn log_ticks(values: &[f64]) -> ((f64, f64), Vec<f64>) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    if !(low.is_finite() && low > 0.0) {
        return ((0.01, 1.0), vec![0.01, 0.1, 1.0]);
    }
    let (low, high) = (low / 1.25, high * 1.25);
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let wide = (high / low).log10() > 3.0;
    let parts: &[f64] = if wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let ticks = powers.flat_map(|power| parts.iter().map(move |part| part * 10f64.powi(power)));
    ((low, high), ticks.filter(|tick| (low..=high).contains(tick)).collect())
}

/// Moves heights apart until neighbours are `gap` away, in order, inside `low..=high`, each as near to where it wants
/// to be as a pass down and a pass up allow. Where they cannot fit, they share the room evenly.
pub(super) fn spread(wanted: &[f64], gap: f64, (low, high): (f64, f64)) -> Vec<f64> {
    let gap = gap.min((high - low) / wanted.len().saturating_sub(1).max(1) as f64);
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut placed = wanted.to_vec();
    let mut floor = low;
    for index in &order {
        placed[*index] = placed[*index].max(floor);
        floor = placed[*index] + gap;
    }
    let mut ceiling = high;
    for index in order.iter().rev() {
        placed[*index] = placed[*index].min(ceiling);
        ceiling = placed[*index] - gap;
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_maps_its_ends_and_its_middle() {
        let scale = Scale::new((0.0, 0.5), (100.0, 200.0));
        assert_eq!([scale.px(0.0), scale.px(0.25), scale.px(0.5)], [100.0, 150.0, 200.0]);
    }

    #[test]
    fn ticks_cover_the_values() {
        for max in [0.004, 0.06, 0.31, 0.5, 0.61, 1.0, 1.3, 40.0] {
            let ticks = share_ticks(max);
            let last = *ticks.last().unwrap();
            assert!(last >= max - 1e-9 && (2..=9).contains(&ticks.len()), "{max}: {ticks:?}");
        }
        assert!((share_ticks(1.0).last().unwrap() - 1.0).abs() < 1e-9);
        for values in [vec![0.2, 0.9], vec![0.03, 0.9], vec![1e-6, 5.0], vec![0.5]] {
            let ((low, high), ticks) = log_ticks(&values);
            assert!(values.iter().all(|value| low < *value && *value < high), "{values:?}");
            assert!((1..=10).contains(&ticks.len()), "{values:?}: {ticks:?}");
        }
        assert_eq!(log_ticks(&[]).0, (0.01, 1.0));
    }

    #[test]
    fn labels_keep_apart_and_in_order() {
        let wanted = [50.0, 10.0, 52.0, 51.0, 199.0, 198.0];
        let placed = spread(&wanted, 14.0, (0.0, 200.0));
        let mut sorted = placed.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= 14.0 - 1e-9), "{placed:?}");
        assert!(sorted[0] >= 0.0 && sorted[5] <= 200.0, "{placed:?}");
        assert!(placed[0] < placed[3] && placed[3] < placed[2], "{placed:?}");
        assert_eq!(placed[1], 10.0, "a label with room stays");
        let crowded = spread(&[5.0; 9], 14.0, (0.0, 40.0));
        assert!(crowded.iter().all(|height| (-1e-9..=40.0 + 1e-9).contains(height)), "{crowded:?}");
        assert!(spread(&[], 14.0, (0.0, 1.0)).is_empty());
    }
}
