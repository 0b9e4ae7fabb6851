//! Clients: sessions of the SDK over simulated connections, which write down what they are told.

use std::time::Duration;

use hawser_client::{Client, ClientError, Message, Role, Session, TurnEvent};
use hawser_common::group::Owner;
use hawser_common::{Coded as _, Epoch, GroupId, SessionId, SessionKey, TenantId};
use hawser_testkit::history::{End, Event, Recorder, TurnId};

use crate::net;

pub(crate) fn key(session: &str) -> SessionKey {
    let session = SessionId::parse(session).expect("tests use legal ids");
    SessionKey { tenant: TenantId::single(), session }
}

pub(crate) fn connect(router: &str) -> Client {
    Client::over(net::to(router), router)
}

/// One session of an agent, with connections to several routers.
pub(crate) struct Agent {
    key: SessionKey,
    /// What its turns are called by.
    name: String,
    clients: Vec<Client>,
    recorder: Recorder,
    limit: Duration,
    /// Turns that ended well.
    turns: Vec<(TurnId, String)>,
    session: Option<(usize, Session)>,
    asked: u32,
}

impl Agent {
    pub(crate) fn new(session: &str, routers: &[String], recorder: &Recorder, limit: Duration) -> Self {
        Self {
            key: key(session),
            name: session.to_owned(),
            clients: routers.iter().map(|router| connect(router)).collect(),
            recorder: recorder.clone(),
            limit,
            turns: Vec::new(),
            session: None,
            asked: 0,
        }
    }

    /// One of several agents that use one session at once.
    pub(crate) fn racing(
        session: &str,
        nth: usize,
        routers: &[String],
        recorder: &Recorder,
        limit: Duration,
    ) -> Self {
        Self { name: format!("{session}.{nth}"), ..Self::new(session, routers, recorder, limit) }
    }

    /// The history as messages.
    fn messages(&self) -> Vec<Message> {
        let pair = |(turn, answer): &(TurnId, String)| {
            [Message::text(Role::User, turn.to_string()), Message::text(Role::Assistant, answer.clone())]
        };
        self.turns.iter().flat_map(pair).collect()
    }

    /// A turn through a router: the same one sends only what is new, another one begins with the whole.
    pub(crate) async fn turn(&mut self, router: usize) -> Result<Owner, ClientError> {
        self.asked += 1;
        let id = TurnId(format!("{}/{}", self.name, self.asked));
        let history = self.turns.iter().map(|(turn, _)| turn.clone()).collect();
        self.recorder.record(Event::Asked { session: self.key.clone(), turn: id.clone(), history });
        let (at, mut session) = match self.session.take() {
            Some((at, session)) if at == router => (at, session),
            _ => {
                let builder = self.clients[router].session().id(self.key.session.clone());
                (router, builder.deadline(self.limit).history(self.messages()).start())
            }
        };
        let ran = run(&mut session, &id, &self.recorder).await;
        self.session = Some((at, session));
        let end = match &ran {
            Ok((_, _, tokens)) => End::Finished { tokens: *tokens },
            Err(error) => End::Failed { code: error.code() },
        };
        self.recorder.record(Event::Ended { turn: id.clone(), end });
        let (owner, text, _) = ran?;
        self.turns.push((id, text));
        Ok(owner)
    }
}

/// One turn to its end: who served it, its text, and the tokens that its result names.
async fn run(
    session: &mut Session,
    id: &TurnId,
    recorder: &Recorder,
) -> Result<(Owner, String, u32), ClientError> {
    let mut turn = session.say(id.to_string()).await?;
    let mut owner = Owner { group: GroupId::parse("nobody").expect("a legal id"), epoch: Epoch(0) };
    let (mut text, mut tokens) = (String::new(), 0);
    while let Some(event) = turn.next().await? {
        match event {
            TurnEvent::Placed(placed) => {
                owner = Owner {
                    group: GroupId::parse(&placed.group).expect("a legal id"),
                    epoch: Epoch(placed.epoch),
                };
                recorder.record(Event::Placed { turn: id.clone(), owner: owner.clone() });
            }
            TurnEvent::Tokens(piece) => {
                text.push_str(&piece.text);
                recorder.record(Event::Received { turn: id.clone(), tokens: piece.ids });
            }
            TurnEvent::Finished(report) => tokens = report.usage.generated_tokens,
        }
    }
    Ok((owner, text, tokens))
}
