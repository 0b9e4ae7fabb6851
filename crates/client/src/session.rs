//! A conversation: keeps the history, sends what is new, and resends everything where the cluster has lost it.

use std::time::Duration;

use hawser_common::chat::{Message, Role, Tool};
use hawser_common::clock::Clock;
use hawser_common::numbers::millis;
use hawser_common::{Coded, ErrorCode, SessionId};
use hawser_proto::v1;

use crate::connection::Client;
use crate::error::ClientError;
use crate::frames::{Frame, FrameStream};
use crate::message;
use crate::retry::Retry;
use crate::sampling::Sampling;
use crate::turn::{self, Placed, Turn};

/// What a session is made of.
#[derive(Clone, Debug)]
pub struct SessionBuilder {
    client: Client,
    id: Option<SessionId>,
    options: Options,
    history: Vec<Message>,
    held: Held,
}

#[derive(Clone, Debug)]
struct Options {
    model: String,
    tools: Vec<Tool>,
    sampling: Sampling,
    limit: Option<Duration>,
    retry: Retry,
    retention: Option<v1::Retention>,
}

/// What the cluster is known to hold of this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// Nothing, or something unknown: the next turn carries everything.
    Unknown,
    /// Exactly the history of this client.
    All,
    /// A history that this client does not know: it can add to it, and not resend it.
    Remote,
}

impl SessionBuilder {
    pub(crate) fn new(client: Client) -> Self {
        let options = Options {
            model: String::new(),
            tools: Vec::new(),
            sampling: Sampling::new(),
            limit: None,
            retry: Retry::default(),
            retention: None,
        };
        Self { client, id: None, options, history: Vec::new(), held: Held::Unknown }
    }

    /// The session's name; drawn at random where it is not set.
    #[must_use]
    pub fn id(mut self, id: SessionId) -> Self {
        self.id = Some(id);
        self
    }

    /// The model; may be left out where one model is served.
    #[must_use]
    pub fn model(mut self, name: impl Into<String>) -> Self {
        self.options.model = name.into();
        self
    }

    /// Adds a system message.
    #[must_use]
    pub fn system(self, text: impl Into<String>) -> Self {
        self.history(vec![Message::text(Role::System, text)])
    }

    /// Adds messages that the conversation begins with.
    #[must_use]
    pub fn history(mut self, messages: Vec<Message>) -> Self {
        self.history.extend(messages);
        self
    }

    /// Tools on offer.
    #[must_use]
    pub fn tools(mut self, tools: Vec<Tool>) -> Self {
        self.options.tools = tools;
        self
    }

    /// How tokens are chosen.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.options.sampling = sampling;
        self
    }

    /// Longest time of one turn, retries included.
    #[must_use]
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.options.limit = Some(limit);
        self
    }

    /// How a turn is tried again where nothing was delivered yet.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.options.retry = retry;
        self
    }

    /// Which history the session keeps at the server.
    #[must_use]
    pub fn retention(mut self, retention: v1::Retention) -> Self {
        self.options.retention = Some(retention);
        self
    }

    /// The cluster holds this session already and its history is not known here: turns are added to it. If the
    /// cluster loses it, turns fail with [`ClientError::HistoryUnknown`].
    #[must_use]
    pub fn resume(mut self) -> Self {
        self.held = Held::Remote;
        self
    }

    /// The session. Nothing is sent until its first turn.
    #[must_use]
    pub fn start(self) -> Session {
        let id = self.id.unwrap_or_else(fresh_id);
        let clock = Clock::system();
        let Self { client, options, history, held, .. } = self;
        Session { client, id, options, history, held, clock }
    }
}

/// 128 random bits under a readable prefix.
fn fresh_id() -> SessionId {
    let drawn: u128 = rand::random();
    SessionId::parse(&format!("s-{drawn:032x}")).expect("a hexadecimal number is a valid id")
}

/// A conversation. One turn runs at a time: [`Turn`] borrows the session.
#[derive(Debug)]
pub struct Session {
    client: Client,
    id: SessionId,
    options: Options,
    /// Committed messages only.
    history: Vec<Message>,
    held: Held,
    clock: Clock,
}

impl Session {
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The connection that this session uses.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// The messages of all turns that ended well.
    #[must_use]
    pub fn history(&self) -> &[Message] {
        &self.history
    }

    /// Sampling of the turns from now on.
    pub fn set_sampling(&mut self, sampling: Sampling) {
        self.options.sampling = sampling;
    }

    /// Longest time of each turn from now on, retries included; `None`: no limit.
    pub fn set_deadline(&mut self, limit: Option<Duration>) {
        self.options.limit = limit;
    }

    /// A turn of one user message.
    ///
    /// # Errors
    /// As [`Session::send`].
    pub async fn say(&mut self, text: impl Into<String>) -> Result<Turn<'_>, ClientError> {
        self.send(vec![Message::text(Role::User, text)]).await
    }

    /// A turn that adds `messages` and generates an answer. Returns once the turn is placed.
    ///
    /// # Errors
    /// [`ClientError`] when the turn could not be placed, after the retries; the session is then as it was.
    pub async fn send(&mut self, messages: Vec<Message>) -> Result<Turn<'_>, ClientError> {
        let (frames, placed) = self.place(&messages).await?;
        Ok(Turn::new(self, frames, messages, placed))
    }

    /// Ends the session and frees what it holds; gives the slots that became free.
    ///
    /// # Errors
    /// Any [`ClientError`]; the session then ends by itself when its group needs the room.
    pub async fn close(self) -> Result<u64, ClientError> {
        self.client.close_session(self.id.as_str()).await
    }

    /// A second session with the same history. Both share what they have in common.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn fork(&self) -> Result<Self, ClientError> {
        let id = fresh_id();
        self.client.fork_session(self.id.as_str(), id.as_str()).await?;
        Ok(Self {
            client: self.client.clone(),
            id,
            options: self.options.clone(),
            history: self.history.clone(),
            held: self.held,
            clock: self.clock.clone(),
        })
    }

    pub(crate) fn commit(&mut self, messages: Vec<Message>) {
        self.history.extend(messages);
        if self.held == Held::Unknown {
            self.held = Held::All;
        }
    }

    /// Sends the turn until some group has placed it, or no try is left.
    async fn place(&mut self, added: &[Message]) -> Result<(FrameStream, Placed), ClientError> {
        let began = self.clock.now();
        let mut tried = 0;
        loop {
            tried += 1;
            let spent = self.clock.now().since(began);
            let left = self.options.limit.map(|limit| limit.saturating_sub(spent));
            let before = self.held;
            // Until this turn is committed it is not known what the cluster holds.
            if before == Held::All {
                self.held = Held::Unknown;
            }
            let error = match self.attempt(before, added, left).await {
                Ok(placed) => return Ok(placed),
                Err(error) => error,
            };
            if error.nothing_happened() {
                self.held = before;
            }
            let wait = self.recover(error, before, tried)?;
            if let Some(limit) = self.options.limit
                && self.clock.now().since(began) + wait >= limit
            {
                return Err(ClientError::Deadline { limit });
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn attempt(
        &self,
        held: Held,
        added: &[Message],
        limit: Option<Duration>,
    ) -> Result<(FrameStream, Placed), ClientError> {
        let resent = held == Held::Unknown;
        let mut frames = self.client.generate(self.request(held, added), limit).await?;
        match frames.next().await? {
            Some(Frame::Placed(placed)) => Ok((frames, turn::placed(placed, resent))),
            _ => Err(ClientError::Protocol { what: "a turn without placement" }),
        }
    }

    fn request(&self, held: Held, added: &[Message]) -> v1::GenerateRequest {
        let options = &self.options;
        let conversation = match held {
            Held::Unknown => {
                let whole: Vec<Message> = self.history.iter().chain(added).cloned().collect();
                message::conversation(&whole, &options.tools, v1::Extent::Whole)
            }
            Held::All | Held::Remote => message::conversation(added, &[], v1::Extent::Delta),
        };
        v1::GenerateRequest {
            session: self.id.to_string(),
            model: options.model.clone(),
            sampling: Some(options.sampling.to_wire()),
            retention: options.retention.clone(),
            intent: None,
            protected_tokens: 0,
            no_continuation: false,
            input: Some(v1::generate_request::Input::Conversation(conversation)),
        }
    }

    /// The wait before another try; an error means that there is none.
    fn recover(&mut self, error: ClientError, sent: Held, tried: u32) -> Result<Duration, ClientError> {
        match (error.code(), sent) {
            (ErrorCode::SessionLost, Held::All) => {
                tracing::info!(session = %self.id, "the cluster lost the session; resending its history");
                self.held = Held::Unknown;
                Ok(Duration::ZERO)
            }
            (ErrorCode::SessionLost, Held::Remote) => {
                Err(ClientError::HistoryUnknown { session: self.id.to_string() })
            }
            (ErrorCode::Unavailable, _) => {
                let Some(wait) = self.options.retry.delay(tried, rand::random(), error.retry_after()) else {
                    return Err(error);
                };
                let wait_ms = millis(wait);
                tracing::info!(session = %self.id, tried, wait_ms, %error, "trying the turn again");
                Ok(wait)
            }
            _ => Err(error),
        }
    }
}
