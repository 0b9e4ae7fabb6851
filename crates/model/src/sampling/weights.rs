//! Softmax weights: exp((logit − greatest) / temperature), so that the greatest weighs 1.
//!
//! Computed anew where needed rather than stored: a pass over a vocabulary costs less than the memory for it. The
//! arithmetic has one fixed order, so equal logits give equal weights and sums on every machine.

/// Logits that are summed together.
const BLOCK: usize = 512;
const LANES: usize = 16;
/// Below this a temperature is greedy in all but name, and quotients would overflow.
const LEAST_TEMPERATURE: f32 = 1e-6;

/// The weights of one step's logits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    greatest: f32,
    /// log2(e) / temperature.
    scale: f32,
}

impl Weights {
    pub(super) fn new(greatest: f32, temperature: f32) -> Self {
        Self { greatest, scale: std::f32::consts::LOG2_E / temperature.max(LEAST_TEMPERATURE) }
    }

    /// From 0 to 1; 0 only where single precision ends.
    #[inline]
    pub(super) fn of(&self, logit: f32) -> f32 {
        exp2((logit - self.greatest) * self.scale)
    }

    /// How far below the greatest, in doublings of the weight; never less for a smaller logit.
    #[inline]
    pub(super) fn halvings(&self, logit: f32) -> f32 {
        (self.greatest - logit) * self.scale
    }

    /// Σ weights of up to [`BLOCK`] logits.
    fn sum(&self, block: &[f32]) -> f64 {
        let mut sums = [0.0f32; LANES];
        let (chunks, rest) = block.as_chunks::<LANES>();
        for chunk in chunks {
            for (sum, logit) in sums.iter_mut().zip(chunk) {
                *sum += self.of(*logit);
            }
        }
        for (sum, logit) in sums.iter_mut().zip(rest) {
            *sum += self.of(*logit);
        }
        sums.iter().map(|sum| f64::from(*sum)).sum()
    }

    /// Σ weights.
    pub(super) fn total(&self, logits: &[f32]) -> f64 {
        logits.chunks(BLOCK).map(|block| self.sum(block)).sum()
    }

    /// The token at which the running sum of weights, by id, passes the share `u` of the total.
    pub(super) fn at(&self, logits: &[f32], u: f64) -> u32 {
        let sums: Vec<f64> = logits.chunks(BLOCK).map(|block| self.sum(block)).collect();
        let mut left = u * sums.iter().sum::<f64>();
        let (mut chosen, mut target) = (0, left);
        for (index, sum) in sums.iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
            (chosen, target) = (index, left);
            if *sum > left {
                break;
            }
            left -= sum;
        }
        let from = chosen * BLOCK;
        let ids = u32::try_from(from).unwrap_or(u32::MAX)..;
        pick(ids.zip(logits[from..].iter().take(BLOCK).map(|logit| f64::from(self.of(*logit)))), target)
    }
}

/// The first id at which the running sum passes `target`; the last one that has a weight, if rounding keeps it below.
pub(super) fn pick(weights: impl Iterator<Item = (u32, f64)>, target: f64) -> u32 {
    let mut mass = 0.0;
    let mut last = 0;
    for (id, weight) in weights {
        if weight > 0.0 {
            mass += weight;
            last = id;
            if mass > target {
                return id;
            }
        }
    }
    last
}

/// 2^x for x ≤ 0, relative error below 3e-7; 0 below −126. Splits x into the nearest integer, which becomes the
/// exponent, and a rest within ±½, for which six terms of the series of 2^x suffice.
#[inline]
fn exp2(x: f32) -> f32 {
    /// Adding and subtracting it rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    const SERIES: [f32; 6] =
        [0.000_154_035_3, 0.001_333_355_8, 0.009_618_13, 0.055_504_11, 0.240_226_5, std::f32::consts::LN_2];
    let clamped = if x > -126.0 { x } else { -126.0 };
    let shifted = clamped + ROUND;
    let rest = clamped - (shifted - ROUND);
    let mut power = SERIES[0];
    for term in &SERIES[1..] {
        power = power * rest + term;
    }
    power = power * rest + 1.0;
    // The integer sits in the low bits of the shifted number.
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let whole = power * f32::from_bits(exponent << 23);
    if x > -126.0 { whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_of_the_library() {
        let mut worst = 0.0f64;
        for step in 0..1_260_000u32 {
            let x = -(step as f32) * 1e-4;
            let exact = f64::from(x).exp2();
            worst = worst.max((f64::from(exp2(x)) / exact - 1.0).abs());
        }
        assert!(worst < 3e-7, "{worst}");
        assert_eq!((exp2(0.0), exp2(-1.0), exp2(-126.0), exp2(f32::NEG_INFINITY)), (1.0, 0.5, 0.0, 0.0));
    }

    #[test]
    fn the_running_sum_finds_every_token_of_every_block() {
        let logits: Vec<f32> =
            (0..1300u32).map(|id| if id % 7 == 3 { f32::NEG_INFINITY } else { 0.0 }).collect();
        let weights = Weights::new(0.0, 1.0);
        let count = logits.iter().filter(|logit| **logit == 0.0).count();
        assert_eq!(weights.total(&logits), count as f64);
        let drawn: Vec<u32> =
            (0..count).map(|n| weights.at(&logits, (n as f64 + 0.5) / count as f64)).collect();
        let expected: Vec<u32> = (0..1300).filter(|id| id % 7 != 3).collect();
        assert_eq!(drawn, expected);
        assert_eq!(weights.at(&logits, 1.0), 1299, "rounding may not leave the vocabulary");
    }
}
