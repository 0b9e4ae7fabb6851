//! A counter-based random generator: Philox4x32-10 of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3"
//! (SC11). There is no state to carry or to rewind: the n-th number of a seed is a function of both.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The block of random words at `counter` under `key`.
fn block(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
        }
        let [high0, low0] = product(MULTIPLIERS[0], counter[0]);
        let [high1, low1] = product(MULTIPLIERS[1], counter[2]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
    }
    counter
}

/// High and low half of a product.
fn product(a: u32, b: u32) -> [u32; 2] {
    let whole = u64::from(a) * u64::from(b);
    [low(whole >> 32), low(whole)]
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
const fn low(wide: u64) -> u32 {
    (wide & 0xFFFF_FFFF) as u32
}

/// The uniform number in [0, 1) of a seed's `step`, with 53 random bits.
pub(super) fn uniform(seed: u64, step: u64) -> f64 {
    let words = block([low(step), low(step >> 32), 0, 0], [low(seed), low(seed >> 32)]);
    let bits = (u64::from(words[0]) << 32 | u64::from(words[1])) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with the generator.
    #[test]
    fn known_answers() {
        let ones = u32::MAX;
        assert_eq!(block([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(block([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            block([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn numbers_are_uniform_and_steps_and_seeds_differ() {
        let count = 100_000u32;
        let numbers: Vec<f64> = (0..u64::from(count)).map(|step| uniform(7, step)).collect();
        assert!(numbers.iter().all(|u| (0.0..1.0).contains(u)));
        for tenth in 0..10 {
            let low = f64::from(tenth) / 10.0;
            let inside = numbers.iter().filter(|u| (low..low + 0.1).contains(*u)).count();
            // Ten standard deviations of a binomial count around its mean.
            assert!((9_050..10_950).contains(&inside), "{inside} in tenth {tenth}");
        }
        assert_ne!(uniform(7, 0), uniform(8, 0));
        assert_ne!(uniform(7, 0), uniform(7 << 32, 0));
    }
}
