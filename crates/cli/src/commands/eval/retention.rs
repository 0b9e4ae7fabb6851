//! `hawser eval retention`: replay, compare, report. Taken up again where it stopped.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use hawser_common::clock::{Clock, unix_seconds};
use hawser_device::kv::RowType;
use hawser_eval::prepare::{Prepared, Schemas, prepare, split_name};
use hawser_eval::report::{self, BudgetLabel, Mode, RunInfo, RunResult, SessionResult};
use hawser_eval::resume::resume;
use hawser_eval::run::{Candidate, Design, Done, evaluate};
use hawser_eval::session::Engine;
use hawser_eval::traces::read_traces;
use hawser_model::checkpoint::Checkpoint;
use hawser_model::executor::{Executor, ExecutorOptions};
use hawser_model::layers::Model;
use hawser_model::text::ChatTemplate;
use indicatif::{ProgressBar, ProgressStyle};

use super::hits;
use super::outputs::{Outputs, write};
use crate::args::Global;
use crate::console::{counted, error, line, time};
use crate::models;

/// Results are saved after each replay, but not more often: the file holds all of them.
const SAVE_PERIOD: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  scripts/fetch-traces
  hawser eval retention --traces traces/bfcl-base.jsonl --out results/bfcl
  hawser eval retention --traces mine.jsonl --policies full,random,'mine@h2o:role_weight=8'
  hawser eval retention --traces mine.jsonl --budgets 512,1024 --mode open
  hawser eval retention --traces mine.jsonl --only-hits    how much of prompts is found again

A policy is written name@policy:option=value:…; the options are those of worker.retention in docs/config.md, all at \
their defaults but the trigger and the weights of roles, which are 0; `default` is what is shipped. Budgets \
are tokens, or shares of what follows the system message, which is kept and comes on top. OUT.json holds every number, \
turn by turn, and is where a run that was stopped goes on: what is there already is not replayed again. Sessions, \
policies, budgets and modes may be added to it; results of another model, of sessions whose content changed or of a \
policy with other options are refused. OUT.md and OUT.svg say it in short. Replays are teacher-forced: nothing is \
sampled, and a low divergence is no claim about how well an agent does its task.";

/// Options of the command.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Recorded sessions (JSON lines; docs/traces.md)
    #[arg(long, value_name = "FILE", required = true, value_delimiter = ',')]
    traces: Vec<PathBuf>,
    /// Results: OUT.json, OUT.md and OUT.svg
    #[arg(long, value_name = "OUT", default_value = "retention")]
    out: PathBuf,
    /// Begin anew: what OUT.json holds is lost
    #[arg(long)]
    restart: bool,
    /// A .gguf file, a checkpoint directory, or a name in the folder of models
    #[arg(long, value_name = "MODEL", default_value = models::DEMO_NAME)]
    model: PathBuf,
    /// Policies with their options
    #[arg(long, value_name = "POLICY,…", value_delimiter = ',', default_values_t = default_policies())]
    policies: Vec<String>,
    /// Budgets
    #[arg(long, value_name = "BUDGET,…", value_delimiter = ',', default_value = "50%,25%,12.5%")]
    budgets: Vec<BudgetLabel>,
    /// Rows are computed over what was kept (closed), or over everything (open)
    #[arg(long, value_name = "MODE,…", value_delimiter = ',', default_value = "closed")]
    mode: Vec<ModeOption>,
    /// Only sessions of this half of the data
    #[arg(long, value_name = "SPLIT")]
    split: Option<SplitOption>,
    /// Of the sessions of each file and of --split, the first and then every K-th: a fair part of all tasks
    #[arg(long, value_name = "K", default_value = "1")]
    every: NonZeroUsize,
    /// At most so many sessions
    #[arg(long, value_name = "N", default_value_t = usize::MAX, hide_default_value = true)]
    limit: usize,
    /// Only so many tokens of each session [default: the model's context]
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// Which tools' schemas stand in the system message
    #[arg(long, value_name = "WHICH", default_value = "called")]
    schemas: SchemasOption,
    /// CPU threads [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Slots of the KV pool
    #[arg(long, value_name = "N", default_value_t = 32_768)]
    slots: usize,
    /// Of them, rows of the archive from which evicted positions come back
    #[arg(long, value_name = "N", default_value_t = 8_192)]
    archive: usize,
    /// How KV rows are stored
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    kv_type: KvType,
    /// Only count how much of each prompt is found again, with the scheduler that serves and without running the model
    #[arg(long, conflicts_with_all = ["mode", "restart", "kv_type", "threads", "seed"])]
    only_hits: bool,
    /// Seed of the intervals
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ModeOption {
    Closed,
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SplitOption {
    Dev,
    Test,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SchemasOption {
    All,
    Called,
    None,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum KvType {
    F32,
    F16,
    Bf16,
}

/// Every policy as it is by default, and the seeds of the one that draws.
fn default_policies() -> Vec<String> {
    let plain = [
        "full",
        "random-1@random:seed=1",
        "random-2@random:seed=2",
        "streaming",
        "snapkv",
        "h2o",
        "role-prior",
    ];
    let ours = ["intent-query", "intent-memory", "intent-memory-paper", "answer-rows", "default"];
    plain.into_iter().chain(ours).map(str::to_owned).collect()
}

pub fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    let (clock, design) = (Clock::system(), design(options)?);
    let began = clock.now();
    let outputs = Outputs::prepare(&options.out)?;
    let path = models::resolve(&options.model, &global.model_dir)?;
    let checkpoint = Checkpoint::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let traces = prepared(options, &checkpoint)?;
    let file = if options.only_hits {
        let results = hits::replay_all(&traces, &design, options.slots)?;
        write(&outputs.hits, &serde_json::to_string_pretty(&results)?)?;
        line(hits::report(&results));
        &outputs.hits
    } else {
        let run = info(options, &checkpoint, &design.candidates);
        let mut results = held(&outputs.json, options.restart, run, &traces)?;
        let mut engine = engine(options, &checkpoint)?;
        let ended = replays(&mut engine, &traces, &design, (&mut results, &outputs.json));
        // What was measured before a failure is kept.
        write(&outputs.json, &results.to_json()?)?;
        ended?;
        let summary = report::summarise(&results);
        let text = report::markdown(&summary);
        write(&outputs.markdown, &text)?;
        write(&outputs.svg, &report::svg(&summary))?;
        line(text);
        &outputs.json
    };
    let (sessions, took) = (counted(traces.len() as u64, "session"), time(clock.now().since(began)));
    error(format!("{sessions} in {took}; {}", file.display()));
    Ok(())
}

/// What is compared.
fn design(options: &Options) -> anyhow::Result<Design> {
    let candidates =
        options.policies.iter().map(|text| Candidate::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let names: BTreeSet<&str> = candidates.iter().map(|candidate| candidate.name.as_str()).collect();
    anyhow::ensure!(
        names.len() == candidates.len(),
        "two policies have one name; write name@policy:option=value"
    );
    let budgets: BTreeSet<&BudgetLabel> = options.budgets.iter().collect();
    anyhow::ensure!(budgets.len() == options.budgets.len(), "a budget is given twice");
    let modes = options.mode.iter().map(|mode| match mode {
        ModeOption::Closed => Mode::ClosedLoop,
        ModeOption::Open => Mode::OpenLoop,
    });
    Ok(Design { candidates, budgets: options.budgets.clone(), modes: modes.collect() })
}

/// Replays what is not there yet, and saves as it goes.
fn replays(
    engine: &mut Engine,
    traces: &[Prepared],
    design: &Design,
    (results, file): (&mut RunResult, &Path),
) -> anyhow::Result<()> {
    let clock = Clock::system();
    let total = traces.len() * design.candidates.len() * design.budgets.len() * design.modes.len();
    let bar = progress(total as u64);
    let mut saved = clock.now();
    for trace in traces {
        bar.set_message(trace.id.clone());
        let done = Done::new(&results.sessions);
        let mut keep = |new: Option<SessionResult>| -> anyhow::Result<()> {
            bar.inc(1);
            results.sessions.extend(new);
            if clock.now().since(saved) >= SAVE_PERIOD {
                write(file, &results.to_json()?)?;
                saved = clock.now();
            }
            Ok(())
        };
        evaluate(engine, trace, design, &done, &mut keep).with_context(|| format!("session {}", trace.id))?;
    }
    bar.finish_and_clear();
    Ok(())
}

/// The sessions asked for, in the model's tokens.
fn prepared(options: &Options, checkpoint: &Checkpoint) -> anyhow::Result<Vec<Prepared>> {
    let tokenizer = checkpoint.tokenizer()?;
    let source = checkpoint.chat_template().context("the model has no chat template")?;
    let template = ChatTemplate::compile(&source)?;
    let limit = options.tokens.unwrap_or(usize::MAX).min(checkpoint.config().context_length);
    let schemas = match options.schemas {
        SchemasOption::All => Schemas::All,
        SchemasOption::Called => Schemas::Called,
        SchemasOption::None => Schemas::None,
    };
    let wanted = options.split.map(|split| match split {
        SplitOption::Dev => "dev",
        SplitOption::Test => "test",
    });
    let mut sessions = Vec::new();
    let mut left_out = 0;
    for file in &options.traces {
        let traces = read_traces(file)?.into_iter();
        let of_split = traces.filter(|trace| wanted.is_none_or(|wanted| split_name(trace.split) == wanted));
        // Taken before what is too short is left out, so that the same tasks are taken with any --tokens.
        for trace in of_split.step_by(options.every.get()) {
            match prepare(&trace, &tokenizer, &template, (limit, schemas)) {
                Ok(session) => sessions.push(session),
                Err(_) => left_out += 1,
            }
        }
    }
    if left_out > 0 {
        let left_out = counted(left_out, "session");
        error(format!(
            "left out: {left_out} with fewer than two answers within {}",
            counted(limit as u64, "token")
        ));
    }
    sessions.truncate(options.limit);
    anyhow::ensure!(
        !sessions.is_empty(),
        "no session is left to replay: see --split, --every, --limit and --tokens"
    );
    let mut ids = BTreeSet::new();
    if let Some(twice) = sessions.iter().find(|session| !ids.insert(session.id.as_str())) {
        anyhow::bail!("two files have a session {:?}; results could not be told apart", twice.id);
    }
    Ok(sessions)
}

fn engine(options: &Options, checkpoint: &Checkpoint) -> anyhow::Result<Engine> {
    let model = Model::load(checkpoint)?;
    let row_type = match options.kv_type {
        KvType::F32 => RowType::F32,
        KvType::F16 => RowType::F16,
        KvType::Bf16 => RowType::Bf16,
    };
    let all = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = options.threads.unwrap_or_else(all);
    let executor = Executor::new(model, ExecutorOptions { slots: options.slots, row_type, threads })?;
    Ok(Engine::new(executor, 256, options.archive))
}

fn info(options: &Options, checkpoint: &Checkpoint, candidates: &[Candidate]) -> RunInfo {
    let policy = |candidate: &Candidate| (candidate.name.clone(), candidate.retention.clone());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    RunInfo {
        model: checkpoint.name(),
        model_digest: checkpoint.digest().to_string(),
        tokenizer: checkpoint.name(),
        kv_type: format!("{:?}", options.kv_type).to_lowercase(),
        policies: candidates.iter().map(policy).collect(),
        seed: options.seed,
        command: std::env::args().collect::<Vec<_>>().join(" "),
        machine: format!("{cores} cores, {}", hawser_device::cpu::Isa::best().name()),
        threads: options.threads.map_or(cores, NonZeroUsize::get),
        started_unix_s: u64::try_from(unix_seconds()).unwrap_or(0),
    }
}

/// The results that are there already, where the run can be added to them.
fn held(file: &Path, restart: bool, run: RunInfo, traces: &[Prepared]) -> anyhow::Result<RunResult> {
    if restart || !file.exists() {
        return Ok(RunResult::new(run, Vec::new()));
    }
    let read = || -> anyhow::Result<RunResult> {
        let held = RunResult::parse(&std::fs::read_to_string(file)?)?;
        Ok(resume(held, run, traces)?)
    };
    read().map_err(|why| {
        let file = file.display();
        anyhow::anyhow!("cannot add to {file}: {why:#}; choose another --out, or begin anew with --restart")
    })
}

fn progress(total: u64) -> ProgressBar {
    let template = "{bar:30} {pos}/{len} replays, {eta} left  {msg}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style)
}
