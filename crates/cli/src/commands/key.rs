//! `hawser key`: an API key, drawn here, and what the router's file of keys holds of it.

use anyhow::Context as _;
use hawser_common::TenantId;
use hawser_router::ApiKey;
use serde::Serialize;

use crate::console::line;

const EXAMPLES: &str = "\
Examples:
  hawser key --tenant team-a
  hawser key --tenant team-a --name \"build server\" --operator

The key is shown once and kept nowhere: give it to whoever calls, as HAWSER_API_KEY. The entry goes into the file that \
router.auth.keys_file names; a running router reads it within seconds.
The entry of a key that was made elsewhere: printf %s \"$KEY\" | sha256sum";

/// Make an API key and the entry for the router's file of keys.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Whose key it is: sessions of different tenants are apart
    #[arg(long, value_name = "NAME")]
    tenant: String,
    /// Whoever has it may also list groups and join workers
    #[arg(long)]
    operator: bool,
    /// What the key is for; for people
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
}

#[derive(Serialize)]
struct Entry {
    tenant: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    sha256: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    operator: bool,
}

#[derive(Serialize)]
struct File {
    keys: [Entry; 1],
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let tenant = TenantId::parse(&options.tenant)?.to_string();
    let key = ApiKey::draw();
    let entry =
        Entry { tenant, name: options.name.clone(), sha256: key.sha256(), operator: options.operator };
    let text = toml::to_string(&File { keys: [entry] }).context("cannot write the entry as TOML")?;
    line(format!("# the key: HAWSER_API_KEY={}\n{}", key.secret().expose(), text.trim_end()));
    Ok(())
}
