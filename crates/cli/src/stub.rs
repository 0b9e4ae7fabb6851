
use serde::{Serialize,Deserialize};
#[path="/work/main/crates/worker/src/options.rs"]
mod options;
pub use options::WorkerOptions;
#[derive(Clone,Debug,Serialize,Deserialize,Default)]
#[serde(deny_unknown_fields, default)]
pub struct RouterOptions { listen: String }
