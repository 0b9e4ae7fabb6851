//! `hawser config`: what is in effect, and whether it could be served with.

use anyhow::{Context, bail};

use crate::args::Global;
use crate::checks::unusable;
use crate::config::{Config, Overrides};
use crate::console;

const EXAMPLES: &str = "\
Examples:
  hawser config                                    the defaults, as a file to start from
  HAWSER_WORKER__THREADS=2 hawser config           with what the environment sets
  hawser config --config hawser.toml --set groups=2";

/// Print the configuration in effect as TOML, and whether a server would start with it: values, files and addresses.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {}

pub fn run(global: &Global, _options: &Options) -> anyhow::Result<()> {
    let config = Config::load(global, Overrides::default())?;
    let text = toml::to_string(&config).context("cannot write the configuration as TOML")?;
    console::line(text.trim_end());
    // Shown first: what is wrong can be seen in it.
    config.validate()?;
    let unusable = unusable(&config, &global.model_dir);
    for error in &unusable {
        console::error(format!("error: {error}"));
    }
    match unusable.len() as u64 {
        0 => Ok(()),
        found => bail!("{} in what the configuration names", console::counted(found, "fault")),
    }
}
