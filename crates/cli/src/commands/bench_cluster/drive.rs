//! The load: streams that take sessions in turn, run their next turn, and put them back.
//!
//! A closed loop: a stream runs one turn at a time. Sessions keep their history, as an agent does, so that a turn can
//! be sent whole where the cluster has lost the session. Nothing else is tried again but a turn that failed, which
//! counts as an error.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use hawser_client::wire::worker_client::WorkerClient;
use hawser_client::{Client, ErrorCode, Sampling, SessionId, wire};
use hawser_common::clock::{Clock, Tick};
use hawser_common::tasks::Tasks;
use hawser_common::{SessionKey, TenantId};
use tonic::transport::{Channel, Endpoint};

use super::exchange::{Exchange, direct, routed};
use super::history::History;
use super::plan::Plan;
use super::tally::{Kind, Tally, Way};

/// Tries of one turn; a session whose turn failed so often is given up.
const TRIES: u32 = 4;
const AFTER_ERROR: Duration = Duration::from_millis(50);
/// Longest that a turn may take.
pub const TURN_LIMIT: Duration = Duration::from_secs(120);

/// One agent.
#[derive(Debug)]
struct Session {
    number: u64,
    key: SessionKey,
    history: Vec<u32>,
    turn: u32,
    /// Group and epoch of the last turn.
    owner: Option<(String, u64)>,
}

/// Leaders by the name of their group, for turns that go past the routers.
#[derive(Default)]
pub struct Leaders {
    pub straight: HashMap<String, WorkerClient<Channel>>,
    /// Through something that passes bytes on.
    pub passing: HashMap<String, WorkerClient<Channel>>,
    /// Through something that passes calls on.
    pub calling: HashMap<String, WorkerClient<Channel>>,
}

/// What all streams share.
pub struct Load {
    pub plan: Plan,
    pub clients: Vec<Client>,
    pub leaders: Leaders,
    pub history: Arc<History>,
    pub clock: Clock,
    /// Turns that have ended well.
    pub done: AtomicU64,
    sessions: Mutex<Sessions>,
}

#[derive(Debug, Default)]
struct Sessions {
    /// Those that still have turns in this phase, the longest idle first.
    idle: VecDeque<Session>,
    rested: VecDeque<Session>,
}

/// A channel to a leader.
pub fn leader(address: std::net::SocketAddr) -> anyhow::Result<WorkerClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).context("a leader's address")?;
    Ok(WorkerClient::new(hawser_proto::connect_lazy(&endpoint)))
}

impl Load {
    pub fn new(
        plan: &Plan,
        clients: Vec<Client>,
        leaders: Leaders,
        (history, clock): (Arc<History>, Clock),
    ) -> anyhow::Result<Self> {
        let tenant = TenantId::single();
        let session = |number: u64| {
            let session = SessionId::parse(&format!("bench-{number:08}"))?;
            let key = SessionKey { tenant: tenant.clone(), session };
            Ok(Session { number, key, history: Vec::new(), turn: 0, owner: None })
        };
        let idle: anyhow::Result<VecDeque<Session>> = (0..plan.sessions as u64).map(session).collect();
        let sessions = Mutex::new(Sessions { rested: idle?, idle: VecDeque::new() });
        Ok(Self { plan: plan.clone(), clients, leaders, history, clock, done: AtomicU64::new(0), sessions })
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs turns until every session has had `turns` of them.
    pub async fn run(self: &Arc<Self>, turns: u32) -> Tally {
        {
            let mut sessions = self.sessions();
            sessions.idle = std::mem::take(&mut sessions.rested);
        }
        let tasks = Tasks::new();
        let streams = (0..self.plan.streams.max(1)).map(|stream| {
            let load = Arc::clone(self);
            tasks.spawn(async move { Box::pin(load.stream(stream, turns)).await })
        });
        let streams: Vec<_> = streams.collect();
        let mut total = Tally::default();
        for stream in streams {
            match stream.await {
                Ok(tally) => total.add(tally),
                Err(error) => total.error(&format!("a stream ended: {error}")),
            }
        }
        total
    }

    async fn stream(&self, stream: usize, turns: u32) -> Tally {
        let mut tally = Tally::default();
        if self.plan.think_ms > 0 {
            // Spread over the pause, so that streams do not march in step.
            let share = stream as f64 / self.plan.streams as f64;
            tokio::time::sleep(Duration::from_millis(self.plan.think_ms).mul_f64(share)).await;
        }
        loop {
            let next = self.sessions().idle.pop_front();
            let Some(mut session) = next else { return tally };
            if self.turn(&mut session, &mut tally).await {
                self.done.fetch_add(1, Ordering::Relaxed);
                let mut sessions = self.sessions();
                let rests = session.turn >= turns;
                let queue = if rests { &mut sessions.rested } else { &mut sessions.idle };
                queue.push_back(session);
            } else {
                tally.given_up += 1;
            }
            if self.plan.think_ms > 0 {
                tokio::time::sleep(self.pause(stream, tally.turns)).await;
            }
        }
    }

    /// Nothing to twice the plan's pause, drawn. Agents that all paused for the same time would queue up behind one
    /// another once, and come as one crowd ever after.
    fn pause(&self, stream: usize, turns: u64) -> Duration {
        let drawn = (stream as u64 ^ (turns << 20)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let drawn = (drawn ^ (drawn >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40;
        Duration::from_millis(2 * self.plan.think_ms).mul_f64(drawn as f64 / f64::from(1u32 << 24))
    }

    /// One turn, and whether it ended well.
    async fn turn(&self, session: &mut Session, tally: &mut Tally) -> bool {
        let added = self.added(session);
        let mut whole = session.turn == 0 || !self.plan.names_sessions();
        let mut kind = if session.turn == 0 { Kind::First } else { Kind::Warm };
        for tried in 0..TRIES {
            let request = self.request(session, &added, whole);
            let compares = self.plan.direct && kind == Kind::Warm && tried == 0;
            let way = if compares { Way::of(session.turn) } else { Way::Router };
            let sent = self.clock.now();
            match self.exchange(session, request, way).await {
                Ok(exchange) => {
                    self.settle(session, added, exchange, tally, (kind, way, sent));
                    return true;
                }
                Err(error) if error.code == ErrorCode::SessionLost && !whole => {
                    tally.lost += 1;
                    (whole, kind) = (true, Kind::Resent);
                }
                Err(error) => {
                    tally.error(error.code.name());
                    tracing::warn!(session = %session.key.session, turn = session.turn, error = %error.text, "a turn failed");
                    (whole, kind) = (true, Kind::Resent);
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
        false
    }

    async fn exchange(
        &self,
        session: &Session,
        request: wire::GenerateRequest,
        way: Way,
    ) -> Result<Exchange, super::exchange::Failed> {
        let leaders = match way {
            Way::Router => None,
            Way::Straight => Some(&self.leaders.straight),
            Way::Passing => Some(&self.leaders.passing),
            Way::Calling => Some(&self.leaders.calling),
        };
        let leader = leaders.zip(session.owner.as_ref());
        let leader = leader.and_then(|(leaders, (group, epoch))| Some((leaders.get(group)?, *epoch)));
        match leader {
            Some((leader, epoch)) => direct(leader.clone(), epoch, request, &self.clock).await,
            None => {
                // Any router will do; the number is spread by a multiplication.
                let at = (session.number + u64::from(session.turn)).wrapping_mul(0x9e37_79b9)
                    % self.clients.len() as u64;
                routed(&self.clients[at as usize], request, &self.clock).await
            }
        }
    }

    fn settle(
        &self,
        session: &mut Session,
        added: Vec<u32>,
        exchange: Exchange,
        tally: &mut Tally,
        (kind, way, sent): (Kind, Way, Tick),
    ) {
        if self.plan.names_sessions() {
            self.history.served(&session.key, &exchange.group, sent, exchange.placed);
        }
        let same = session.owner.as_ref().map(|(group, _)| *group == exchange.group);
        tally.turn((kind, way), same, sent, &exchange);
        session.owner = Some((exchange.group, exchange.epoch));
        session.history.extend(added);
        session.history.extend(exchange.tokens);
        session.turn += 1;
    }

    /// Tokens that the session's next turn adds: all begin with the same ones, and go on with their own.
    fn added(&self, session: &Session) -> Vec<u32> {
        let plan = &self.plan;
        let own = |index: usize| {
            let seed = session.number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(session.turn) << 40);
            let drawn = (seed ^ index as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
            97 + (drawn >> 59) as u32 % 26
        };
        if session.turn > 0 {
            return (0..plan.turn_tokens).map(own).collect();
        }
        let shared = (0..plan.shared_tokens).map(|index| 97 + (index * 7 % 26) as u32);
        shared.chain((0..plan.first_tokens).map(own)).collect()
    }

    fn request(&self, session: &Session, added: &[u32], whole: bool) -> wire::GenerateRequest {
        let (ids, extent) = if whole {
            (session.history.iter().chain(added).copied().collect(), wire::Extent::Whole)
        } else {
            (added.to_vec(), wire::Extent::Delta)
        };
        let input = wire::TokenInput { ids, extent: extent.into() };
        let sampling = Sampling::greedy().max_tokens(self.plan.answer_tokens).ignore_eos();
        let named = self.plan.names_sessions();
        wire::GenerateRequest {
            session: if named { session.key.session.to_string() } else { String::new() },
            input: Some(wire::generate_request::Input::Tokens(input)),
            sampling: Some(sampling.to_wire()),
            ..Default::default()
        }
    }
}
