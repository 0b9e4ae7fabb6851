//! Rotary position embedding: the frequency of each pair of a head, with the scalings that stretch a model's context.
//!
//! Sources: RoFormer (arXiv 2104.09864); position interpolation (arXiv 2306.15595); YaRN (arXiv 2309.00071); the
//! Llama 3.1 rule as published with its weights. Constants and edge cases are those of Hugging Face transformers.

use std::f64::consts::TAU;

use super::InvalidConfig;

/// What fixes the phase of every position.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// The base: pair `i` of a head of size `d` turns by theta^(-2i/d) radians per position.
    pub theta: f64,
    pub scaling: RopeScaling,
}

/// How the frequencies are stretched beyond the context length of the training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// Every frequency is divided by `factor`.
    Linear {
        factor: f64,
    },
    /// Wavelengths above `original / low` are divided by `factor`, those below `original / high` are kept, and
    /// those between are blended.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
    /// Pairs that turn less than `beta_slow` times in the original context are divided by `factor`, those that turn
    /// more than `beta_fast` times are kept, and those between are blended by a ramp over the pair index.
    Yarn {
        factor: f64,
        beta_fast: f64,
        beta_slow: f64,
        original: f64,
        /// Sines and cosines are multiplied by this.
        attention_factor: f64,
        /// The ends of the ramp are rounded outwards to whole pairs.
        truncate: bool,
    },
}

impl RopeConfig {
    /// Radians per position of each of the `head_dim / 2` pairs.
    #[must_use]
    pub fn frequencies(&self, head_dim: usize) -> Vec<f64> {
        let base = |pair: usize| self.theta.powf(-((2 * pair) as f64) / head_dim as f64);
        let ramp = self.scaling.ramp(self.theta, head_dim);
        (0..head_dim / 2).map(|pair| self.scaling.stretch(base(pair), pair, ramp)).collect()
    }

    /// What sines and cosines are multiplied by: 1 except for YaRN.
    #[must_use]
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => 1.0,
        }
    }

    pub(super) fn check(&self) -> Result<(), InvalidConfig> {
        let check = |name, value: f64, least: f64| {
            let ok = value.is_finite() && value >= least && value > 0.0;
            let expected = "a larger, finite number is expected";
            if ok { Ok(()) } else { Err(InvalidConfig { name, value: value.to_string(), expected }) }
        };
        check("the rope base", self.theta, 1.0)?;
        match self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => check("the rope factor", factor, 0.0),
            RopeScaling::Llama3 { factor, low, high, original } => {
                check("the rope factor", factor, 0.0)?;
                check("the rope's low frequency factor", low, 0.0)?;
                check("the rope's high frequency factor", high, low * (1.0 + f64::EPSILON))?;
                check("the rope's original context length", original, 1.0)
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original, attention_factor, .. } => {
                check("the rope factor", factor, 0.0)?;
                check("the rope's slow beta", beta_slow, 0.0)?;
                check("the rope's fast beta", beta_fast, beta_slow)?;
                check("the rope's original context length", original, 1.0)?;
                check("the rope's attention factor", attention_factor, 0.0)
            }
        }
    }
}

/// The magnitude that YaRN gives sines and cosines where the configuration names none.
#[must_use]
pub(crate) fn yarn_magnitude(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

impl RopeScaling {
    /// First and last pair of YaRN's ramp.
    fn ramp(&self, theta: f64, head_dim: usize) -> (f64, f64) {
        let Self::Yarn { beta_fast, beta_slow, original, truncate, .. } = *self else { return (0.0, 0.0) };
        let width = head_dim as f64;
        // The pair that turns `turns` times within the original context.
        let pair = |turns: f64| width * (original / (turns * TAU)).ln() / (2.0 * theta.ln());
        let (first, last) = (pair(beta_fast), pair(beta_slow));
        let (first, last) = if truncate { (first.floor(), last.ceil()) } else { (first, last) };
        let (first, last) = (first.max(0.0), last.min(width - 1.0));
        // A ramp of no width would divide by zero.
        if first == last { (first, last + 0.001) } else { (first, last) }
    }

    fn stretch(&self, frequency: f64, pair: usize, (first, last): (f64, f64)) -> f64 {
        match *self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, low, high, original } => {
                let turns = original * frequency / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            }
            Self::Yarn { factor, .. } => {
                let stretched = ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0);
                frequency * (1.0 - stretched + stretched / factor)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { theta: 500_000.0, scaling }
    }

    #[test]
    fn every_scaling_of_factor_one_changes_nothing() {
        let plain = config(RopeScaling::None).frequencies(128);
        let scalings = [
            RopeScaling::Linear { factor: 1.0 },
            RopeScaling::Llama3 { factor: 1.0, low: 1.0, high: 4.0, original: 8192.0 },
            RopeScaling::Yarn {
                factor: 1.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original: 8192.0,
                attention_factor: 1.0,
                truncate: true,
            },
        ];
        for scaling in scalings {
            for (a, b) in config(scaling).frequencies(128).iter().zip(&plain) {
                assert!((a - b).abs() <= 1e-15 * b, "{a} {b}");
            }
        }
    }

    #[test]
    fn scaled_frequencies_keep_the_fast_pairs_and_divide_the_slow_ones() {
        let plain = config(RopeScaling::None).frequencies(128);
        let llama = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let yarn = RopeScaling::Yarn {
            factor: 8.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original: 8192.0,
            attention_factor: 1.2,
            truncate: true,
        };
        for scaling in [llama, yarn] {
            let scaled = config(scaling.clone()).frequencies(128);
            let ratio: Vec<f64> = scaled.iter().zip(&plain).map(|(a, b)| a / b).collect();
            assert!(
                (ratio[0] - 1.0).abs() < 1e-12 && (ratio[63] - 0.125).abs() < 1e-12,
                "{scaling:?} {ratio:?}"
            );
            assert!(ratio.windows(2).all(|pair| pair[0] >= pair[1] - 1e-12), "{scaling:?} {ratio:?}");
            let between = ratio.iter().filter(|&&r| r < 0.999 && r > 0.126).count();
            assert!(between > 2, "{scaling:?} has no blend: {ratio:?}");
        }
        assert!(
            (config(RopeScaling::None).frequencies(128)[1] - 500_000_f64.powf(-1.0 / 64.0)).abs() < 1e-15
        );
    }

    /// Against values computed apart from this code, by the formulas of Hugging Face transformers as written there.
    #[test]
    fn scaled_frequencies_have_their_reference_values() {
        let llama = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let yarn = RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original: 32_768.0,
            attention_factor: yarn_magnitude(4.0, 1.0),
            truncate: true,
        };
        let cases = [
            (
                500_000.0,
                llama,
                [0.003_211_445_994_752_591_3, 0.000_524_846_160_992_954_7, 3.428_102_195_952_591e-5],
            ),
            (1e6, yarn, [0.001_848_276_564_706_878, 0.000_602_941_176_470_588_2, 4.445_698_525_097_307e-5]),
        ];
        for (theta, scaling, expected) in cases {
            let config = RopeConfig { theta, scaling };
            let found = config.frequencies(128);
            for (pair, expected) in [28, 32, 40].into_iter().zip(expected) {
                assert!(
                    (found[pair] / expected - 1.0).abs() < 1e-9,
                    "{config:?} pair {pair}: {}",
                    found[pair]
                );
            }
        }
        assert!((yarn_magnitude(4.0, 1.0) - 1.138_629_436_111_989).abs() < 1e-12);
    }

    #[test]
    fn nonsense_is_refused_before_it_divides() {
        for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(config(RopeScaling::Linear { factor }).check().is_err(), "{factor}");
        }
        let flat = RopeScaling::Llama3 { factor: 8.0, low: 4.0, high: 4.0, original: 8192.0 };
        assert!(config(flat).check().is_err());
    }
}
