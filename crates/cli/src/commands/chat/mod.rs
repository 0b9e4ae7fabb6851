//! `hawser chat`: a session by hand.

mod lines;

use anyhow::Context;
use hawser_client::{Client, ErrorCode, Session, SessionId};
use hawser_common::Coded;
use hawser_common::clock::Clock;

use self::lines::{Line, Lines};
use super::speaking::{SamplingOptions, Spoken, Totals, speak};
use crate::args::Global;
use crate::console::{bold, dim, line, piece};

const EXAMPLES: &str = "\
Examples:
  hawser chat
  hawser chat --session trip-to-oslo        a name, to come back to the session later
  hawser chat --system 'You answer in rhymes.' --temperature 0.8
  printf 'Hello!\\nAnd now in French.\\n' | hawser chat

Inside: /new starts over, /stats sums up, /help lists the commands, /quit or Ctrl-D leaves.
Ctrl-C stops the answer that is running; the session goes on from the turn before.";

const COMMANDS: &str = "\
/new     end this session and start another one
/stats   tokens of this session so far
/help    this list
/quit    leave; a session with a name (--session) stays and can be resumed
Ctrl-C   stop the answer that is running";

/// Talk to a model in a session.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// URI of the router
    #[arg(long, value_name = "URI")]
    server: Option<String>,
    /// Name of the session, resumed where the cluster still holds it
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    /// System message of a new session
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Model, where the cluster serves several
    #[arg(long, value_name = "NAME", default_value = "")]
    model: String,
    #[command(flatten)]
    sampling: SamplingOptions,
}

/// What the loop does after a line.
enum Next {
    Go,
    Leave,
}

struct Chat<'a> {
    client: Client,
    options: &'a Options,
    session: Session,
    totals: Totals,
    clock: Clock,
}

pub async fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    let client = super::connect(global, options.server.as_deref()).await?;
    let session = open(&client, options).await?;
    let clock = Clock::system();
    let mut chat = Chat { client, options, session, totals: Totals::default(), clock };
    let mut lines = Lines::open().context("cannot read from the terminal")?;
    if lines.interactive() {
        line(dim(format!("session {} at {}; /help lists commands", chat.session.id(), chat.client.uri())));
    }
    loop {
        let typed = lines.interactive();
        // Cancel-safe: a line that is lost to the signal is not wanted any more.
        let read = tokio::select! {
            read = lines.next() => read.context("cannot read the next line")?,
            _ = tokio::signal::ctrl_c(), if !typed => Line::End,
        };
        let next = match read {
            Line::Text(text) => chat.handle(text.trim()).await?,
            Line::Interrupted => {
                line(dim("(Ctrl-D or /quit leaves)"));
                Next::Go
            }
            Line::End => Next::Leave,
        };
        if matches!(next, Next::Leave) {
            break;
        }
    }
    if options.session.is_none() {
        // Nobody can name this session again, so that nothing would be lost if closing failed.
        let _ = chat.session.close().await;
    }
    Ok(())
}

/// The named session where the cluster holds it, else a new one.
async fn open(client: &Client, options: &Options) -> anyhow::Result<Session> {
    let mut builder = client.session().model(&options.model).sampling(options.sampling.sampling());
    let mut held = false;
    if let Some(id) = &options.session {
        match client.describe_session(id.as_str()).await {
            Ok(info) if info.turns > 0 => {
                line(dim(format!(
                    "resuming {id} on {}: {} turns, {} tokens",
                    info.group, info.turns, info.tokens
                )));
                held = true;
            }
            Ok(_) => {}
            Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::SessionLost) => {}
            Err(error) => return Err(error.into()),
        }
        builder = builder.id(id.clone());
    }
    if held {
        return Ok(builder.resume().start());
    }
    Ok(options.system.iter().fold(builder, |builder, text| builder.system(text)).start())
}

impl Chat<'_> {
    async fn handle(&mut self, text: &str) -> anyhow::Result<Next> {
        match text {
            "" => {}
            "/quit" | "/exit" => return Ok(Next::Leave),
            "/help" => line(COMMANDS),
            "/stats" => line(dim(self.totals.summary())),
            "/new" => {
                let fresh = Options { session: None, ..self.options.clone() };
                let old = std::mem::replace(&mut self.session, open(&self.client, &fresh).await?);
                // The old session ends by itself if this does not reach it.
                let _ = old.close().await;
                self.totals = Totals::default();
                line(dim(format!("session {}", self.session.id())));
            }
            text if text.starts_with('/') => line(format!("{text} is no command; /help lists them")),
            text => self.turn(text).await,
        }
        Ok(Next::Go)
    }

    /// One turn. What goes wrong is shown, and the chat goes on.
    async fn turn(&mut self, text: &str) {
        let work = say(&mut self.session, &self.clock, text);
        // Cancel-safe: dropping the turn cancels it here and at the server; the signal future only waits.
        let done = tokio::select! {
            done = work => done,
            _ = tokio::signal::ctrl_c() => {
                line(dim("\n[stopped; the session goes on from the turn before]"));
                return;
            }
        };
        match done {
            Ok(spoken) => {
                self.totals.add(&spoken);
                line(format!("\n{}", dim(format!("[{}]", spoken.summary()))));
            }
            Err(error) => {
                let advice = match error.code() {
                    ErrorCode::SessionLost => "; /new starts another session",
                    ErrorCode::Exhausted | ErrorCode::Unavailable => "; try again in a moment",
                    _ => "",
                };
                line(format!("\n{} {error}{advice}", bold("error:")));
            }
        }
    }
}

async fn say(session: &mut Session, clock: &Clock, text: &str) -> Result<Spoken, hawser_client::ClientError> {
    let began = clock.now();
    let turn = session.say(text).await?;
    speak(turn, clock, began, |text| piece(text)).await
}
