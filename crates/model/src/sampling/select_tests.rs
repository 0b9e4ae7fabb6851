use proptest::prelude::*;

use super::*;

/// The rule as written, by sorting everything.
fn reference(logits: &[f32], temperature: f32, cutoffs: Cutoffs) -> Vec<u32> {
    let mut sorted: Vec<Candidate> = (0u32..).zip(logits.iter().copied()).collect();
    sorted.sort_by(order);
    if cutoffs.top_k > 0 {
        sorted.truncate(cutoffs.top_k);
    }
    let most = f64::from(sorted[0].1);
    let weights: Vec<f64> =
        sorted.iter().map(|(_, l)| ((f64::from(*l) - most) / f64::from(temperature)).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut kept = Vec::new();
    let mut mass = 0.0;
    for ((id, _), w) in sorted.iter().zip(&weights) {
        let enough = mass >= cutoffs.top_p * total && cutoffs.top_p < 1.0;
        if !kept.is_empty() && (enough || *w < f64::from(cutoffs.min_p)) {
            break;
        }
        mass += w;
        kept.push(*id);
    }
    kept
}

/// Logits without near ties at a cut-off: multiples of a quarter.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec((-40i16..40).prop_map(|q| f32::from(q) * 0.25), 1..300)
}

proptest! {
    #[test]
    fn the_greatest_are_those_of_a_full_sort(logits in logits(), count in 0usize..320) {
        let mut sorted: Vec<Candidate> = (0u32..).zip(logits.iter().copied()).collect();
        sorted.sort_by(order);
        sorted.truncate(count);
        prop_assert_eq!(greatest(&logits, count), sorted);
        let most = maximum(&logits);
        prop_assert_eq!(most, logits.iter().copied().reduce(f32::max));
        prop_assert_eq!(first_of(&logits, most.unwrap()), Some(greatest(&logits, 1)[0].0));
    }

    /// Only tokens that the rule keeps are drawn, and over a grid of numbers every one with a share worth a step is.
    #[test]
    fn draws_are_from_what_the_cut_offs_keep(
        logits in logits(),
        temperature in 0.2f32..3.0,
        top_k in 0usize..40,
        top_p in prop_oneof![Just(1.0), 0.05f64..1.0],
        min_p in prop_oneof![Just(0.0), 0.0f32..0.9],
    ) {
        let cutoffs = Cutoffs { top_k, top_p, min_p };
        let kept = reference(&logits, temperature, cutoffs);
        let most = maximum(&logits).unwrap();
        let steps = 64u32;
        let drawn: std::collections::BTreeSet<u32> =
            (0..steps).map(|n| draw(&logits, most, temperature, cutoffs, f64::from(n) / f64::from(steps))).collect();
        prop_assert!(drawn.iter().all(|id| kept.contains(id)), "{:?} not in {:?}", drawn, kept);
        let weight = |id: &u32| ((f64::from(logits[*id as usize]) - f64::from(most)) / f64::from(temperature)).exp();
        let mass: f64 = kept.iter().map(weight).sum();
        let worth = kept.iter().filter(|id| weight(id) / mass > 1.0 / f64::from(steps) + 1e-5);
        prop_assert!(worth.clone().all(|id| drawn.contains(id)), "{:?} lacks one of {:?}", drawn, kept);
    }
}

#[test]
fn frequencies_follow_the_probabilities() {
    let logits = [0.0f32, 1.0, 2.0, f32::NEG_INFINITY];
    let cutoffs = Cutoffs { top_k: 0, top_p: 1.0, min_p: 0.0 };
    let steps = 10_000u32;
    let mut counts = [0u32; 4];
    for n in 0..steps {
        counts[draw(&logits, 2.0, 2.0, cutoffs, f64::from(n) / f64::from(steps)) as usize] += 1;
    }
    let weights = [(-1.0f64).exp(), (-0.5f64).exp(), 1.0];
    let total: f64 = weights.iter().sum();
    for (count, weight) in counts.iter().zip(weights) {
        assert!((f64::from(*count) - weight / total * f64::from(steps)).abs() <= 1.0, "{counts:?}");
    }
    assert_eq!(counts[3], 0, "a masked token is never drawn");
}

#[test]
fn a_tiny_temperature_is_greedy_and_ends_are_safe() {
    let logits = [1.0f32, 3.0, 2.0, 3.0];
    let cutoffs = Cutoffs { top_k: 3, top_p: 0.9, min_p: 0.1 };
    for u in [0.0, 0.49, 1.0 - f64::EPSILON] {
        assert!([1, 3].contains(&draw(&logits, 3.0, f32::MIN_POSITIVE, cutoffs, u)));
    }
    assert_eq!(draw(&[5.0], 5.0, 1.0, Cutoffs { top_k: 0, top_p: 1.0, min_p: 0.0 }, 1.0 - f64::EPSILON), 0);
}

#[test]
fn e18_nan_and_infinity_have_no_maximum() {
    for at in [0, 15, 16, 40] {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut logits = vec![1.0f32; 41];
            logits[at] = bad;
            assert_eq!(maximum(&logits), None);
        }
    }
    assert_eq!(maximum(&[]), None);
    assert_eq!(maximum(&[f32::NEG_INFINITY; 20]), None);
    assert_eq!(maximum(&[f32::NEG_INFINITY, -3.0]), Some(-3.0));
}
