//! What a TCP rank makes of bytes that no rank sends: the test is the other end of the connection.

use super::*;

/// The first bytes that rank 1 sends in its first call.
fn sent(
    secured: bool,
    bytes: usize,
    call: impl FnOnce(&mut TcpRank) -> Result<(), CollectiveError>,
) -> Vec<u8> {
    let (hub, test) = connected(secured);
    let mut rank = TcpRank::spoke(1, 2, hub, Duration::from_millis(1)).unwrap();
    // Nobody answers, so the call fails once its frame is sent.
    call(&mut rank).unwrap_err();
    drop(rank);
    let mut first = vec![0; bytes];
    test.receive(&mut first, WATCHDOG).unwrap();
    first
}

/// What rank 1 sends in a sum of ten values.
fn honest(secured: bool) -> Vec<u8> {
    sent(secured, 64 + 40, |rank| rank.all_reduce(Values::F32(&mut [2.0; 10]), Reduce::Sum))
}

/// What rank 0 makes of `bytes` as the answer to a sum of 10 values.
fn verdict(secured: bool, bytes: Vec<u8>) -> Result<[f32; 10], CollectiveError> {
    let (hub, test) = connected(secured);
    let results = run_all(vec![TcpRank::hub(vec![hub], LONG).unwrap()], move |mut rank| {
        test.send(&bytes, WATCHDOG).unwrap();
        test.end_sending();
        let mut data = [1.0; 10];
        rank.all_reduce(Values::F32(&mut data), Reduce::Sum).map(|()| data)
    });
    results.into_iter().next().unwrap()
}

#[test]
fn an_honest_frame_is_taken() {
    for secured in SECURED {
        assert_eq!(verdict(secured, honest(secured)), Ok([3.0; 10]));
    }
}

#[test]
fn every_changed_bit_is_found() {
    for secured in SECURED {
        let honest = honest(secured);
        for bit in 0..8 * honest.len() {
            let mut bytes = honest.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let result = verdict(secured, bytes);
            assert!(matches!(result, Err(CollectiveError::Damaged { rank: 1, .. })), "bit {bit}: {result:?}");
        }
    }
}

#[test]
fn every_cut_frame_is_a_rank_that_is_gone() {
    for secured in SECURED {
        let honest = honest(secured);
        for len in 0..honest.len() {
            let result = verdict(secured, honest[..len].to_vec());
            assert!(matches!(result, Err(CollectiveError::Gone { rank: 1, .. })), "{len} bytes: {result:?}");
        }
    }
}

#[test]
fn a_frame_of_another_length_is_a_mismatch_before_its_payload_is_read() {
    for (secured, len) in
        SECURED.into_iter().flat_map(|secured| [0, 9, 11, 100_000].map(|len| (secured, len)))
    {
        // Only the header arrives: a rank that believed it would wait for the payload.
        let sum = |rank: &mut TcpRank| rank.all_reduce(Values::F32(&mut vec![2.0; len]), Reduce::Sum);
        let bytes = sent(secured, 64, sum);
        let result = verdict(secured, bytes);
        assert!(matches!(result, Err(CollectiveError::Mismatch { rank: 1, .. })), "{len}: {result:?}");
    }
}

#[test]
fn a_rank_that_is_wired_to_the_wrong_place_is_a_mismatch() {
    // Rank 1 of a group of two, where the other end is rank 2 of three.
    let (one, other) = connected(false);
    let ranks = vec![TcpRank::hub(vec![one], LONG).unwrap(), TcpRank::spoke(2, 3, other, LONG).unwrap()];
    for result in run_all(ranks, |mut rank| rank.barrier()) {
        assert!(matches!(result, Err(CollectiveError::Mismatch { .. })), "{result:?}");
    }
}

#[test]
fn a_rank_that_no_group_has_is_refused() {
    for (rank, world) in [(0, 2), (2, 2), (1, 70_000)] {
        let error = TcpRank::spoke(rank, world, connected(false).0, LONG).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{rank} of {world}");
    }
}

#[test]
fn a_frame_that_comes_in_drops_is_taken() {
    for secured in SECURED {
        let bytes = honest(secured);
        let (hub, test) = connected(secured);
        let test = Arc::new(test);
        let results = run_all(vec![TcpRank::hub(vec![hub], LONG).unwrap()], move |mut rank| {
            let (bytes, test) = (bytes.clone(), Arc::clone(&test));
            let sender = std::thread::spawn(move || {
                bytes.iter().for_each(|byte| test.send(&[*byte], WATCHDOG).unwrap());
            });
            let mut data = [1.0; 10];
            let result = rank.all_reduce(Values::F32(&mut data), Reduce::Sum).map(|()| data);
            sender.join().unwrap();
            result
        });
        assert_eq!(results, [Ok([3.0; 10])]);
    }
}

#[test]
fn a_rank_that_sends_all_and_reads_nothing_is_a_timeout() {
    // More than sockets buffer.
    let len = 3 << 20;
    for secured in SECURED {
        let (hub, test) = connected(secured);
        // Its part in a broadcast is a header.
        let answer = sent(secured, 64, |rank| rank.broadcast(Values::F32(&mut vec![0.0; len])));
        test.send(&answer, WATCHDOG).unwrap();
        let results = run_all(vec![hub], move |hub| {
            let mut rank = TcpRank::hub(vec![hub], Duration::from_millis(200)).unwrap();
            rank.broadcast(Values::F32(&mut vec![1.0; len]))
        });
        let error = results[0].clone().unwrap_err();
        assert!(matches!(error, CollectiveError::Timeout { rank: 1, .. }), "{error}");
    }
}
