//! The real libraries: that their absence is a clear error, and, on a machine with a GPU, a group of one.

use half::bf16;
use hawser_common::clock::Clock;

use super::super::{Member, Nccl, TagCheck, unique_id, version};
use super::options;
use crate::collective::{Collective, CollectiveError, Reduce, Values};

/// What an absent library's error says, in each kind of build.
fn names_what_is_missing(error: &CollectiveError) {
    let CollectiveError::Transport { transport: "NCCL", reason } = error else {
        panic!("another error: {error}");
    };
    let named = if cfg!(feature = "cuda") {
        reason.contains("libcuda.so.1") || reason.contains("libnccl.so.2") || reason.contains("cuInit")
    } else {
        reason.contains("feature `cuda`")
    };
    assert!(named, "{reason}");
}

#[test]
fn without_the_libraries_every_entry_says_what_is_missing() {
    let member = Member { rank: 0, world: 1 };
    let id = super::id();
    match version() {
        // This machine has them: then there is nothing to see here.
        Ok(version) => assert!(version.major >= 2),
        Err(error) => {
            names_what_is_missing(&error);
            names_what_is_missing(&unique_id().unwrap_err());
            let joined = Nccl::join(&id, member, options(TagCheck::On), Clock::system());
            names_what_is_missing(&joined.unwrap_err());
        }
    }
}

#[test]
#[ignore = "needs a GPU, its driver and NCCL: cargo test -p hawser-device --features cuda -- --ignored nccl"]
fn a_group_of_one_on_a_gpu() {
    let version = version().unwrap();
    println!("NCCL {version}");
    for tags in [TagCheck::Off, TagCheck::On] {
        let id = unique_id().unwrap();
        let member = Member { rank: 0, world: 1 };
        let mut nccl = Nccl::join(&id, member, options(tags), Clock::system()).unwrap();
        for len in [1, 1_000, 100_000] {
            let floats: Vec<f32> = (0..len).map(|at| at as f32 / 3.0).collect();
            let halves: Vec<bf16> = floats.iter().map(|value| bf16::from_f32(*value)).collect();
            let whole: Vec<i64> = (0..len).map(|at| (at as i64) << 33).collect();
            let doubles: Vec<f64> = floats.iter().map(|value| f64::from(*value) / 3.0).collect();
            let (mut a, mut b, mut c) = (floats.clone(), halves.clone(), whole.clone());
            let mut d = doubles.clone();
            for by in [Reduce::Sum, Reduce::Max] {
                nccl.all_reduce(Values::F32(&mut a), by).unwrap();
                nccl.all_reduce(Values::Bf16(&mut b), by).unwrap();
                nccl.all_reduce(Values::I64(&mut c), by).unwrap();
                nccl.all_reduce(Values::F64(&mut d), by).unwrap();
                nccl.reduce_to_leader(Values::F32(&mut a), by).unwrap();
                nccl.reduce_to_leader(Values::Bf16(&mut b), by).unwrap();
                nccl.reduce_to_leader(Values::I64(&mut c), by).unwrap();
            }
            nccl.broadcast(Values::F32(&mut a)).unwrap();
            nccl.broadcast(Values::Bf16(&mut b)).unwrap();
            nccl.broadcast(Values::I64(&mut c)).unwrap();
            nccl.barrier().unwrap();
            let mut gathered = vec![0.0; len];
            nccl.gather(&a, &[len], &mut gathered).unwrap();
            assert_eq!((&gathered, &a), (&floats, &floats));
            assert_eq!((b, c, d), (halves, whole, doubles));
        }
        nccl.abort_handle().abort("enough");
        let ended = CollectiveError::Aborted { reason: "enough".to_owned() };
        assert_eq!(nccl.barrier(), Err(ended));
    }
}
