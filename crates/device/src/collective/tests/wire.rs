//! What a TCP rank makes of bytes that no rank sends: the test is the other end of the connection.

use std::io::{Read, Write};
use std::net::Shutdown;

use super::*;

/// What rank 1 sends in the first call: a sum of `data`.
fn honest(data: &mut [f32]) -> Vec<u8> {
    let (hub, mut test) = connected();
    let mut rank = TcpRank::spoke(1, 2, hub, Duration::from_millis(1)).unwrap();
    // Nobody answers, so the call fails once its frame is sent.
    rank.all_reduce(Values::F32(data), Reduce::Sum).unwrap_err();
    drop(rank);
    let mut bytes = Vec::new();
    test.read_to_end(&mut bytes).unwrap();
    bytes.truncate(64 + size_of_val(data));
    bytes
}

/// What rank 0 makes of `bytes` as the answer to a sum of 10 values.
fn verdict(bytes: Vec<u8>) -> Result<[f32; 10], CollectiveError> {
    let (hub, test) = connected();
    let results = run_all(vec![TcpRank::hub(vec![hub], LONG).unwrap()], move |mut rank| {
        (&test).write_all(&bytes).unwrap();
        test.shutdown(Shutdown::Write).unwrap();
        let mut data = [1.0; 10];
        rank.all_reduce(Values::F32(&mut data), Reduce::Sum).map(|()| data)
    });
    results.into_iter().next().unwrap()
}

#[test]
fn an_honest_frame_is_taken() {
    assert_eq!(verdict(honest(&mut [2.0; 10])), Ok([3.0; 10]));
}

#[test]
fn every_changed_bit_is_found() {
    let honest = honest(&mut [2.0; 10]);
    for bit in 0..8 * honest.len() {
        let mut bytes = honest.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let result = verdict(bytes);
        assert!(matches!(result, Err(CollectiveError::Damaged { rank: 1, .. })), "bit {bit}: {result:?}");
    }
}

#[test]
fn every_cut_frame_is_a_rank_that_is_gone() {
    let honest = honest(&mut [2.0; 10]);
    for len in 0..honest.len() {
        let result = verdict(honest[..len].to_vec());
        assert!(matches!(result, Err(CollectiveError::Gone { rank: 1, .. })), "{len} bytes: {result:?}");
    }
}

#[test]
fn a_frame_of_another_length_is_a_mismatch_before_its_payload_is_read() {
    for len in [0, 9, 11, 100_000] {
        let mut bytes = honest(&mut vec![2.0; len]);
        // Only the header arrives: a rank that believed it would wait for the payload.
        bytes.truncate(64);
        let result = verdict(bytes);
        assert!(matches!(result, Err(CollectiveError::Mismatch { rank: 1, .. })), "{len}: {result:?}");
    }
}

#[test]
fn a_rank_that_is_wired_to_the_wrong_place_is_a_mismatch() {
    // Rank 1 of a group of two, where the other end is rank 2 of three.
    let (one, other) = connected();
    let ranks = vec![TcpRank::hub(vec![one], LONG).unwrap(), TcpRank::spoke(2, 3, other, LONG).unwrap()];
    for result in run_all(ranks, |mut rank| rank.barrier()) {
        assert!(matches!(result, Err(CollectiveError::Mismatch { .. })), "{result:?}");
    }
}

#[test]
fn a_rank_that_no_group_has_is_refused() {
    for (rank, world) in [(0, 2), (2, 2), (1, 70_000)] {
        let error = TcpRank::spoke(rank, world, connected().0, LONG).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{rank} of {world}");
    }
}

#[test]
fn a_frame_that_comes_in_drops_is_taken() {
    let bytes = honest(&mut [2.0; 10]);
    let (hub, test) = connected();
    test.set_nodelay(true).unwrap();
    let results = run_all(vec![TcpRank::hub(vec![hub], LONG).unwrap()], move |mut rank| {
        let (bytes, mut test) = (bytes.clone(), test.try_clone().unwrap());
        let sender =
            std::thread::spawn(move || bytes.iter().for_each(|byte| test.write_all(&[*byte]).unwrap()));
        let mut data = [1.0; 10];
        let result = rank.all_reduce(Values::F32(&mut data), Reduce::Sum).map(|()| data);
        sender.join().unwrap();
        result
    });
    assert_eq!(results, [Ok([3.0; 10])]);
}
