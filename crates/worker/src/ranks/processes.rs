//! A group of processes over TCP: the leader's side and a follower's.
//!
//! With certificates every connection is TLS, and both ends have shown theirs before anything is said. Promises that a
//! rank without them and one with them both find out why they cannot talk.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::{Coded, ErrorCode};
use hawser_device::collective::nccl::Member;
use hawser_device::collective::{Connection, ConnectionError, RankTls, TcpRank};
use hawser_device::kv::RowType;
use hawser_model::executor::{Executor, ExecutorOptions};
use hawser_model::layers::Model;
use thiserror::Error;

use super::door::Door;
use super::follower::follow;
use super::formation::{FormError, Formation};
use super::leader::Leader;
use super::link::{Channel, Link};
use super::probe::Unprobed;
use super::rank::{Rank, RankError};
use super::rendezvous::{GREETING, Hello, Here, Terms, Welcome, hear, say};
use super::sums::{self, Sums, lead};
use super::traced::RankWatch;

/// Longest that the leader looks for followers in one try.
const LOOK: Duration = Duration::from_millis(800);
/// Longest that one connection may hold the leader up.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks.
const POLL: Duration = Duration::from_millis(10);
/// Connections that are told at one time, while the group is whole, that nobody is missing.
const MAX_AT_DOOR: usize = 8;
/// Connections that may be greeted in one try: strangers do not keep the leader for ever.
const MAX_GREETINGS: usize = 256;

/// The leader of ranks in other processes.
#[derive(Debug)]
pub struct Processes {
    listener: TcpListener,
    /// The leader's shard.
    shard: Arc<Model>,
    /// Digest of the checkpoint.
    model: String,
    world: usize,
    options: ExecutorOptions,
    timeout: Duration,
    sums: Sums,
    clock: Clock,
    /// Ranks that have come, at `rank - 1`.
    joined: Vec<Joining>,
    /// Where the ranks of the group that formed last are, at `rank - 1`.
    holders: Vec<String>,
    /// Held by each thread that talks to a process which comes too late.
    door: Arc<Door>,
    watch: Option<RankWatch>,
    tls: Option<RankTls>,
}

/// The connections of one follower's attempt.
#[derive(Debug, Default)]
struct Joining {
    attempt: u64,
    commands: Option<Connection>,
    sums: Option<Connection>,
    /// Where it is.
    from: String,
    /// It had one connection of the two when the leader looked last.
    is_half: bool,
}

impl Joining {
    /// Whether another attempt is under way.
    fn is_taken(&self, attempt: u64) -> bool {
        let alive = |connection: &Option<Connection>| connection.as_ref().is_some_and(Connection::is_open);
        self.attempt != attempt && (alive(&self.commands) || alive(&self.sums))
    }

    /// Says that others are missing. One that does not answer is gone, or hangs: its place is free again, and it comes
    /// back if it can.
    fn told_to_wait(&mut self) {
        let waits = if self.is_here() {
            let here = |connection: &Connection| {
                say(connection, &Welcome::Wait, PATIENCE).and_then(|()| hear::<Here>(connection, PATIENCE))
            };
            self.commands.as_ref().is_some_and(|connection| here(connection).is_ok())
        } else {
            // It may be about to open the other one.
            !std::mem::replace(&mut self.is_half, true)
        };
        if !waits {
            *self = Self::default();
        }
    }

    /// Both, if both are there and the other side has not gone.
    fn is_here(&self) -> bool {
        let alive = |connection: &Option<Connection>| connection.as_ref().is_some_and(Connection::is_open);
        alive(&self.commands) && alive(&self.sums)
    }
}

impl Processes {
    /// A leader that listens at `address` for the other `world - 1` ranks.
    ///
    /// # Errors
    /// Where the address cannot be listened at.
    pub fn listen(
        address: SocketAddr,
        (shard, model): (Arc<Model>, String),
        world: usize,
        (options, timeout, sums): (ExecutorOptions, Duration, Sums),
        clock: Clock,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let joined = (1..world).map(|_| Joining::default()).collect();
        let (holders, door, watch, tls) = (Vec::new(), Arc::new(Door::new(world)), None, None);
        Ok(Self {
            listener,
            shard,
            model,
            world,
            options,
            timeout,
            sums,
            clock,
            joined,
            holders,
            door,
            watch,
            tls,
        })
    }

    /// The same, under watch.
    #[must_use]
    pub fn watched_by(self, watch: RankWatch) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// The same, where all ranks show certificates; `None`: they talk plain text.
    #[must_use]
    pub fn secured_by(self, tls: Option<RankTls>) -> Self {
        Self { tls, ..self }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the operating system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Takes connections until all ranks are there or the time is over.
    fn gather(&mut self) -> io::Result<bool> {
        let until = self.clock.now().after(LOOK);
        for _ in 0..MAX_GREETINGS {
            loop {
                match self.listener.accept() {
                    Ok((stream, from)) => {
                        if let Err(error) = self.greet(stream, from)
                            && self.door.is_news(0, from, &error.to_string())
                        {
                            tracing::warn!(%from, %error, "a connection is no rank of this group");
                        }
                        break;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                if self.joined.iter().all(Joining::is_here) {
                    return Ok(true);
                }
                if self.clock.now() >= until {
                    return Ok(false);
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(self.joined.iter().all(Joining::is_here))
    }

    fn greet(&mut self, stream: TcpStream, from: SocketAddr) -> Result<(), ConnectionError> {
        let (hello, connection) = greeted(stream, self.tls.as_ref(), &self.clock)?;
        if let Some(reason) = hello.refused(&self.model, self.world) {
            if self.door.is_news(hello.rank, from, &reason) {
                tracing::warn!(rank = hello.rank, %from, %reason, "a rank was refused");
            }
            return say(&connection, &Welcome::Refused { reason }, PATIENCE);
        }
        let joining = &mut self.joined[hello.rank - 1];
        if joining.is_taken(hello.attempt) {
            let by = joining.from.clone();
            if self.door.is_news(hello.rank, from, &by) {
                tracing::warn!(rank = hello.rank, %from, %by, "two processes want to be the same rank");
            }
            return say(&connection, &Welcome::Taken { by }, PATIENCE);
        }
        if joining.attempt != hello.attempt {
            // A follower that has started again: what is left of its last attempt is closed.
            *joining = Joining { attempt: hello.attempt, from: from.to_string(), ..Joining::default() };
        }
        match hello.channel {
            Channel::Commands => joining.commands = Some(connection),
            Channel::Sums => joining.sums = Some(connection),
        }
        Ok(())
    }

    fn start(&mut self, epoch: u64) -> Result<Leader, FormError> {
        let terms = Terms {
            epoch,
            slots: self.options.slots,
            row_type: match self.options.row_type {
                RowType::F32 => 0,
                RowType::F16 => 1,
                RowType::Bf16 => 2,
            },
            timeout_ms: u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX),
            nccl: self.sums.draw()?,
        };
        let (mut commands, mut sums) = (Vec::new(), Vec::new());
        self.holders.clear();
        self.door.clear();
        for joining in &mut self.joined {
            let Joining { commands: command, sums: sum, from, .. } = std::mem::take(joining);
            self.holders.push(from);
            for (connection, list) in [(command, &mut commands), (sum, &mut sums)] {
                let connection = connection.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
                say(&connection, &Welcome::Start(terms.clone()), PATIENCE)?;
                list.push(connection);
            }
        }
        let sums = lead(self.sums, terms.nccl.as_deref(), sums, self.timeout)?;
        let link = Link::new(Box::new(TcpRank::hub(commands, self.timeout)?));
        let abort = sums.abort_handle();
        let executor = Executor::in_group(Arc::clone(&self.shard), self.options, sums)?;
        let rank = Rank::new(executor, epoch).watched_by(self.watch.clone(), 0);
        Ok(Leader::of(rank, link, abort))
    }
}

impl Formation for Processes {
    fn world(&self) -> usize {
        self.world
    }

    fn form(&mut self, epoch: u64) -> Result<Leader, FormError> {
        if self.gather()? {
            return self.start(epoch);
        }
        self.joined.iter_mut().for_each(Joining::told_to_wait);
        let missing = (1..).zip(&self.joined).filter(|(_, joining)| !joining.is_here());
        Err(FormError::Missing { ranks: missing.map(|(rank, _)| rank).collect(), world: self.world })
    }

    fn meeting(&self) -> Option<SocketAddr> {
        self.address().ok()
    }

    /// Each is answered by a thread of its own, since a step must not wait for a stranger.
    fn turn_away(&mut self) {
        while let Ok((stream, from)) = self.listener.accept() {
            if Arc::strong_count(&self.door) > MAX_AT_DOOR {
                continue;
            }
            let late = Late {
                tls: self.tls.clone(),
                clock: self.clock.clone(),
                model: self.model.clone(),
                holders: self.holders.clone(),
                place: Arc::clone(&self.door),
            };
            let answering = std::thread::Builder::new().name("hawser-door".to_owned()).spawn(move || {
                if let Err(error) = late.answer(stream, from) {
                    tracing::debug!(%from, %error, "a connection is no rank of this group");
                }
            });
            if let Err(error) = answering {
                tracing::debug!(%from, %error, "nobody is there to answer");
            }
        }
    }
}

/// What a process is told that comes while the group is whole.
struct Late {
    tls: Option<RankTls>,
    clock: Clock,
    model: String,
    holders: Vec<String>,
    place: Arc<Door>,
}

impl Late {
    fn answer(&self, stream: TcpStream, from: SocketAddr) -> Result<(), ConnectionError> {
        let (hello, connection) = greeted(stream, self.tls.as_ref(), &self.clock)?;
        let answer = match hello.refused(&self.model, self.holders.len() + 1) {
            Some(reason) => Welcome::Refused { reason },
            None => Welcome::Taken { by: self.holders[hello.rank - 1].clone() },
        };
        let reason = match &answer {
            Welcome::Refused { reason } => reason.clone(),
            _ => "it is taken".to_owned(),
        };
        if self.place.is_news(hello.rank, from, &reason) {
            tracing::warn!(rank = hello.rank, %from, %reason, "a process wants to be a rank of a group that is whole");
        }
        say(&connection, &answer, PATIENCE)
    }
}

/// The first words of whoever has connected, within [`PATIENCE`].
fn greeted(
    stream: TcpStream,
    tls: Option<&RankTls>,
    clock: &Clock,
) -> Result<(Hello, Connection), ConnectionError> {
    let began = clock.now();
    let reply = stream.try_clone()?;
    let accepted = Connection::accept(stream, tls, PATIENCE);
    // A follower speaks at once.
    let left = PATIENCE.saturating_sub(clock.now().since(began));
    let heard = accepted.and_then(|connection| Ok((hear::<Hello>(&connection, left)?, connection)));
    if let Err(ConnectionError::TalksTls | ConnectionError::TalksPlainText) = heard {
        refuse_in_plain_text(reply);
    }
    heard
}

/// Tells a rank why nobody talks to it, in the only way that both ends have: one that talks plain text reads the reason,
/// one that talks TLS sees that this is none.
fn refuse_in_plain_text(stream: TcpStream) {
    let reason =
        "one of the two has certificates between ranks (worker.rank_tls) and the other has none".to_owned();
    // Nobody waits for it: who does not take it at once sees a closed connection.
    if let Ok(connection) = Connection::plain(stream) {
        let _ = say(&connection, &Welcome::Refused { reason }, Duration::ZERO);
    }
}

/// Why a follower left its group.
#[derive(Debug, Error)]
pub enum FollowError {
    #[error("the leader at {address} refused this rank: {reason}")]
    Refused { address: String, reason: String },
    #[error(
        "rank {rank} of {world} is taken: the leader at {address} has it from the process at {by}; end that one, or give \
         this one another worker.rank"
    )]
    Taken { rank: usize, world: usize, address: String, by: String },
    #[error("cannot reach the leader at {address}: {source}")]
    Connect { address: String, source: ConnectionError },
    /// Nothing changes that but another set-up of this rank, or of the leader.
    #[error("no connection with the leader at {address} (worker.rank_tls): {source}")]
    Secure { address: String, source: ConnectionError },
    #[error(transparent)]
    Form(#[from] FormError),
    #[error(transparent)]
    Rank(#[from] RankError),
}

impl FollowError {
    /// Whether the leader, or what is at its address, would say the same again.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Secure { .. })
    }
}

impl Coded for FollowError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Taken { .. } => ErrorCode::Invalid,
            _ => ErrorCode::Unavailable,
        }
    }
}

/// One follower in a process of its own.
#[derive(Debug)]
pub struct Follower {
    pub shard: Arc<Model>,
    /// Digest of the checkpoint.
    pub model: String,
    pub rank: usize,
    pub world: usize,
    /// Where the leader listens for ranks, `host:port`.
    pub leader: String,
    pub threads: std::num::NonZeroUsize,
    pub watch: Option<RankWatch>,
    /// Number of its GPU, where the leader chooses NCCL.
    pub gpu: usize,
    /// Where all ranks show certificates; `None`: they talk plain text.
    pub tls: Option<RankTls>,
}

impl Follower {
    /// Joins the group and follows its leader for one epoch. Returns when the leader ends the group in good order.
    ///
    /// # Errors
    /// [`FollowError`]; what is not lasting may be tried again.
    pub fn run(&self, attempt: u64) -> Result<(), FollowError> {
        let open = |channel| self.open(attempt, channel).map_err(|source| self.failed(source));
        let (commands, sums) = (open(Channel::Commands)?, open(Channel::Sums)?);
        let terms = self.terms(&commands)?;
        self.terms(&sums)?;
        let timeout = Duration::from_millis(terms.timeout_ms);
        let spoke = TcpRank::spoke(self.rank, self.world, commands, timeout).map_err(FormError::from)?;
        let mut link = Link::new(Box::new(spoke));
        let row_type = match terms.row_type {
            0 => RowType::F32,
            1 => RowType::F16,
            _ => RowType::Bf16,
        };
        let options = ExecutorOptions { slots: terms.slots, row_type, threads: self.threads };
        let member = Member { rank: self.rank, world: self.world };
        let sums = sums::follow(self.gpu, terms.nccl.as_deref(), member, sums, timeout)?;
        let abort = sums.abort_handle();
        let executor = Executor::in_group(Arc::clone(&self.shard), options, sums).map_err(FormError::from)?;
        let mut rank = Rank::new(executor, terms.epoch).watched_by(self.watch.clone(), self.rank);
        tracing::info!(rank = self.rank, epoch = terms.epoch, "joined the group");
        Ok(follow(&mut rank, &mut link, &abort, &Unprobed)?)
    }

    fn failed(&self, source: ConnectionError) -> FollowError {
        let address = self.leader.clone();
        if source.is_lasting() {
            FollowError::Secure { address, source }
        } else {
            FollowError::Connect { address, source }
        }
    }

    fn open(&self, attempt: u64, channel: Channel) -> Result<Connection, ConnectionError> {
        let mut addresses = self.leader.to_socket_addrs()?;
        let address = addresses.next().ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        let stream = TcpStream::connect_timeout(&address, GREETING)?;
        let connection = Connection::dial((stream, host(&self.leader)), self.tls.as_ref(), GREETING)?;
        say(&connection, &Hello::new(&self.model, (self.rank, self.world), attempt, channel), GREETING)?;
        Ok(connection)
    }

    /// Waits until the group starts: for as long as the leader says that other ranks are missing, since they may take
    /// their time.
    fn terms(&self, connection: &Connection) -> Result<Terms, FollowError> {
        loop {
            match hear(connection, GREETING) {
                Ok(Welcome::Wait) => {
                    say(connection, &Here, GREETING).map_err(|source| self.failed(source))?;
                }
                Ok(Welcome::Taken { by }) => {
                    let (rank, world, address) = (self.rank, self.world, self.leader.clone());
                    return Err(FollowError::Taken { rank, world, address, by });
                }
                Ok(Welcome::Start(terms)) => return Ok(terms),
                Ok(Welcome::Refused { reason }) => {
                    return Err(FollowError::Refused { address: self.leader.clone(), reason });
                }
                Err(source) => return Err(self.failed(source)),
            }
        }
    }
}

/// The name or IP address in `host:port`: what the leader's certificate must be for.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_what_stands_in_certificates() {
        for (address, expected) in
            [("leader.example:7100", "leader.example"), ("10.0.0.7:7100", "10.0.0.7"), ("[::1]:7100", "::1")]
        {
            assert_eq!(host(address), expected);
        }
    }
}
