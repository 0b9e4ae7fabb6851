//! `hawser generate`: one request, one answer.

use std::io::{IsTerminal, Read};
use std::time::Duration;

use anyhow::{Context, bail};
use hawser_common::clock::Clock;

use super::speaking::{SamplingOptions, speak};
use crate::args::Global;
use crate::console;

const EXAMPLES: &str = "\
Examples:
  hawser generate 'Name three rivers.'
  hawser generate --temperature 0 --max-tokens 50 'Count to five.'
  cat notes.txt | hawser generate --system 'Summarise in one sentence.'";

/// Longest prompt that is read from standard input.
const MAX_STDIN_BYTES: u64 = 16 << 20;

/// Generate once from a prompt; the text goes to standard output, what it cost to standard error.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The prompt; standard input where it is left out
    prompt: Option<String>,
    /// URI of the router
    #[arg(long, value_name = "URI")]
    server: Option<String>,
    /// System message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Model, where the cluster serves several
    #[arg(long, value_name = "NAME", default_value = "")]
    model: String,
    /// Give up after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    deadline: u64,
    #[command(flatten)]
    sampling: SamplingOptions,
}

pub async fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    let prompt = match &options.prompt {
        Some(prompt) => prompt.clone(),
        None => read_stdin()?,
    };
    let client = super::connect(global, options.server.as_deref()).await?;
    let builder = client
        .session()
        .model(&options.model)
        .sampling(options.sampling.sampling())
        .deadline(Duration::from_secs(options.deadline));
    let builder = options.system.iter().fold(builder, |builder, text| builder.system(text));
    let mut session = builder.start();
    let clock = Clock::system();
    let began = clock.now();
    let turn = session.say(prompt).await?;
    let spoken = speak(turn, &clock, began, |text| console::piece(text)).await?;
    console::line("");
    console::error(format!("[{}]", spoken.summary()));
    session.close().await?;
    Ok(())
}

fn read_stdin() -> anyhow::Result<String> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        bail!("there is no prompt; give one: hawser generate 'Name three rivers.'");
    }
    let mut text = String::new();
    stdin
        .take(MAX_STDIN_BYTES)
        .read_to_string(&mut text)
        .context("cannot read the prompt from standard input")?;
    if text.trim().is_empty() {
        bail!("the prompt on standard input is empty");
    }
    Ok(text)
}
