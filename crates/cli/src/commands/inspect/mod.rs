//! `hawser inspect`: what became of every token of a session.

mod html;
mod text;
mod view;
mod wire;

use std::io::stdout;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hawser_client::{Client, ErrorCode, SessionId};
use hawser_common::Coded;
use terminal_size::{Width, terminal_size_of};

use self::text::Colour;
use self::view::View;
use crate::args::Global;
use crate::console::{self, count, counted, line, piece};

const EXAMPLES: &str = "\
Examples:
  hawser inspect agent-7
  hawser inspect agent-7 --html agent-7.html
  hawser inspect agent-7 --top 30 | less
  hawser inspect agent-7 --json | jq -j '.positions[] | select(.state == \"dead\") | .text'

Of every token that is live, the session's KV rows are in the cache. Shared ones are held by the prefix tree or by \
another session too; protected ones and sinks are never evicted. Dead ones were evicted by a prune and are not seen any \
more. Pending ones have no row now: the next turn computes it, as that of every answer's last token.

A call waits for the session's running turn.";

/// Columns where standard output is no terminal.
const DEFAULT_WIDTH: usize = 100;

/// Show which tokens of a session are live, dead, shared and protected, turn by turn
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Id of the session
    session: SessionId,
    /// URI of the router
    #[arg(long, value_name = "URI")]
    server: Option<String>,
    /// Write a page for a browser instead, with a slider over the turns
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "width", "top"])]
    html: Option<PathBuf>,
    /// Print JSON instead
    #[arg(long, conflicts_with_all = ["width", "top"])]
    json: bool,
    /// Columns of the text [default: those of the terminal, else 100]
    #[arg(long, value_name = "N")]
    width: Option<usize>,
    /// How many of the highest scores to list
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
}

pub async fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    let client = super::connect(global, options.server.as_deref()).await?;
    let view = fetch(&client, &options.session).await?;
    if let Some(file) = &options.html {
        write(file, html::html(&view)).await?;
        let live = view.positions.iter().filter(|position| position.state.is_live()).count();
        let tokens = counted(view.positions.len() as u64, "token");
        line(format!("{}: {tokens}, {} live", file.display(), count(live as u64)));
    } else if options.json {
        line(serde_json::to_string(&view)?);
    } else {
        piece(text::text(&view, &shown(options)));
    }
    Ok(())
}

async fn fetch(client: &Client, session: &SessionId) -> anyhow::Result<View> {
    let answer = match client.inspect_session(session.as_str()).await {
        Ok(answer) => answer,
        Err(error) if error.code() == ErrorCode::NotFound => {
            bail!("no group holds session {session}; `hawser status` lists those that are held")
        }
        Err(error) if error.code() == ErrorCode::Deadline => {
            bail!("no answer in time; if session {session} is in a long turn, ask again when that has ended")
        }
        Err(error) => return Err(error.into()),
    };
    if answer.tokens_without_text > 0 {
        let left_out = counted(answer.tokens_without_text.into(), "token");
        console::error(format!("the text of the oldest part, {left_out}, was left out: it is too long"));
    }
    Ok(wire::view(answer)?)
}

async fn write(file: &Path, page: String) -> anyhow::Result<()> {
    let context = || format!("cannot write {}", file.display());
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        tokio::fs::create_dir_all(folder).await.with_context(context)?;
    }
    tokio::fs::write(file, page).await.with_context(context)
}

fn shown(options: &Options) -> text::Options {
    let terminal = || terminal_size_of(stdout()).map(|(Width(columns), _)| usize::from(columns));
    text::Options {
        width: options.width.or_else(terminal).unwrap_or(DEFAULT_WIDTH),
        colour: if console::interactive() { Colour::Ansi } else { Colour::Plain },
        top: options.top,
    }
}
