//! How fast turns, prompts and moves are here, as measured. Pure.

use std::time::Duration;

use super::rebalance::Speeds;
use crate::turn::TurnEnd;

/// Weight of the newest measurement.
const NEWEST: f64 = 0.2;
/// Prompts shorter than this say little of what a row takes.
const MIN_ROWS: usize = 16;
/// Moves shorter than this say little of the network.
const MIN_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Pace {
    turn_s: Option<f64>,
    row_s: Option<f64>,
    bytes_per_s: f64,
    row_bytes: f64,
}

impl Pace {
    /// `bytes_per_s` is assumed until a move was measured.
    pub(super) fn new(bytes_per_s: f64, row_bytes: u64) -> Self {
        Self { turn_s: None, row_s: None, bytes_per_s, row_bytes: row_bytes as f64 }
    }

    pub(super) fn turn(&mut self, end: &TurnEnd) {
        mix(&mut self.turn_s, (end.prefill + end.decode).as_secs_f64());
        let rows = end.usage.prompt.saturating_sub(end.usage.reused);
        if rows >= MIN_ROWS {
            mix(&mut self.row_s, end.prefill.as_secs_f64() / rows as f64);
        }
    }

    pub(super) fn moved(&mut self, bytes: usize, took: Duration) {
        if bytes >= MIN_BYTES && !took.is_zero() {
            let measured = bytes as f64 / took.as_secs_f64();
            self.bytes_per_s += NEWEST * (measured - self.bytes_per_s);
        }
    }

    pub(super) fn speeds(&self) -> Speeds {
        Speeds {
            turn_s: self.turn_s.unwrap_or(0.0),
            row_s: self.row_s.unwrap_or(0.0),
            bytes_per_s: self.bytes_per_s,
            row_bytes: self.row_bytes,
        }
    }
}

fn mix(held: &mut Option<f64>, measured: f64) {
    let held = held.get_or_insert(measured);
    *held += NEWEST * (measured - *held);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_moves_do_not_count_and_large_ones_do_slowly() {
        let mut pace = Pace::new(100.0, 8);
        pace.moved(1_000, Duration::from_secs(1));
        assert_eq!(pace.speeds(), Speeds { turn_s: 0.0, row_s: 0.0, bytes_per_s: 100.0, row_bytes: 8.0 });
        (0..100).for_each(|_| pace.moved(2 << 20, Duration::from_secs(2)));
        assert!((pace.speeds().bytes_per_s - f64::from(1 << 20)).abs() < 1.0);
    }
}
