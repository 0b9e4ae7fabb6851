//! `hawser eval make-traces`: synthetic sessions, and real ones from public benchmarks.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use hawser_eval::traces::synthetic::{Answer, SyntheticOptions, synthetic_traces};

use super::outputs::{make_folder, write};
use crate::console::{counted, line};

const EXAMPLES: &str = "\
Examples:
  hawser eval make-traces --out traces/switches.jsonl
  hawser eval make-traces --gap 6 --distractors 8 --sessions 50 --out traces/far.jsonl
  hawser eval make-traces --source bfcl-base --out traces/bfcl-base.jsonl

A synthetic session asks about one topic, then others, then the first again. The other sources execute the \
ground-truth calls of public agent benchmarks against their own tools, without any model: they need Python 3.10, pip, \
and the folder scripts/traces of Hawser's source.";

/// Options of the command.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Where the sessions come from
    #[arg(long, value_name = "SOURCE", default_value = "synthetic")]
    source: Source,
    /// The file to write (JSON lines)
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// How many sessions
    #[arg(long, value_name = "N", default_value_t = 100)]
    sessions: usize,
    /// Synthetic: topics of a session
    #[arg(long, value_name = "N")]
    topics: Option<usize>,
    /// Synthetic: turns until the first topic comes back
    #[arg(long, value_name = "N")]
    gap: Option<usize>,
    /// Synthetic: other facts of the same form
    #[arg(long, value_name = "N")]
    distractors: Option<usize>,
    /// Synthetic: bytes of filler in a tool result
    #[arg(long, value_name = "BYTES")]
    filler_bytes: Option<usize>,
    /// Synthetic: answers are calls with the value as an argument
    #[arg(long)]
    calls: bool,
    /// Synthetic: seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Source {
    Synthetic,
    BfclBase,
    BfclLong,
    Tau2Retail,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let source = match options.source {
        Source::Synthetic => return synthetic(options),
        Source::BfclBase => "bfcl-base",
        Source::BfclLong => "bfcl-long",
        Source::Tau2Retail => "tau2-retail",
    };
    let script = PathBuf::from("scripts/traces/make_traces.py");
    anyhow::ensure!(script.is_file(), "{} is not here: run this in Hawser's source folder", script.display());
    let status = Command::new("python3")
        .arg("-B")
        .arg(&script)
        .args(["--source", source, "--limit", &options.sessions.to_string(), "--out"])
        .arg(&options.out)
        .status()
        .context("cannot run python3")?;
    anyhow::ensure!(status.success(), "the generator ended with {status}");
    Ok(())
}

fn synthetic(options: &Options) -> anyhow::Result<()> {
    make_folder(&options.out)?;
    let mut chosen = SyntheticOptions::default();
    let numbers = [
        (&mut chosen.topics, options.topics),
        (&mut chosen.gap, options.gap),
        (&mut chosen.distractors, options.distractors),
        (&mut chosen.filler_bytes, options.filler_bytes),
    ];
    for (value, asked) in numbers {
        *value = asked.unwrap_or(*value);
    }
    chosen.seed = options.seed.unwrap_or(chosen.seed);
    chosen.answer = if options.calls { Answer::Call } else { Answer::Text };
    let mut text = String::new();
    for session in synthetic_traces(&chosen, options.sessions)? {
        writeln!(text, "{}", serde_json::to_string(&session.trace)?)?;
    }
    write(&options.out, &text)?;
    line(format!("{}: {}", options.out.display(), counted(options.sessions as u64, "session")));
    Ok(())
}
