//! `hawser bench`: what the engine and the cluster reach on this machine, and what the machine allows.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use hawser_common::clock::Clock;
use hawser_device::cpu::Isa;
use hawser_device::kv::RowType;
use hawser_model::bench::{self, BenchOptions, Run};
use hawser_model::checkpoint::Checkpoint;
use hawser_model::layers::Model;
use serde::Serialize;

use super::{bench_cluster, bench_ranks, bench_retention};
use crate::args::Global;
use crate::console::{bold, bytes, count, counted, error, line, time};
use crate::models;
use crate::table::{Align, Table};

const EXAMPLES: &str = "\
Examples:
  hawser bench engine
  hawser bench engine --threads 2 --depths 0,4096
  hawser bench engine --model models/Qwen2.5-0.5B-Instruct --json > engine.json
  hawser bench engine --tp 2 --processes --depths 0,1024,4096 --prefill 512

With --tp N one rank with N threads, one rank with one thread and N ranks of
one thread take turns; with --processes also N processes that meet over TCP.
OF MANY and OF ONE compare with the two that have one rank; ACROSS is the part
of its time that the leader spends in calls to the others, waiting included;
CALLS, MESSAGES and BYTES are what it sends; COMPUTES is the time of each rank
outside of such calls.

Every number is a median over several runs. Shares are of this machine's own
limits, measured in the same run: memory reads per second for decode (above
100 % where a cache holds a part), f32 multiply-adds per second for prefill
(above 100 % where products are in integers or in tiles).";

/// Measure this machine.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum What {
    /// Prefill, decode and warm turns of a model, beside the machine's limits
    #[command(after_help = EXAMPLES)]
    Engine(EngineOptions),
    /// One long session under retention policies: time, rows read and slots held
    #[command(after_help = bench_retention::EXAMPLES)]
    Retention(bench_retention::Options),
    /// Routers, placement and simulated groups under the load of many agents
    #[command(after_help = bench_cluster::EXAMPLES)]
    Cluster(bench_cluster::Options),
}

#[derive(Clone, Debug, clap::Args)]
struct EngineOptions {
    /// A .gguf file, a checkpoint directory, or a name in the folder of models
    #[arg(long, value_name = "MODEL", default_value = models::DEMO_NAME)]
    model: PathBuf,
    /// Numbers of threads to measure with
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2")]
    threads: Vec<NonZeroUsize>,
    /// Lengths of prompts
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "128,512,2048")]
    prefill: Vec<usize>,
    /// Live tokens before the decoded one
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0,1024,4096,7500")]
    depths: Vec<usize>,
    /// How KV rows are stored
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    kv_type: KvType,
    /// Seed of the tokens and of the pool's order
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Compare one rank with N ranks of one thread each
    #[arg(long, value_name = "N")]
    tp: Option<NonZeroUsize>,
    /// With --tp: also as N processes over TCP on loopback
    #[arg(long, requires = "tp")]
    processes: bool,
    /// With --tp: how often the ways take turns; medians are over these
    #[arg(long, value_name = "N", default_value = "5", requires = "tp")]
    rounds: NonZeroUsize,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum KvType {
    F32,
    F16,
    Bf16,
}

/// A report with what it was measured on.
#[derive(Debug, Serialize)]
struct Document<'a, R> {
    hawser: &'static str,
    model: String,
    model_bytes: u64,
    instructions: &'static str,
    cores: usize,
    #[serde(flatten)]
    report: &'a R,
}

pub fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    let options = match &options.what {
        What::Engine(options) => options,
        What::Retention(options) => return bench_retention::run(global, options),
        What::Cluster(options) => return bench_cluster::run(options),
    };
    let path = models::resolve(&options.model, &global.model_dir)?;
    let clock = Clock::system();
    let began = clock.now();
    let checkpoint = Checkpoint::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    if let Some(tp) = options.tp {
        return run_ranks(&path, &checkpoint, options, tp);
    }
    let model =
        Arc::new(Model::load(&checkpoint).with_context(|| format!("cannot load {}", path.display()))?);
    error(format!(
        "{} ({}) loaded in {}",
        checkpoint.name(),
        bytes(models::size(&path)),
        time(clock.now().since(began))
    ));
    let report =
        bench::run(&model, &bench_options(options), &clock, &mut |step| error(format!("  {step} …")))?;
    let document = document(&path, &checkpoint, &report);
    if options.json {
        line(serde_json::to_string_pretty(&document)?);
    } else {
        line(format!(
            "\n{} on {} ({}), KV rows {}, {} of weights per token",
            document.model,
            counted(document.cores as u64, "core"),
            document.instructions,
            report.row_type,
            bytes(report.weight_bytes as u64)
        ));
        for run in &report.runs {
            line(format!("\n{}", text(run)));
        }
    }
    Ok(())
}

fn document<'a, R>(path: &Path, checkpoint: &Checkpoint, report: &'a R) -> Document<'a, R> {
    Document {
        hawser: env!("CARGO_PKG_VERSION"),
        model: checkpoint.name(),
        model_bytes: models::size(path),
        instructions: Isa::best().name(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        report,
    }
}

/// One rank and several, by turns.
fn run_ranks(
    path: &Path,
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    tp: NonZeroUsize,
) -> anyhow::Result<()> {
    let measure = bench_ranks::Measure {
        tp,
        processes: options.processes,
        rounds: options.rounds,
        row_type: row_type(options.kv_type),
        prefill: options.prefill.clone(),
        depths: options.depths.clone(),
    };
    let progress = &mut |step: &str| error(format!("  {step} …"));
    let report = bench_ranks::run(path, checkpoint, &measure, &Clock::system(), progress)?;
    let document = document(path, checkpoint, &report);
    if options.json {
        line(serde_json::to_string_pretty(&document)?);
    } else {
        let cores = counted(document.cores as u64, "core");
        line(format!(
            "\n{} on {cores} ({}), KV rows {:?}",
            document.model, document.instructions, measure.row_type
        ));
        line(bench_ranks::text(&report));
    }
    Ok(())
}

fn row_type(kv_type: KvType) -> RowType {
    match kv_type {
        KvType::F32 => RowType::F32,
        KvType::F16 => RowType::F16,
        KvType::Bf16 => RowType::Bf16,
    }
}

fn bench_options(options: &EngineOptions) -> BenchOptions {
    BenchOptions {
        threads: options.threads.clone(),
        row_type: row_type(options.kv_type),
        prefill: options.prefill.clone(),
        depths: options.depths.clone(),
        seed: options.seed,
        ..BenchOptions::default()
    }
}

fn text(run: &Run) -> String {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let rate = |value: f64| format!("{value:.1}");
    let (left, right) = (Align::Left, Align::Right);
    let mut table =
        Table::new(&[("", left), ("TOKENS", right), ("TOK/S", right), ("SHARE", right), ("OF", left)]);
    for prefill in &run.prefill {
        let cells = [
            count(prefill.tokens as u64),
            rate(prefill.tokens_per_second),
            percent(prefill.share_of_f32_peak),
        ];
        table.row(row("prefill", cells, "f32 peak"));
    }
    for decode in &run.decode {
        let cells = [
            count(decode.depth as u64),
            rate(decode.tokens_per_second),
            percent(decode.share_of_memory_bandwidth),
        ];
        table.row(row("decode after", cells, "memory reads"));
    }
    let limits = &run.limits;
    let mut parts = vec![
        bold(format!("threads: {}", run.threads)),
        format!(
            "the machine: reads {:.1} GB/s ({:.1} from its cache), {:.0} GFLOP/s in f32, {:.0} GOP/s in int8",
            limits.memory_gb_per_s, limits.cached_gb_per_s, limits.f32_gflop_per_s, limits.int8_gop_per_s,
        ),
        table.to_string(),
    ];
    if let Some(warm) = &run.warm_turn {
        parts.push(format!(
            "a turn of {} in a session of {}: first token after {:.0} ms; without its KV rows {:.0} ms",
            counted(warm.added_tokens as u64, "token"),
            count(warm.session_tokens as u64),
            warm.warm_seconds * 1e3,
            warm.cold_seconds * 1e3
        ));
    }
    parts.join("\n")
}

fn row(name: &str, cells: [String; 3], of: &str) -> Vec<String> {
    [name.to_owned()].into_iter().chain(cells).chain([of.to_owned()]).collect()
}
