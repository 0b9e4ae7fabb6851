//! Speed of the matrix products of a 135M-parameter llama in Q4_1 (576 wide, 30 layers, 49,152 tokens in Q8_0), each
//! alone and all in a row. Every layer has its own weights, so that small batches read memory, not a cache.
#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::num::NonZeroUsize;
use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_device::linear::{Format, MatmulScratch, PackedMatrix, RawMatrix, Write, matmul};
use hawser_device::threads::Threads;

const LAYERS: usize = 30;
const SHAPES: [(&str, Format, usize, usize, usize); 5] = [
    ("qkv", Format::Q4_1, 960, 576, LAYERS),
    ("o", Format::Q4_1, 576, 576, LAYERS),
    ("gate_up", Format::Q4_1, 3072, 576, LAYERS),
    ("down", Format::Q4_1, 576, 1536, LAYERS),
    ("head", Format::Q8_0, 49_152, 576, 1),
];

/// The same product of every layer.
struct Shape {
    name: &'static str,
    layers: Vec<PackedMatrix>,
}

impl Shape {
    fn new(&(name, format, rows, cols, layers): &(&'static str, Format, usize, usize, usize)) -> Self {
        let bytes = format.row_bytes(cols).expect("whole blocks") * rows;
        let layer = |layer: usize| {
            let noise = |at: usize| (at.wrapping_mul(2_654_435_761).wrapping_add(layer) >> 7) as u8;
            // Bytes stay small, so that the scales among them are finite halves.
            let data: Vec<u8> = (0..bytes).map(|at| noise(at) & 0x3b).collect();
            let raw = RawMatrix { format, rows, cols, data: &data, row_order: None, columns: None };
            PackedMatrix::pack(&[raw]).expect("a good matrix")
        };
        Self { name, layers: (0..layers).map(layer).collect() }
    }
}

struct Bench {
    clock: Clock,
    threads: Threads,
    scratch: MatmulScratch,
    x: Vec<f32>,
    out: Vec<f32>,
}

impl Bench {
    fn new(threads: usize) -> Self {
        let threads = Threads::new(NonZeroUsize::new(threads).expect("at least one thread"));
        let x = (0..512 * 1536).map(|at| ((at * 37) % 101) as f32 / 50.0 - 1.0).collect();
        let out = vec![0.0; 512 * 3072];
        Self { clock: Clock::system(), threads, scratch: MatmulScratch::new(), x, out }
    }

    fn multiply(&mut self, w: &PackedMatrix, m: usize) {
        let (x, out) = (&self.x[..m * w.cols()], &mut self.out[..m * w.rows()]);
        matmul(&self.threads, w, x, out, Write::Store, &mut self.scratch);
    }

    /// Median and least time of `run`.
    fn time(&mut self, mut run: impl FnMut(&mut Self)) -> (Duration, Duration) {
        run(self);
        let started = self.clock.now();
        let mut times = Vec::new();
        while times.len() < 5 || self.clock.now().since(started) < Duration::from_millis(400) {
            let start = self.clock.now();
            run(self);
            times.push(self.clock.now().since(start));
        }
        times.sort_unstable();
        (times[times.len() / 2], times[0])
    }
}

fn main() {
    let shapes: Vec<Shape> = SHAPES.iter().map(Shape::new).collect();
    println!("product      m thr |  median µs   GB/s  GOP/s |   least µs   GB/s  GOP/s");
    for threads in [1, 2] {
        let mut bench = Bench::new(threads);
        for shape in &shapes {
            for m in [1, 8, 64, 512] {
                let rows = shape.layers[0].rows();
                if m * rows > bench.out.len() {
                    continue;
                }
                let (median, least) =
                    bench.time(|bench| shape.layers.iter().for_each(|w| bench.multiply(w, m)));
                let figures = |time: Duration| {
                    let us = time.as_secs_f64() * 1e6 / shape.layers.len() as f64;
                    let gb = shape.layers[0].bytes() as f64 / us / 1e3;
                    let gop = 2.0 * (m * rows * shape.layers[0].cols()) as f64 / us / 1e3;
                    format!("{us:10.1} {gb:6.1} {gop:6.0}")
                };
                println!("{:8} {m:5} {threads:3} | {} | {}", shape.name, figures(median), figures(least));
            }
        }
        for m in [1, 8, 64, 512] {
            // A prefill needs the vocabulary head for its last row only.
            let (median, least) = bench.time(|bench| {
                for layer in 0..LAYERS {
                    shapes[..4].iter().for_each(|shape| bench.multiply(&shape.layers[layer], m));
                }
                bench.multiply(&shapes[4].layers[0], if m <= 8 { m } else { 1 });
            });
            let rate = |time: Duration| m as f64 / time.as_secs_f64();
            let (median_ms, least_ms) = (median.as_secs_f64() * 1e3, least.as_secs_f64() * 1e3);
            println!(
                "model    {m:5} {threads:3} | {median_ms:8.2} ms {:6.0} tok/s | {least_ms:8.2} ms {:6.0} tok/s",
                rate(median),
                rate(least)
            );
        }
    }
}
