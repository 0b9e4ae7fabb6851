//! `hawser chat`: a session by hand.

mod lines;
mod standing;

use anyhow::{Context, bail};
use hawser_client::{Client, ClientError, ErrorCode, Session, SessionId};
use hawser_common::Coded;
use hawser_common::clock::Clock;
use hawser_common::hint::has_hint;

use self::lines::{Line, Lines};
use self::standing::{Standing, held, is_silence};
use super::speaking::{SamplingOptions, Spoken, Totals, speak};
use crate::args::Global;
use crate::console::{bold, counted, dim, error, line, piece};

const EXAMPLES: &str = "\
Examples:
  hawser chat
  hawser chat --session trip-to-oslo        a name, to come back to the session later
  hawser chat --system 'You answer in rhymes.' --temperature 0.8
  printf 'Hello!\\nAnd now in French.\\n' | hawser chat

Lines from a pipe are turns too; the command then ends with 1 if any of them failed.

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
    /// Turns of the session that this chat knows of.
    turns: u32,
    /// Others can name the session too.
    named: bool,
    totals: Totals,
    tried: Tried,
    /// People type, and see what goes wrong.
    typed: bool,
    clock: Clock,
}

/// Turns of the whole chat.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    turns: u64,
    /// Of those, the ones that have no whole answer.
    failed: u64,
}

pub async fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    let client = super::connect(global, options.server.as_deref()).await?;
    let (session, turns) = open(&client, options).await?;
    let (clock, named) = (Clock::system(), options.session.is_some());
    let mut lines = Lines::open().context("cannot read from the terminal")?;
    let typed = lines.interactive();
    let (totals, tried) = (Totals::default(), Tried::default());
    let mut chat = Chat { client, options, session, turns, named, totals, tried, typed, clock };
    if typed {
        line(dim(format!("session {} at {}; /help lists commands", chat.session.id(), chat.client.uri())));
    }
    loop {
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
    if !chat.named {
        // Nobody can name this session again, so that nothing would be lost if closing failed.
        let _ = chat.session.close().await;
    }
    verdict(chat.typed, chat.tried)
}

/// How the chat ends. Who types has seen what failed; a script hears of it at the end.
fn verdict(typed: bool, Tried { turns, failed }: Tried) -> anyhow::Result<()> {
    if !typed && failed > 0 {
        bail!("{failed} of {} failed", counted(turns, "turn"));
    }
    Ok(())
}

/// What is said of a turn that failed: what to do about it once, in the server's words if it has some.
fn told(error: &ClientError) -> String {
    let text = error.to_string();
    let advice = match error.code() {
        _ if has_hint(&text) => "",
        ErrorCode::SessionLost => "; /new starts another session",
        ErrorCode::Exhausted | ErrorCode::Unavailable => "; try again in a moment",
        _ => "",
    };
    format!("{text}{advice}")
}

/// The named session where the cluster holds it, else a new one; and its turns.
async fn open(client: &Client, options: &Options) -> anyhow::Result<(Session, u32)> {
    let mut builder = client.session().model(&options.model).sampling(options.sampling.sampling());
    if let Some(id) = &options.session {
        builder = builder.id(id.clone());
        if let Some(info) = held(client, id).await?.filter(|info| info.turns > 0) {
            let (turns, tokens) = (counted(info.turns.into(), "turn"), counted(info.tokens, "token"));
            line(dim(format!("resuming {id} on {}: {turns}, {tokens}", info.group)));
            if options.system.is_some() {
                line(dim("(--system is for new sessions and not used)"));
            }
            return Ok((builder.resume().start(), info.turns));
        }
    }
    Ok((options.system.iter().fold(builder, |builder, text| builder.system(text)).start(), 0))
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
                let (session, turns) = open(&self.client, &fresh).await?;
                let old = std::mem::replace(&mut self.session, session);
                // The old session ends by itself if this does not reach it.
                let _ = old.close().await;
                (self.turns, self.totals) = (turns, Totals::default());
                self.named = false;
                line(dim(format!("session {}", self.session.id())));
            }
            text if text.starts_with('/') => line(format!("{text} is no command; /help lists them")),
            text => self.turn(text).await,
        }
        Ok(Next::Go)
    }

    async fn say(&mut self, text: &str) -> Result<Spoken, ClientError> {
        // Before the question where the session stands: an owner that was lost is waited for there, too.
        let began = self.clock.now();
        if self.named {
            self.go_on().await?;
        }
        let turn = self.session.say(text).await?;
        speak(turn, &self.clock, began, |text| piece(text)).await
    }

    /// Looks whether others have talked in the session, and goes on after what they said.
    async fn go_on(&mut self) -> Result<(), ClientError> {
        let id = self.session.id().clone();
        let turns = match held(&self.client, &id).await {
            Ok(info) => info.map_or(0, |info| info.turns),
            // Its owner is gone or hangs. The turn has the time to wait for another one.
            Err(error) if is_silence(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        if let Some(notice) = Standing::new(self.turns, turns).notice(&id) {
            line(dim(notice));
            let builder = self.client.session().model(&self.options.model).id(id);
            self.session = builder.sampling(self.options.sampling.sampling()).resume().start();
            self.turns = turns;
        }
        Ok(())
    }

    /// One turn. What goes wrong is shown, and the chat goes on.
    async fn turn(&mut self, text: &str) {
        self.tried.turns += 1;
        let work = self.say(text);
        // Cancel-safe: dropping the turn cancels it here and at the server; the signal future only waits.
        let done = tokio::select! {
            done = work => done,
            _ = tokio::signal::ctrl_c() => {
                self.tried.failed += 1;
                line(dim("\n[stopped; the session goes on from the turn before]"));
                return;
            }
        };
        match done {
            Ok(spoken) => {
                self.totals.add(&spoken);
                self.turns = spoken.outcome.report.turn;
                line(format!("\n{}", dim(format!("[{}]", spoken.summary()))));
            }
            Err(failure) => {
                self.tried.failed += 1;
                let text = format!("\n{} {}", bold("error:"), told(&failure));
                if self.typed { line(text) } else { error(text) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_hears_of_turns_that_failed_and_who_types_has_seen_them() {
        let tried = Tried { turns: 3, failed: 1 };
        assert_eq!(verdict(false, tried).unwrap_err().to_string(), "1 of 3 turns failed");
        assert!(verdict(true, tried).is_ok());
        assert!(verdict(false, Tried { failed: 0, ..tried }).is_ok());
    }

    #[test]
    fn what_to_do_is_said_once() {
        let cut = ClientError::Truncated { tokens: 3 };
        assert!(told(&cut).ends_with("without saying how; send the turn again"), "{}", told(&cut));
        let unknown = ClientError::HistoryUnknown { session: "s".into() };
        assert!(told(&unknown).ends_with("its history; start a new one"), "{}", told(&unknown));
        let late = ClientError::Deadline { limit: std::time::Duration::from_secs(1) };
        assert_eq!(told(&late), late.to_string());
    }
}
