//! Medians of whole-model attention: `cargo bench -p hawser-device --bench attention [-- <words of case names>]`.
//!
//! The shape is that of a small model (30 layers, 9 query heads, 3 KV heads, D = 64) with shuffled slots. Runs of all
//! cases are interleaved, so that a busy machine slows all of them alike.
#![allow(clippy::print_stdout, reason = "a benchmark's output is what it prints")]

use std::num::NonZeroUsize;
use std::time::Duration;

use hawser_common::SlotId;
use hawser_common::clock::Clock;
use hawser_device::attention::{AttendCall, AttendScratch, Span, attend};
use hawser_device::cpu::Isa;
use hawser_device::kv::{KvRows, KvShape, RowType};
use hawser_device::query_heads::QueryHeads;
use hawser_device::threads::Threads;

const SHAPE: KvShape = KvShape { layers: 30, slots: 8_192, kv_heads: 3, head_dim: 64 };
const HEADS: usize = 9;
const ROUNDS: usize = 15;

/// `rows` query rows after `depth` positions.
#[derive(Clone, Copy)]
struct Case {
    isa: Isa,
    rows: RowType,
    threads: usize,
    depth: usize,
    queries: usize,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let cases: Vec<Case> =
        cases().into_iter().filter(|case| words.iter().all(|w| name(case).contains(w))).collect();
    let pools: Vec<KvRows> = [RowType::F32, RowType::F16, RowType::Bf16].map(filled).into_iter().collect();
    let slots = shuffled();
    let q: Vec<f32> = (0..512 * HEADS * SHAPE.head_dim).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); cases.len()];
    let clock = Clock::system();
    let threads = [1, 2].map(|n| Threads::new(NonZeroUsize::new(n).expect("one or two")));
    let mut scratch = AttendScratch::default();
    let mut out = vec![0.0; q.len()];
    for _ in 0..ROUNDS {
        for (case, times) in cases.iter().zip(&mut times) {
            let kv = pools.iter().find(|kv| kv.row_type() == case.rows).expect("a pool per row type");
            let (context, own) = slots[..case.depth + case.queries].split_at(case.depth);
            let spans = [Span { rows: 0..case.queries, context, own }];
            let len = case.queries * HEADS * SHAPE.head_dim;
            let start = clock.now();
            for layer in 0..SHAPE.layers {
                let call = AttendCall {
                    kv,
                    layer,
                    spans: &spans,
                    q: &q[..len],
                    heads: QueryHeads::whole(HEADS, SHAPE.kv_heads),
                    isa: case.isa,
                };
                attend(&threads[case.threads - 1], &call, &mut out[..len], &mut scratch);
            }
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
    for isa in Isa::available() {
        for rows in [RowType::F16, RowType::Bf16, RowType::F32] {
            for threads in [1, 2] {
                for (depth, queries) in
                    [(1_023, 1), (4_095, 1), (7_499, 1), (0, 512), (2_048, 512), (4_000, 50)]
                {
                    cases.push(Case { isa, rows, threads, depth, queries });
                }
            }
        }
    }
    cases
}

fn name(case: &Case) -> String {
    let kind = if case.queries == 1 { "decode" } else { "prefill" };
    let rows = format!("{:?}", case.rows).to_lowercase();
    format!("{} {rows} {kind} {}+{} threads={}", case.isa.name(), case.depth, case.queries, case.threads)
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

fn filled(rows: RowType) -> KvRows {
    let mut kv = KvRows::new(SHAPE, rows).expect("the benchmark's rows fit the memory");
    let slots: Vec<SlotId> = (1..SHAPE.slots as u32).map(SlotId).collect();
    let numbers = slots.len() * SHAPE.kv_heads * SHAPE.head_dim;
    let keys: Vec<f32> = (0..numbers).map(|i| (i as f32 * 0.11).sin()).collect();
    for layer in 0..SHAPE.layers {
        kv.write(layer, &slots, &keys, &keys);
    }
    kv
}
