//! `hawser bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {}
pub fn run(_global: &crate::args::Global, _options: &Options) -> anyhow::Result<()> { Ok(()) }
