//! Snapshots of sessions: whole or not at all.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail loudly")]

use hawser_common::Position;
use hawser_kv::retention::{Marks, Origin, PruneLog, PruneRecord};
use hawser_model::executor::MemoryState;
use hawser_worker::KvType;
use hawser_worker::moving::snapshot::{Chunk, Manifest, Offer, Piece, Reader, Shape, SnapshotError, Writer};
use hawser_worker::scheduler::SessionState;
use hawser_worker::session::{History, Transcript};
use proptest::prelude::*;

const VOCABULARY: usize = 100;
const SLOTS: u64 = 1_000;

fn shape() -> Shape {
    Shape { digest: "d".into(), kv_type: KvType::F16, layers: 2, heads: 4, kv_heads: 2, head_dim: 3 }
}

/// A session that was pruned once: every third position of the first half is dead.
fn session(tokens: u32, rows: u32) -> Manifest {
    let log: Vec<u32> = (0..tokens).map(|i| i % 90).collect();
    let mut marks = Marks::default();
    marks.extend_to(tokens / 2, Origin::System, 0);
    marks.extend_to(tokens, Origin::User, 1);
    let at = rows / 2;
    let evicted: Vec<Position> = (1..at.saturating_sub(1)).filter(|i| i % 3 == 0).map(Position).collect();
    let live = (0..rows).map(Position).filter(|position| evicted.binary_search(position).is_err()).collect();
    let mut prunes = PruneLog::default();
    prunes.push(PruneRecord { at, freed: 0, evicted, revived: Vec::new() });
    let state = SessionState {
        tokens: log.clone(),
        len: rows,
        live,
        log: prunes,
        scores: vec![(Position(0), 1.5)],
        prunes: true,
        ..Default::default()
    };
    Manifest {
        transcript: Transcript {
            history: History::Tokens,
            tokens: log,
            marks,
            turns: 2,
            ..Transcript::default()
        },
        state: Some(state),
        memory: Some(MemoryState { memory: vec![0.25; 24], mass: vec![7; 3], ..Default::default() }),
        idle_ms: 9,
    }
}

#[derive(Clone, Debug)]
struct Sent {
    offer: Offer,
    chunks: Vec<Chunk>,
    end: u64,
}

fn send(manifest: &Manifest, cut: usize, rows_each: usize) -> (Sent, Vec<u8>) {
    let bytes = manifest.encode();
    let rows = manifest.state.as_ref().unwrap().live.len();
    let row_bytes = usize::try_from(shape().row_bytes()).unwrap();
    let data: Vec<u8> = (0..rows * row_bytes).map(|i| (i % 251) as u8).collect();
    let offer = Offer::new(&shape(), bytes.len(), rows);
    let mut writer = Writer::new(&offer);
    let pieces = bytes.chunks(cut).chain(data.chunks(rows_each * row_bytes));
    let chunks = pieces.map(|piece| writer.chunk(piece.to_vec())).collect();
    (Sent { offer, chunks, end: writer.end() }, data)
}

fn receive(sent: Sent) -> Result<(Manifest, Vec<u8>), SnapshotError> {
    sent.offer.check(&shape(), SLOTS)?;
    let mut reader = Reader::new(sent.offer, VOCABULARY);
    let (mut manifest, mut rows) = (None, Vec::new());
    for chunk in sent.chunks {
        match reader.chunk(chunk)? {
            Piece::Part => {}
            Piece::Manifest(read) => manifest = Some(*read),
            Piece::Rows { first, bytes } => {
                assert_eq!(first * usize::try_from(shape().row_bytes()).unwrap(), rows.len());
                rows.extend(bytes);
            }
        }
    }
    reader.end(sent.end)?;
    Ok((manifest.unwrap(), rows))
}

/// Flips one bit of what is said, wherever it is said.
fn flip(sent: &mut Sent, at: usize, bit: u32) {
    let numbers = 4 + 3 + sent.chunks.len() * 2 + 1;
    let bytes: usize = sent.chunks.iter().map(|chunk| chunk.data.len()).sum();
    let at = at % (numbers + bytes);
    let Some(mut at_byte) = at.checked_sub(numbers) else {
        let offer = &mut sent.offer;
        match at {
            0..4 => offer.sizes[at] ^= 1 << (bit % 32),
            4 => offer.manifest_bytes ^= 1 << (bit % 64),
            5 => offer.rows ^= 1 << (bit % 64),
            6 => offer.row_bytes ^= 1 << (bit % 64),
            _ => match sent.chunks.get_mut((at - 7) / 2) {
                Some(chunk) if (at - 7).is_multiple_of(2) => chunk.offset ^= 1 << (bit % 64),
                Some(chunk) => chunk.checksum ^= 1 << (bit % 64),
                None => sent.end ^= 1 << (bit % 64),
            },
        }
        return;
    };
    for chunk in &mut sent.chunks {
        if let Some(byte) = chunk.data.get_mut(at_byte) {
            *byte ^= 1 << (bit % 8);
            return;
        }
        at_byte -= chunk.data.len();
    }
}

proptest! {
    #[test]
    fn r6_e23_a_snapshot_comes_back_whole_or_is_refused(
        tokens in 4u32..80, pending in 0u32..4, cut in 1usize..300, rows_each in 1usize..9,
        at in any::<usize>(), bit in 0u32..64, lost in any::<usize>(),
    ) {
        let manifest = session(tokens, tokens - pending);
        let (sent, rows) = send(&manifest, cut, rows_each);
        prop_assert_eq!(receive(sent.clone()), Ok((manifest, rows)));
        let mut flipped = sent.clone();
        flip(&mut flipped, at, bit);
        prop_assert!(receive(flipped).is_err(), "a flipped bit");
        let lost = lost % sent.chunks.len();
        let mut truncated = sent.clone();
        truncated.chunks.truncate(lost);
        prop_assert!(receive(truncated).is_err(), "cut short after {lost} chunks");
        let mut short = sent.clone();
        short.chunks[lost].data.pop();
        prop_assert!(receive(short).is_err(), "a chunk that is too short");
        let mut missing = sent.clone();
        missing.chunks.remove(lost);
        prop_assert!(receive(missing).is_err(), "a chunk is missing");
        let mut twice = sent;
        let chunk = twice.chunks[lost].clone();
        twice.chunks.insert(lost, chunk);
        prop_assert!(receive(twice).is_err(), "a chunk that comes twice");
    }
}

#[test]
fn e23_foreign_snapshots_are_refused_and_say_why() {
    let (sent, _) = send(&session(20, 20), 64, 4);
    let check = |offer: Offer| offer.check(&shape(), SLOTS).unwrap_err().to_string();
    let digest = check(Offer { digest: "other".into(), ..sent.offer.clone() });
    assert!(digest.contains("model digest is other"), "{digest}");
    let kv = check(Offer { kv_type: "f32".into(), ..sent.offer.clone() });
    assert!(kv.contains("KV type is f32, this group's is f16"), "{kv}");
    let heads = check(Offer { sizes: [2, 4, 4, 3], ..sent.offer.clone() });
    assert!(heads.contains("number of KV heads is 4"), "{heads}");
    let version = check(Offer { version: 2, ..sent.offer.clone() });
    assert!(version.contains("version 2"), "{version}");
    assert!(matches!(sent.offer.check(&shape(), 3), Err(SnapshotError::TooLarge { .. })));
}

#[test]
fn e23_a_state_that_contradicts_itself_is_refused() {
    let sound = session(30, 28).state.unwrap();
    assert_eq!(sound.check(VOCABULARY), Ok(()));
    type Damage = fn(&mut SessionState);
    let wrong: [(&str, Damage); 7] = [
        ("live past the end", |state| state.live.push(Position(28))),
        ("live out of order", |state| state.live.swap(2, 3)),
        ("dead without a record", |state| {
            state.live.remove(1);
        }),
        ("more rows than tokens", |state| state.len = 31),
        ("an unknown token", |state| state.tokens[3] = 100),
        ("a revival of what lived", |state| {
            let revived = vec![Position(1)];
            state.log.push(PruneRecord { at: 20, revived, ..Default::default() });
        }),
        ("an eviction of what is not there yet", |state| {
            let evicted = vec![Position(25)];
            state.log.push(PruneRecord { at: 20, evicted, ..Default::default() });
        }),
    ];
    for (what, change) in wrong {
        let mut state = sound.clone();
        change(&mut state);
        assert!(state.check(VOCABULARY).is_err(), "{what}");
    }
}
