//! Medians of one retention decision: `cargo bench -p hawser-device --bench score [-- <words of case names>]`.
//!
//! The shape is that of a small model (30 layers, 9 query heads, 3 KV heads, D = 64) with f16 rows in shuffled slots.
//! One query row is what an intent memory gives, and 32 with pooling what SnapKV gives. Runs of all cases are
//! interleaved, so that a busy machine slows all of them alike.
#![allow(clippy::print_stdout, reason = "a benchmark's output is what it prints")]

use std::num::NonZeroUsize;
use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::{Position, SlotId};
use hawser_device::cpu::Isa;
use hawser_device::kv::{KvRows, KvShape, RowType};
use hawser_device::query_heads::QueryHeads;
use hawser_device::score::{Aggregate, MassCall, Pool, ScoreCall, ScoreScratch, mass, score};
use hawser_device::threads::Threads;

const SHAPE: KvShape = KvShape { layers: 30, slots: 9_000, kv_heads: 3, head_dim: 64 };
const HEADS: usize = 9;
const ROUNDS: usize = 15;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sum,
    Vote,
    /// Of a decode step, in all layers.
    Mass,
}

#[derive(Clone, Copy)]
struct Case {
    kind: Kind,
    keys: usize,
    rows: usize,
    threads: usize,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let cases: Vec<Case> =
        cases().into_iter().filter(|case| words.iter().all(|w| name(case).contains(w))).collect();
    let kv = filled();
    let slots = shuffled();
    let q: Vec<f32> =
        (0..SHAPE.layers * 32 * HEADS * SHAPE.head_dim).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); cases.len()];
    let clock = Clock::system();
    let threads = [1, 2].map(|n| Threads::new(NonZeroUsize::new(n).expect("one or two")));
    let mut scratch = ScoreScratch::default();
    for _ in 0..ROUNDS {
        for (case, times) in cases.iter().zip(&mut times) {
            let start = clock.now();
            run(case, &threads[case.threads - 1], (&kv, &slots[..case.keys], &q), &mut scratch);
            times.push(clock.now().since(start));
        }
    }
    for (case, times) in cases.iter().zip(&mut times) {
        times.sort_unstable();
        let (best, median) = (times[0].as_secs_f64() * 1e3, times[times.len() / 2].as_secs_f64() * 1e3);
        println!("{:<45} median {median:>8.3} ms   best {best:>8.3} ms", name(case));
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, rows) in [(Kind::Sum, 1), (Kind::Vote, 1), (Kind::Mass, 1), (Kind::Sum, 32)] {
        for keys in [1_024, 4_096, 8_192] {
            for threads in [1, 2] {
                cases.push(Case { kind, keys, rows, threads });
            }
        }
    }
    cases
}

fn name(case: &Case) -> String {
    let kind = match case.kind {
        Kind::Sum => "sum",
        Kind::Vote => "vote",
        Kind::Mass => "mass",
    };
    format!("{} {kind} keys={} rows={} threads={}", Isa::best().name(), case.keys, case.rows, case.threads)
}

fn run(
    case: &Case,
    threads: &Threads,
    (kv, keys, q): (&KvRows, &[SlotId], &[f32]),
    scratch: &mut ScoreScratch,
) {
    let isa = Isa::best();
    let row = HEADS * SHAPE.head_dim;
    if case.kind == Kind::Mass {
        let mut out = vec![0; case.keys];
        let (context, own) = keys.split_at(case.keys - case.rows);
        for layer in 0..SHAPE.layers {
            let q = &q[layer * row..][..case.rows * row];
            mass(
                threads,
                &MassCall {
                    kv,
                    layer,
                    context,
                    own,
                    q,
                    heads: QueryHeads::whole(HEADS, SHAPE.kv_heads),
                    isa,
                },
                &mut out,
                scratch,
            );
        }
        return;
    }
    let candidates: Vec<u32> = (0..keys.len() as u32).collect();
    let positions: Vec<Position> = candidates.iter().map(|&key| Position(key)).collect();
    let visible: Vec<usize> = (0..case.rows).map(|row| keys.len() - case.rows + row + 1).collect();
    let call = ScoreCall {
        kv,
        keys,
        queries: &q[..SHAPE.layers * case.rows * row],
        visible: &visible,
        heads: QueryHeads::whole(HEADS, SHAPE.kv_heads),
        candidates: &candidates,
        pool: (case.rows > 1).then_some(Pool { width: 5, positions: &positions }),
        aggregate: if case.kind == Kind::Vote { Aggregate::Vote { top: 64 } } else { Aggregate::Sum },
        isa,
    };
    score(threads, &call, &mut vec![0; candidates.len()], scratch);
}

fn shuffled() -> Vec<SlotId> {
    let mut slots: Vec<SlotId> = (1..SHAPE.slots as u32).map(SlotId).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for i in (1..slots.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        slots.swap(i, (state % (i as u64 + 1)) as usize);
    }
    slots
}

fn filled() -> KvRows {
    let mut kv = KvRows::new(SHAPE, RowType::F16).expect("the benchmark's rows fit the memory");
    let slots: Vec<SlotId> = (1..SHAPE.slots as u32).map(SlotId).collect();
    let numbers = slots.len() * SHAPE.kv_heads * SHAPE.head_dim;
    let keys: Vec<f32> = (0..numbers).map(|i| (i as f32 * 0.11).sin()).collect();
    for layer in 0..SHAPE.layers {
        kv.write(layer, &slots, &keys, &keys);
    }
    kv
}
