use proptest::prelude::*;

use super::*;

/// Logits of a step: a fixed function, so that a run can be repeated.
fn logits(step: u64) -> Vec<f32> {
    (0..200u32).map(|id| (f64::from(id) * 0.37 + step as f64 * 1.7).sin() as f32 * 4.0).collect()
}

fn run(sampler: &mut Sampler, steps: std::ops::Range<u64>) -> Vec<u32> {
    steps.map(|step| sampler.sample(&mut logits(step)).unwrap().token).collect()
}

proptest! {
    /// Interleaving, a clone taken anywhere, or another group taking over: the tokens are those of one run.
    #[test]
    fn e24_tokens_depend_on_seed_and_history_only(
        seed in any::<u64>(),
        cut in 0u64..20,
        temperature in prop_oneof![Just(0.0f32), 0.3f32..2.0],
        repetition in prop_oneof![Just(1.0f32), 0.8f32..1.5],
        frequency in prop_oneof![Just(0.0f32), -1.0f32..1.0],
        top_k in 0u32..50,
    ) {
        let sampling = Sampling { temperature, repetition_penalty: repetition, frequency_penalty: frequency, top_k, ..Sampling::default() };
        let fresh = || {
            let mut sampler = Sampler::new(&sampling, seed);
            sampler.observe_prompt(&[3, 5, 3]);
            sampler
        };
        let whole = run(&mut fresh(), 0..20);
        let mut first = fresh();
        prop_assert_eq!(run(&mut first, 0..cut), &whole[..cut as usize]);
        // A turn that is rolled back leaves nothing.
        run(&mut first.clone(), cut..20);
        prop_assert_eq!(run(&mut first, cut..20), &whole[cut as usize..]);
        let mut other = fresh();
        whole[..cut as usize].iter().for_each(|token| other.observe(*token));
        prop_assert_eq!(run(&mut other, cut..20), &whole[cut as usize..]);
    }

    /// Log-probabilities are of the logits as they came.
    #[test]
    fn logprobs_are_of_the_models_own_distribution(step in 0u64..100, penalty in prop_oneof![Just(1.0f32), Just(1.3f32)]) {
        let sampling = Sampling { logprobs: Some(5), repetition_penalty: penalty, temperature: 0.7, top_k: 9, ..Sampling::default() };
        let mut sampler = Sampler::new(&sampling, step);
        sampler.observe_prompt(&(0..100).collect::<Vec<_>>());
        let own = logits(step);
        let sampled = sampler.sample(&mut own.clone()).unwrap();
        let total: f64 = own.iter().map(|l| f64::from(*l).exp()).sum();
        let expected = |id: u32| (f64::from(own[id as usize]).exp() / total).ln() as f32;
        prop_assert!((sampled.logprob.unwrap() - expected(sampled.token)).abs() < 1e-4);
        prop_assert_eq!(sampled.top.len(), 5);
        prop_assert!(sampled.top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        prop_assert!(sampled.top.iter().all(|(id, p)| (p - expected(*id)).abs() < 1e-4));
    }
}

#[test]
fn greedy_takes_the_greatest_and_of_equal_ones_the_lowest() {
    let mut sampler = Sampler::new(&Sampling { temperature: 0.0, ..Sampling::default() }, 1);
    let mut row = vec![0.0f32; 50_000];
    (row[700], row[40_000]) = (2.0, 2.0);
    assert_eq!(sampler.sample(&mut row).unwrap(), Sampled { token: 700, logprob: None, top: Vec::new() });
}

#[test]
fn seeds_differ() {
    let tokens = |seed| run(&mut Sampler::new(&Sampling::default(), seed), 0..20);
    assert_ne!(tokens(1), tokens(2));
}

#[test]
fn e18_a_nan_logit_is_an_error_and_counts_nothing() {
    for temperature in [0.0, 1.0] {
        let sampling = Sampling { temperature, repetition_penalty: 1.2, ..Sampling::default() };
        let mut sampler = Sampler::new(&sampling, 1);
        let first = sampler.sample(&mut logits(0)).unwrap().token;
        let mut row = logits(1);
        row[17] = f32::NAN;
        assert_eq!(sampler.sample(&mut row), Err(SampleError::NotFinite { step: 1 }));
        assert_eq!(sampler.sample(&mut []), Err(SampleError::Empty));
        let mut other = Sampler::new(&sampling, 1);
        other.observe(first);
        assert_eq!(sampler.sample(&mut logits(1)), other.sample(&mut logits(1)));
    }
}

#[test]
fn penalties_that_overflow_are_an_error() {
    let sampling =
        Sampling { temperature: 0.0, repetition_penalty: f32::MIN_POSITIVE, ..Sampling::default() };
    let mut sampler = Sampler::new(&sampling, 1);
    sampler.observe_prompt(&[0]);
    assert_eq!(sampler.sample(&mut [5.0, 1.0]), Err(SampleError::NotFinite { step: 0 }));
}
