//! `hawser config`: what is in effect.

use anyhow::Context;

use crate::args::Global;
use crate::config::{Config, Overrides};
use crate::console;

const EXAMPLES: &str = "\
Examples:
  hawser config                                    the defaults, as a file to start from
  HAWSER_WORKER__THREADS=2 hawser config           with what the environment sets
  hawser config --config hawser.toml --set groups=2";

/// Print the configuration in effect as TOML, and whether a server would start with it.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {}

pub fn run(global: &Global, _options: &Options) -> anyhow::Result<()> {
    let config = Config::load(global, Overrides::default())?;
    let text = toml::to_string(&config).context("cannot write the configuration as TOML")?;
    console::line(text.trim_end());
    // Shown first: what is wrong can be seen in it.
    Ok(config.validate()?)
}
